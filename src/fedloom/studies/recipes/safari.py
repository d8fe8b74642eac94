"""SAFARI (Mao et al.): Figures 2 to 6."""

from __future__ import annotations

from typing import Any

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe

ROUNDS, QUICK = 200, 6
LOST = 0.5  # part of the replies, if the paper does not say
NONE, WITH, WITHOUT = "nothing lost", "with stand-ins", "without stand-ins"
NOTES = (
    "Rounds and the probability of arrival are not given: 200 rounds, and half of the replies lost where nothing else"
    " is said. A lost reply is a lost round trip: the client has trained.",
    "CIFAR-10, ResNet-20 with batch norm, 10 clients in two groups of five labels each, Adam at 0.001 with fresh"
    " moments, 5 steps of 64 a round, 80 % of the weights pruned. The model is scored after every fourth round.",
    "By SynFlow the first round's mask stays for good, whether it is found again or not; it is kept, which saves time.",
    "Accuracies are top-1 unless it says top-5; of ten classes, top-5 is an easy measure.",
)


def _run(pruner: str, quick: bool, lost: float = LOST, **settings: Any) -> Experiment:
    chosen = {
        "pruner": pruner,
        "scope": "global",
        **({"remask": "first-round"} if pruner == "synflow" else {}),
        **settings,
    }
    return Experiment(
        method={"name": "safari", "settings": chosen}, data="cifar10", partition="groups", model="resnet20", clients=10,
        fleet="equal", channel={"name": "bernoulli", "settings": {"up": lost}}, evaluate_every=2 if quick else 4,
        rounds=QUICK if quick else ROUNDS, training={"rate": 0.001},
    )  # fmt: skip


def _notes(quick: bool) -> tuple[str, ...]:
    return (*NOTES, *([f"smaller: {QUICK} rounds of {ROUNDS}"] if quick else []))


def _three(name: str, pruner: str, quick: bool) -> Recipe:
    """Runs with stand-ins, without, and with nothing lost."""
    experiments = {
        NONE: _run(pruner, quick, lost=0.0),
        WITH: _run(pruner, quick),
        WITHOUT: _run(pruner, quick, compensate=False),
    }
    pair: dict[str, Any] = {"of": (WITH,), "against": (WITHOUT,), "how": "difference"}
    claims = (
        Claim("change of accuracy from score to score, with stand-ins less", measure=Measure("swing"), sign="below",
              **pair),
        Claim("late accuracy, with stand-ins over without", measure=Measure("late"), sign="above", **pair),
        Claim("mean distance from the curve with nothing lost, with stand-ins less",
              measure=Measure("away", baseline=NONE), sign="below", **pair),
        Claim("late accuracy, with stand-ins as with nothing lost", (WITH,), Measure("late"), (NONE,), "difference",
              "equal", None, 2.0),
        Claim("top-5 accuracy with stand-ins", (WITH,), Measure("top5"), paper=98.0, tolerance=2.0),
        Claim("stand-ins that come from the own group", (WITH,), Measure("same group"), paper=100.0, tolerance=5.0),
    )  # fmt: skip
    about = f"CIFAR-10 pruned by {pruner}, half of the replies lost: stand-ins against none"
    return Recipe(name, about, experiments, claims, _notes(quick), quick=quick)


def fig2(quick: bool = False) -> Recipe:
    """Stand-ins for models pruned by magnitude."""
    return _three("safari-fig2", "mag", quick)


def fig3(quick: bool = False) -> Recipe:
    """Stand-ins for models pruned by SynFlow."""
    return _three("safari-fig3", "synflow", quick)


def fig4(quick: bool = False) -> Recipe:
    """Distances of clients' models in the last round."""
    claims = (
        Claim("distance of clients of two groups relative to that within one", (WITH,), Measure("separation"),
              (NONE + ", equal",), "ratio", "above"),
        Claim("stand-ins that come from the own group", (WITH,), Measure("same group"), paper=100.0, tolerance=5.0),
    )  # fmt: skip
    about = "distances of clients' models: small within a group, large across"
    return Recipe(
        "safari-fig4", about, {WITH: _run("mag", quick)}, claims, _notes(quick), facts={NONE + ", equal": 1.0},
        quick=quick,
    )  # fmt: skip


def fig5(quick: bool = False) -> Recipe:
    """Five probabilities of arrival, as in the SynFlow test, and pruned by magnitude as controls."""
    parts = (0.3, 0.5, 0.7, 0.9, 1.0)
    by = {"SynFlow, ": "synflow", "": "mag"}  # in labels
    experiments = {
        f"{start}P {part}": _run(pruner, quick, lost=round(1 - part, 3))
        for start, pruner in by.items()
        for part in parts
    }
    claims = []
    for start in by:
        control = start == ""
        by_magnitude = "by magnitude, " * control
        claims += [
            Claim(f"{by_magnitude}late accuracy at P {part} as at P 1.0", (f"{start}P {part}",), Measure("late"),
                  (f"{start}P 1.0",), "difference", "equal", None, 2.0, control=control)
            for part in parts[:-1]
        ]  # fmt: skip
        claims += [
            Claim(f"{by_magnitude}change of the loss from score to score, P {few} relative to P {many}",
                  (f"{start}P {few}",), Measure("loss swing"), (f"{start}P {many}",), "ratio", "above", control=control)
            for few, many in ((0.3, 0.9), (0.5, 1.0))
        ]  # fmt: skip
    notes = (*_notes(quick), "The paper does not name its five probabilities. Its pruner is SynFlow.")
    about = "CIFAR-10, five probabilities that a reply arrives: pruned by SynFlow, and by magnitude as a control"
    return Recipe("safari-fig5", about, experiments, tuple(claims), notes, quick=quick)


def fig6(quick: bool = False) -> Recipe:
    """Sparsity from 0.2 to 0.5, as in the SynFlow test; 0.8 and nothing pruned as controls."""
    experiments = {f"sparsity {part}": _run("synflow", quick, sparsity=part) for part in (0.2, 0.3, 0.4, 0.5)}
    experiments |= {"sparsity 0.8": _run("synflow", quick), "sparsity 0.0": _run("synflow", quick, sparsity=0.0)}
    claims = [
        Claim(f"late accuracy at sparsity {part} as at 0.2", (f"sparsity {part}",), Measure("late"), ("sparsity 0.2",),
              "difference", "equal", None, 2.0, control=part == 0.8)
        for part in (0.3, 0.4, 0.5, 0.8)
    ]  # fmt: skip
    claims.append(
        Claim("late accuracy at sparsity 0.8 as with nothing pruned", ("sparsity 0.8",), Measure("late"),
              ("sparsity 0.0",), "difference", "equal", None, 2.0, control=True)
    )  # fmt: skip
    about = "CIFAR-10 pruned by SynFlow, half of the replies lost: how much is pruned"
    return Recipe("safari-fig6", about, experiments, tuple(claims), _notes(quick), quick=quick)
