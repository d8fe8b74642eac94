"""Rounds without a barrier: FedBuff's and FedAsync's claims on simulated fleets, and partial models, which nobody had.

Neither paper's tables can be run as they stand: their fleets are not described. What is tried here is what they claim,
on fleets of ours, in virtual seconds.
"""

from __future__ import annotations

from typing import Any

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe

FLEETS = ("iot", "mobile-4g")
SOONER, LESS = Measure("seconds to", at=90.0), Measure("gigabytes to", at=90.0)
ABOUT_TIME = (
    "Seconds are virtual: download, training and upload of each client's device, with the availability and the losses "
    "of its fleet, and evaluations take none.",
)


def _named(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "settings": settings}


def _recipe(
    name: str,
    about: str | None,
    experiments: dict[str, Experiment],
    claims: list[Claim],
    notes: tuple[str, ...],
    less: str,
    quick: bool,
) -> Recipe:
    """The recipe; `less` is what a quick one has of the whole."""
    more = (f"smaller: {less}",) if quick else ()
    return Recipe(name, (about or "").rstrip("."), experiments, tuple(claims), (*notes, *more), quick=quick)


def speedup(quick: bool = False) -> Recipe:
    """FedBuff against synchronous rounds and FedAsync, with as many clients at a time."""
    at_once, rounds = 50, 8 if quick else 60
    rows: dict[str, dict[str, Any]] = {
        "FedAvg": {"method": "fedavg", "per_round": at_once, "rounds": rounds},
        "FedAvg, the first 50 of 65": {
            "method": "fedavg", "per_round": 65, "rounds": rounds, "world": {"first": at_once},
        },
        "FedBuff": {
            "method": _named("fedbuff", buffer=10, in_flight=at_once), "rounds": 5 * rounds, "evaluate_every": 5,
        },
        "FedAsync": {
            "method": _named("fedasync", in_flight=at_once), "rounds": 50 * rounds, "evaluate_every": 50,
        },
    }  # fmt: skip
    experiments = {
        f"{fleet}/{label}": Experiment(
            data="mnist", model="2nn", clients=200, partition=_named("dirichlet", alpha=0.1), fleet=fleet,
            training={"rate": 0.1, "epochs": 1, "batch": 32}, **row,
        )
        for fleet in FLEETS
        for label, row in rows.items()
    }  # fmt: skip
    claims = []
    for fleet in FLEETS:
        ours, plain, first, single = (
            f"{fleet}/{label}" for label in ("FedBuff", "FedAvg", "FedAvg, the first 50 of 65", "FedAsync")
        )
        claims += [
            Claim(f"{fleet}: FedAvg's seconds to 90 % over FedBuff's", (plain,), SOONER, (ours,), "ratio", "above"),
            Claim(f"{fleet}: FedAsync's seconds to 90 % over FedBuff's", (single,), SOONER, (ours,), "ratio", "above"),
            Claim(
                f"{fleet}: over-selection's seconds to 90 % over FedBuff's",
                *((first,), SOONER, (ours,), "ratio", "above"),
                control=True,
            ),
            Claim(
                f"{fleet}: FedAvg's bytes to 90 % over FedBuff's",
                *((plain,), LESS, (ours,), "ratio", "above"),
                control=True,
            ),
        ]
    notes = (
        *ABOUT_TIME,
        "50 of 200 clients at a time in every row; as many replies in all (3,000), which is 60 rounds of FedAvg, 300 "
        "steps of FedBuff and 3,000 of FedAsync. MNIST, Dirichlet 0.1, one epoch in batches of 32 at rate 0.1.",
        "FedBuff's paper says up to 3.3 times as efficient as synchronous training and up to 2.5 times as asynchronous "
        "training, on fleets of its own: only the direction is judged.",
    )
    return _recipe("fedbuff-speedup", speedup.__doc__, experiments, claims, notes, f"{rounds} rounds of 60", quick)


DISCOUNTS = {
    "constant": _named("model", discount="constant"),
    "polynomial": _named("model", discount="polynomial", exponent=0.5),
    "hinge": _named("model", discount="hinge", slope=10.0, bound=4.0),
}


def staleness(quick: bool = False) -> Recipe:
    """FedAsync's discounts of stale replies, with few and many clients at a time."""
    steps = 100 if quick else 1500
    experiments, claims = {}, []
    for alpha in (0.6, 0.9):
        for in_flight in (5, 20):
            at = f"alpha {alpha}, {in_flight} in flight"
            for label, stale in DISCOUNTS.items():
                discounted = {**stale, "settings": {**stale["settings"], "alpha": alpha}}
                experiments[f"{at}/{label}"] = Experiment(
                    method=_named("fedasync", in_flight=in_flight), stale=discounted, fleet="iot", rounds=steps,
                    partition=_named("dirichlet", alpha=0.1), training={"rate": 0.1, "epochs": 1, "batch": 10},
                    evaluate_every=25,
                )  # fmt: skip
            claims += [
                Claim(
                    f"{at}: {label} over constant",
                    *((f"{at}/{label}",), Measure("late"), (f"{at}/constant",), "difference", "above"),
                )
                for label in ("polynomial", "hinge")
            ]
    notes = (
        *ABOUT_TIME,
        "The embedded digits, 100 clients, Dirichlet 0.1, one epoch in batches of 10 at rate 0.1, 1,500 replies; "
        "accuracy is the mean of the last ten evaluations, 25 steps apart, since single ones fluctuate.",
        "The paper draws staleness up to 4 or 16; here it follows from the devices, with a mean of 4 and 19.",
    )
    return _recipe(
        "fedasync-staleness", staleness.__doc__, experiments, claims, notes, f"{steps} steps of 1,500", quick
    )


METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "FedAvg": (_named("fedavg"), "seconds to"),
    "FjORD": (_named("fjord"), "seconds to"),
    "FedSPU": (_named("fedspu"), "seconds to own"),
}
TARGETS = {"FedAvg": 80.0, "FjORD": 80.0, "FedSPU": 80.0}


def partial_models(quick: bool = False) -> Recipe:
    """Partial models in rounds and in buffers: virtual seconds and bytes to one accuracy."""
    rounds = 20 if quick else 150
    experiments: dict[str, Experiment] = {}
    claims = []
    for fleet in FLEETS:
        for name, (method, what) in METHODS.items():
            buffered = {"pace": _named("buffered", buffer=10, in_flight=20)}
            rows: dict[str, dict[str, Any]] = {
                "in rounds": {"per_round": 20, "rounds": rounds // 2},
                "buffered": {**buffered, "rounds": rounds},
                "buffered, staleness by steps": {
                    **buffered, "rounds": rounds,
                    "stale": _named("change", discount="polynomial", exponent=0.5, by="steps"),
                },
            }  # fmt: skip
            for label, row in rows.items():
                experiments[f"{fleet}/{name} {label}"] = Experiment(
                    method=method, fleet=fleet, partition=_named("dirichlet", alpha=0.1),
                    training={"rate": 0.1, "epochs": 5, "batch": 10}, split=(0.7, 0.0, 0.3), **row,
                )  # fmt: skip
            free, tied, steps = (f"{fleet}/{name} {label}" for label in ("buffered", "in rounds", list(rows)[2]))
            at, kind = TARGETS[name], "own models" if what.endswith("own") else "the model"
            bytes_to = what.replace("seconds", "gigabytes")
            claims += [
                Claim(
                    f"{fleet}: {name}'s seconds in rounds over buffered, {kind} to {at:g} %",
                    *((tied,), Measure(what, at), (free,), "ratio", "above"),
                    control=True,
                ),
                Claim(
                    f"{fleet}: {name}'s bytes in rounds over buffered, {kind} to {at:g} %",
                    *((tied,), Measure(bytes_to, at), (free,), "ratio", "above"),
                    control=True,
                ),
                Claim(
                    f"{fleet}: {name}, staleness by steps over by numbers, {kind} to {at:g} %",
                    *((steps,), Measure(what, at), (free,), "ratio", "above"),
                    control=True,
                ),
            ]
    notes = (
        *ABOUT_TIME,
        "No paper has this: all claims are questions of ours. The embedded digits, 100 clients, Dirichlet 0.1, 20 "
        "clients at a time in every row; a step of 10 replies when buffered, a round of 20 when not, and as many "
        "replies in all.",
        "FedSPU is judged by clients' own models, the others by the global one.",
    )
    return _recipe(
        "partial-buffered", partial_models.__doc__, experiments, claims, notes, f"{rounds} steps of 150", quick
    )
