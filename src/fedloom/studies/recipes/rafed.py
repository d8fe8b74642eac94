"""RA-Fed and RAM-Fed (Wang et al., KDD 2023): Tables 2 and 3, Figures 2 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe, Tuning

ROUNDS, QUICK = 200, 10
RATES = (0.01, 0.05, 0.1)
SHARES = {"L": (0.5,), "S": (0.25,), "MIX": (0.5, 0.25)}
LEVELS = tuple(SHARES)
QUARTERS = ", quarters"
TYPES = {
    "L": (5, 6, 7),
    "S": (8, 9, 10, 11),
    "MIX": (5, 8, 6, 9, 7, 10, 5, 11),
}  # of OAP: pairs of quarters, and single
READ = "OAP"  # rows that are a reading of a paper, and no evidence on its numbers
NEVER_IDLE = ", no idle regions"  # the control: without the rounds in which all clients train the same regions
ROWS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "SplitFL": {"name": "splitfl"},
    "IST": {"name": "ist", "settings": {"parts": None}},
    **{f"PruneFL {level}": {"name": "prunefl-fixed", "settings": {"shares": SHARES[level]}} for level in LEVELS},
    **{f"OAP {level}": {"name": "oap-largest", "settings": {"shares": SHARES[level]}} for level in LEVELS},
    **{
        f"OAP {level}{QUARTERS}": {"name": "oap", "settings": {"types": types, "erase": True}}
        for level, types in TYPES.items()
    },
    **{f"RA-Fed {level}": {"name": "ra-fed", "settings": {"level": level}} for level in LEVELS},
    **{f"RAM-Fed {level}": {"name": "ram-fed", "settings": {"level": level}} for level in LEVELS},
}
CONTROLS: dict[str, dict[str, Any]] = {
    f"{name} L{NEVER_IDLE}": {"name": method, "settings": {"level": "L", "period": 0}}
    for name, method in (("RA-Fed", "ra-fed"), ("RAM-Fed", "ram-fed"))
}
Table = dict[str, tuple[float, ...]]  # row -> accuracies in the order of alphas
MNIST: Table = {
    "FedAvg": (87.9, 91.2, 94.2, 96.4), "SplitFL": (52.2, 69.9, 72.4, 67.6), "IST": (66.9, 80.5, 87.0, 91.5),
    "PruneFL L": (80.8, 87.5, 91.5, 94.8), "PruneFL S": (64.3, 79.1, 86.4, 91.7),
    "PruneFL MIX": (78.8, 85.5, 90.0, 94.2),
    "OAP L": (65.8, 77.7, 84.9, 92.2), "OAP S": (37.8, 71.7, 75.9, 84.4), "OAP MIX": (61.5, 74.5, 80.9, 90.4),
    "RA-Fed L": (85.2, 89.0, 92.8, 95.6), "RA-Fed S": (78.1, 86.4, 90.5, 94.1), "RA-Fed MIX": (82.7, 87.1, 91.0, 94.8),
    "RAM-Fed L": (88.0, 90.1, 95.4, 96.6), "RAM-Fed S": (85.0, 87.8, 94.2, 94.9),
    "RAM-Fed MIX": (86.5, 89.6, 94.5, 95.7),
}  # fmt: skip
CIFAR10: Table = {
    "FedAvg": (61.9, 64.5, 70.6, 75.8), "SplitFL": (37.6, 45.8, 50.1, 63.8), "IST": (24.5, 25.0, 27.1, 27.9),
    "PruneFL L": (48.7, 51.4, 53.6, 60.0), "PruneFL S": (29.5, 39.7, 42.4, 43.7),
    "PruneFL MIX": (38.6, 49.7, 53.2, 56.8),
    "OAP L": (45.9, 49.4, 50.5, 56.0), "OAP S": (16.8, 18.0, 27.9, 35.4), "OAP MIX": (45.5, 43.8, 54.0, 56.8),
    "RA-Fed L": (49.2, 54.8, 57.8, 65.1), "RA-Fed S": (33.4, 44.5, 46.2, 51.1), "RA-Fed MIX": (49.6, 53.4, 54.6, 61.6),
    "RAM-Fed L": (52.7, 55.6, 61.8, 65.3), "RAM-Fed S": (39.5, 47.5, 49.2, 51.1),
    "RAM-Fed MIX": (50.8, 53.7, 60.5, 61.4),
}  # fmt: skip
AG_NEWS: Table = {
    "FedAvg": (73.7, 71.8, 82.0, 82.2), "SplitFL": (50.4, 73.4, 82.0, 83.4), "IST": (51.6, 52.3, 57.7, 62.8),
    "PruneFL L": (67.3, 72.0, 80.3, 80.4), "PruneFL S": (57.8, 59.6, 71.2, 72.2),
    "PruneFL MIX": (66.2, 70.3, 79.5, 80.3),
    "OAP L": (45.8, 44.1, 51.7, 53.3), "OAP MIX": (37.3, 39.7, 46.2, 49.4),
    "RA-Fed L": (73.3, 78.1, 84.6, 84.9), "RA-Fed S": (66.7, 72.9, 83.0, 84.1), "RA-Fed MIX": (70.8, 77.3, 83.9, 84.7),
    "RAM-Fed L": (77.6, 86.6, 89.3, 89.4), "RAM-Fed S": (73.1, 85.3, 87.1, 88.7),
    "RAM-Fed MIX": (76.8, 86.5, 88.4, 89.2),
}  # fmt: skip


class Kind(NamedTuple):
    """A data set: network, Dirichlet parameters, and the paper's table."""

    data: str
    model: str
    alphas: tuple[float, ...]
    table: Table


KINDS = {
    "mnist": Kind("mnist", "ra-mlp", (0.01, 0.05, 0.1, 0.15), MNIST),
    "cifar10": Kind("cifar10", "ra-cnn", (0.1, 0.2, 0.3, 0.4), CIFAR10),
    "ag-news": Kind("ag-news", "fasttext", (0.05, 0.1, 0.15, 0.2), AG_NEWS),
}
NOTES = (
    "10 clients, all in every round, momentum 0.5, batches of 128, 200 rounds (the paper does not say; its published"
    " code takes 200); '5 local iterations' are epochs, as in that code.",
    "One learning rate for all methods: the best of FedAvg's, of 0.01, 0.05 and 0.1, at the third Dirichlet parameter,"
    " and not the paper's: it prints 0.01 for MNIST, 0.05 for CIFAR-10 and 0.1 for AG News.",
    "Accuracy is the best of the run, as that code reports it.",
    "Four regions of neurons; the first round trains everything, every tenth round all take the last regions.",
    "OAP deals quarters of the ranked weights, so that a cohort covers all of them; what nobody trained becomes zero."
    " Level S, which the method lacks, deals single quarters. The rows named OAP alone are a reading: all clients"
    " of a tier train the same largest weights, so that half (L) or three quarters (S) of the hidden weights are erased"
    " in the first round and stay zero. They are controls.",
    "Another control leaves out the rounds in which all take the last regions.",
)
BEST = Measure("best")


def _run(kind: Kind, alpha: float, method: dict[str, Any], quick: bool, rate: float = RATES[0]) -> Experiment:
    everyone = {} if method["name"] in ("ra-fed", "ram-fed") else {"per_round": 10}
    return Experiment(
        method=method, data=kind.data, model=kind.model, clients=10, rounds=QUICK if quick else ROUNDS, **everyone,
        partition={"name": "dirichlet", "settings": {"alpha": alpha}},
        training={"rate": rate, "momentum": 0.5, "batch": 128, "epochs": 5},
    )  # fmt: skip


def _tuning(kinds: Sequence[str], quick: bool) -> tuple[Tuning, ...]:
    return tuple(
        Tuning(f"{name}/", _run(KINDS[name], KINDS[name].alphas[2], ROWS["FedAvg"], quick), RATES) for name in kinds
    )


def _notes(quick: bool, *more: str) -> tuple[str, ...]:
    smaller = f"smaller: two Dirichlet parameters, levels L and S, {QUICK} rounds of {ROUNDS}"
    return (*NOTES, *more, *([smaller] if quick else []))


def _table(name: str, kinds: Sequence[str], about: str, quick: bool) -> Recipe:
    """Claims on each cell, on the gains of RA-Fed and RAM-Fed at each level, and the control."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for which in kinds:
        kind = KINDS[which]
        for place, alpha in enumerate(kind.alphas):
            if quick and place not in (0, 2):
                continue
            at = f"{which}/{alpha}"
            rows = {k: v for k, v in ROWS.items() if not quick or "MIX" not in k}
            for row, method in {**rows, **CONTROLS}.items():
                experiments[f"{at}/{row}"] = _run(kind, alpha, method, quick)
            for row in rows:
                named = row.removesuffix(QUARTERS)  # as the paper has it
                if named in kind.table and (named != row or not row.startswith(READ)):
                    cell = kind.table[named][place]
                    claims.append(Claim(f"{at}/{row}", (f"{at}/{row}",), BEST, paper=cell, tolerance=3.0))
            pairs = [("RA-Fed", other) for other in ("PruneFL", "OAP")] + [("RAM-Fed", "RA-Fed")]
            for level in ("L", "S") if quick else LEVELS:
                for ours, other in pairs:
                    claims += _gain(at, kind, place, f"{ours} {level}", f"{other} {level}")
                claims += _gain(at, kind, place, f"RA-Fed {level}", f"OAP {level}{QUARTERS}")
            claims += _gain(at, kind, place, "RAM-Fed L", "FedAvg")
            of, against = (f"{at}/RAM-Fed L{NEVER_IDLE}",), (f"{at}/RA-Fed L{NEVER_IDLE}",)
            what = f"{at}: RAM-Fed L over RA-Fed L without idle regions"
            claims.append(Claim(what, of, BEST, against, "difference", "above", control=True))
    return Recipe(name, about, experiments, tuple(claims), _notes(quick), _tuning(kinds, quick), quick=quick)


def _gain(at: str, kind: Kind, place: int, ours: str, other: str) -> list[Claim]:
    """The difference of two rows, if the paper has both; rows within half a point are alike."""
    named = other.removesuffix(QUARTERS)
    if ours not in kind.table or named not in kind.table:
        return []
    gain = kind.table[ours][place] - kind.table[named][place]
    pair = (f"{at}/{ours}",), BEST, (f"{at}/{other}",)
    what = f"{at}: {ours} over {other}"
    if other == named and other.startswith(READ):
        return [Claim(f"{what} as read here", *pair, "difference", "above", control=True)]
    if abs(gain) < 0.5:
        return [Claim(what, *pair, "difference", "equal", gain, 1.5)]
    return [Claim(what, *pair, "difference", "above" if gain > 0 else "below", gain, 3.0)]


def table2(quick: bool = False) -> Recipe:
    """Accuracy on MNIST and CIFAR-10."""
    about = "MNIST and CIFAR-10: accuracy where clients train regions of the model"
    return _table("rafed-table2", ["mnist"] if quick else ["mnist", "cifar10"], about, quick)


def table3(quick: bool = False) -> Recipe:
    """Accuracy on AG News."""
    return _table("rafed-table3", ["ag-news"], "AG News: accuracy where clients train regions of the model", quick)


def fig2(quick: bool = False) -> Recipe:
    """Curves at level L and the last Dirichlet parameter: the text's statements on them."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    rows = ("FedAvg", "IST", "PruneFL L", f"OAP L{QUARTERS}", "RA-Fed L", "RAM-Fed L")
    kinds = ["mnist"] if quick else ["mnist", "ag-news"]
    for which in kinds:
        kind = KINDS[which]
        at, last = f"{which}/{kind.alphas[-1]}", kind.alphas[-1]
        experiments |= {f"{at}/{row}": _run(kind, last, ROWS[row], quick) for row in rows}
        ram, late = (f"{at}/RAM-Fed L",), Measure("late")
        claims += [
            Claim(f"{at}: RAM-Fed L over {other}", ram, late, (f"{at}/{other}",), "difference", "above")
            for other in (f"OAP L{QUARTERS}", "IST", "PruneFL L", "RA-Fed L")
        ]
        what = f"{at}: RA-Fed L as FedAvg"
        claims.append(Claim(what, (f"{at}/RA-Fed L",), late, (f"{at}/FedAvg",), "difference", "equal", None, 2.0))
    notes = _notes(quick, "Late accuracy: the mean of the last ten scores.")
    tuning = _tuning(kinds, quick)
    return Recipe("rafed-fig2", "curves at level L", experiments, tuple(claims), notes, tuning, quick=quick)


def _dealt(name: str, method: str, about: str, kinds: Sequence[str], quick: bool) -> Recipe:
    """Level S with regions that are dealt as `CASES` says, at the Dirichlet parameters of the figure."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for which in kinds:
        at = f"{which}/{DEALT[which]}"
        for case, settings in CASES[method].items():
            made = {"name": method, "settings": {"level": "S", "period": 0, **settings}}
            experiments[f"{at}/{case}"] = _run(KINDS[which], DEALT[which], made, quick)
        for better, worse in ABOVE[method]:
            pair = (f"{at}/{better}",), Measure("late"), (f"{at}/{worse}",)
            claims.append(Claim(f"{at}: {better} over {worse}", *pair, "difference", "above"))
    notes = _notes(
        quick, "Least coverage, trained regions and staleness are set exactly, by dealing regions to clients."
    )
    return Recipe(name, about, experiments, tuple(claims), notes, _tuning(kinds, quick), quick=quick)


DEALT = {"mnist": 0.15, "ag-news": 0.5}
FEW, MANY, ONE = "each region by 1 client or more", "each region by 2 or more", "one region by all ten"
STALE, FRESH = "always the same", "all in four rounds"
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "ra-fed": {FEW: {"coverage": 1}, MANY: {"coverage": 2}, ONE: {"trained": 1}},
    "ram-fed": {
        f"{case}, {age}": {"coverage": coverage, "deal": deal}
        for case, coverage in ((FEW, 1), (MANY, 2))
        for age, deal in ((STALE, "fixed"), (FRESH, "turns"))
    },
}
ABOVE = {  # the first better than the second
    "ra-fed": ((MANY, FEW), (FEW, ONE)),
    "ram-fed": (
        *((f"{case}, {FRESH}", f"{case}, {STALE}") for case in (FEW, MANY)),
        *((f"{MANY}, {age}", f"{FEW}, {age}") for age in (STALE, FRESH)),
    ),
}


def fig3(quick: bool = False) -> Recipe:
    """Coverage of regions under RA-Fed."""
    kinds = ["mnist"] if quick else ["mnist", "ag-news"]
    return _dealt("rafed-fig3", "ra-fed", "coverage of regions under RA-Fed, level S", kinds, quick)


def fig4(quick: bool = False) -> Recipe:
    """Coverage and staleness of regions under RAM-Fed."""
    return _dealt("rafed-fig4", "ram-fed", "coverage and staleness of regions under RAM-Fed, level S", ["mnist"], quick)
