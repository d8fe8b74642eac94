"""All methods on one hard fleet, each with the learning rate that suits it: no paper's table, but the one to cite."""

from __future__ import annotations

from typing import Any

from fedloom.errors import BadExperiment
from fedloom.methods import METHODS
from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Measure, Recipe, Tuning

ROUNDS, QUICK, COHORT = 100, 10, 10
FACTORS = (0.3, 1.0, 3.0)  # of a method's own learning rate
FLEET: dict[str, Any] = {
    "data": "mnist", "model": "2nn", "partition": {"name": "dirichlet", "settings": {"alpha": 0.1}},
    "clients": 100, "split": (0.8, 0.0, 0.2), "fleet": "iot",
    "channel": {"name": "bernoulli", "settings": {"up": 0.5}},
}  # fmt: skip
COLUMNS = {
    "global model": Measure("late"),
    "clients' own": Measure("personal"),
    "bytes": Measure("gigabytes"),
    "time": Measure("seconds"),
}
NOTES = (
    "MNIST, Dirichlet 0.1 over 100 clients, the network 784-200-200-10, one local epoch in batches of 32 (or the"
    " passes that a method is made of, as FedRep's); single-board"
    " computers on slow and unequal links (fleet `iot`), of which some are away; half of the replies are lost.",
    "Equal tuning: every method tries 0.3, 1 and 3 times its own learning rate under a seed of its own, and takes the"
    " one with the best mean accuracy of the models that serve clients.",
    "10 of 100 clients a round; methods that choose their own cohort do so, up to all 100. Without a barrier as many"
    " steps as make up the rounds. Where clients have a part of the model, there are five tiers, 20 to 100 % of each"
    " hidden layer, or what the method's own defaults say.",
    "Global model: accuracy on the test set, mean of the last ten scores. Clients' own: mean over clients of the model"
    " that serves each, on the 20 % of its own data that it keeps for tests; without own models the global one.",
    "Bytes are those of all messages, up and down, encoded; seconds are virtual.",
)


def _run(values: dict[str, Any]) -> Experiment:
    """One local epoch, or the epochs that a method is made of."""
    try:
        return Experiment(**values, training={"epochs": 1, "batch": 32})
    except BadExperiment:  # its local rule has passes of its own
        return Experiment(**values, training={"batch": 32})


def hard_fleet(quick: bool = False) -> Recipe:
    """Dirichlet 0.1, five tiers, half of the replies lost, 10 of 100 a round."""
    experiments, tuning, rounds = {}, [], QUICK if quick else ROUNDS
    for name in METHODS:
        plain = Experiment(method=name).build_method()
        steps, counted = plain.pace.steps_a_round, plain.pace.barrier and plain.select.with_count(COHORT) is not None
        one = _run(
            {
                "method": name, "rounds": rounds * steps, "evaluate_every": steps * max(1, rounds // 20),
                **({"per_round": COHORT} if counted else {}), **FLEET,
            }
        )  # fmt: skip
        rates = tuple(float(f"{factor * plain.optimiser.rate:.3g}") for factor in FACTORS)
        experiments[f"{name}/{COHORT if counted else 'its own cohort'}"] = one
        tuning.append(Tuning(f"{name}/", one, rates))
    smaller = (f"smaller: {QUICK} rounds of {ROUNDS}",) if quick else ()
    about = "All methods on one hard fleet: Dirichlet 0.1, five tiers, half of the replies lost, 10 of 100 a round"
    return Recipe(
        "hard-fleet", about, experiments, notes=(*NOTES, *smaller), tuning=tuple(tuning), columns=COLUMNS, quick=quick
    )
