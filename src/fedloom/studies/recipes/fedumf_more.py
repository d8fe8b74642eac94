"""FedUMF's curves: the fusion factor alpha and the part C of clients (Figures 3 and 4), synthetic data (Figure A5)."""

from __future__ import annotations

from typing import Any

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.fedumf import FUSED, NOTES, PLAIN, RAN, run
from fedloom.studies.recipes.fedumf_appendix import METHODS, PARTS
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe

ALPHAS = (0.1, 0.5, 1.0)
CLIENTS = 100
TARGET = 95  # per cent
SYNTHETIC = ((0, 0), (0, 1), (1, 0))
ROUNDS = 200


def curves(quick: bool = False) -> Recipe:
    """Rounds on MNIST, IID, by the fusion factor, at two rates and two parts of the clients."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    rounds, reached = 20 if quick else RAN["mnist"], Measure("rounds to", at=TARGET)
    common = {"data": "mnist", "model": "2nn", "partition": "iid", "rounds": rounds, "clients": CLIENTS}
    for rate, part in ((0.05, 0.1),) if quick else ((0.01, 0.1), (0.01, 0.5), (0.05, 0.1), (0.05, 0.5)):
        at = f"rate {rate}/C {part}"
        experiments[f"{at}/{PLAIN}"] = run("fedavg", rate, part, 1, 0.0, common)
        for alpha in ALPHAS:
            label, plain = f"{at}/{FUSED}, alpha {alpha:g}", f"{at}/{PLAIN}"
            experiments[label] = run("fedumf", rate, part, 1, alpha, common)
            what = f"{at}: rounds to {TARGET} % at alpha {alpha:g} relative to {PLAIN}'s"
            claims.append(Claim(what, (label,), reached, (plain,), "ratio", "below"))
        for more, less in ((0.5, 0.1), (1.0, 0.5)):
            what = f"{at}: rounds to {TARGET} % at alpha {more:g} relative to those at {less:g}"
            pair = (f"{at}/{FUSED}, alpha {more:g}",), reached, (f"{at}/{FUSED}, alpha {less:g}",)
            claims.append(Claim(what, *pair, "ratio", "below"))
    notes = (
        f"The number n of clients is not given: {CLIENTS}.", *NOTES[:-1],
        "The paper says that FedUMF gets better with alpha, and that its gain falls with C: compare the ratios at C 0.1"
        " with those at 0.5.",
        *(["smaller: rate 0.05 and C = 0.1 alone, 20 rounds of 150"] if quick else []),
    )  # fmt: skip
    about = "MNIST, equal shares at random: rounds to a test accuracy by the fusion factor alpha and the part C"
    return Recipe("fedumf-alpha", about, experiments, tuple(claims), notes, quick=quick)


def synthetic(quick: bool = False) -> Recipe:
    """Late accuracy on FedProx's synthetic data, 20 clients."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for alpha, beta in SYNTHETIC[:1] if quick else SYNTHETIC:
        for part in PARTS[:1] if quick else PARTS:
            at = f"({alpha}, {beta})/{part} %"
            data: dict[str, Any] = {"name": "synthetic", "settings": {"alpha": alpha, "beta": beta, "clients": 20}}
            for method, made in METHODS.items():
                experiments[f"{at}/{method}"] = Experiment(
                    method=made, data=data, model="linear", partition="own", clients=20,
                    per_round=round(20 * part / 100), rounds=20 if quick else ROUNDS,
                    training={"rate": 0.1, "decay": 0.998, "clip": 10.0, "epochs": 5, "batch": 10},
                )  # fmt: skip
            for other in ("FedDC", "FedAvg"):
                pair = (f"{at}/FedUMF",), Measure("late"), (f"{at}/{other}",)
                claims.append(Claim(f"{at}: FedUMF on FedDC over {other}", *pair, "difference", "above"))
    notes = (
        "The paper has curves alone, and no numbers: only the direction is judged. 20 clients, batches of 10, a linear"
        " model; rate 0.1 with a decay of 0.998 a round, clipped at 10, 5 local epochs, as FedDC's examples have it.",
        "Synthetic (0, 0) is FedProx's, in which clients' models still differ; the paper calls it homogeneous.",
        *(["smaller: Synthetic (0, 0) at 15 % alone, 20 rounds of 200"] if quick else []),
    )
    about = "synthetic data: accuracy of six methods"
    return Recipe("fedumf-fig-a5", about, experiments, tuple(claims), notes, quick=quick)
