"""Which movement is it? The 30 people of UCI-HAR, each a client: FedAvg, FedSPU and FedSelect, person by person.

    FEDLOOM_DATA=folder/with/uci-har.npz python examples/activity.py

UCI-HAR comes divided by people: 21 to train on, 9 to test on. Here all 30 take part; of each, 30 % of the windows,
drawn by the seed, are kept for the test. FedAvg serves everyone with one model. FedSPU's clients keep a model each and
train random neurons of it; FedSelect's keep a growing part for themselves. What counts is how each person's own model
does on that person's own test windows.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from fedloom import Dataset, Experiment, load_data
from fedloom.layout import flatten
from fedloom.runs.build import prepare
from fedloom.runs.play import play

METHODS = ("fedavg", "fedspu", "fedselect-neurons")
KEPT = 0.3  # of every person's windows, for the test


def by_person(data: Dataset, seed: int) -> Dataset:
    """All people in one fleet, with a part of each one's windows kept for the test."""
    assert data.client_train is not None
    assert data.client_test is not None
    x = np.concatenate([data.x_train, data.x_test])
    y = np.concatenate([data.y_train, data.y_test])
    person = np.concatenate([data.client_train, data.client_test])
    rng = np.random.default_rng(seed)
    test = np.zeros(len(y), bool)
    for one in np.unique(person):
        own = rng.permutation(np.flatnonzero(person == one))
        test[own[: max(1, round(KEPT * len(own)))]] = True
    return data._replace(
        x_train=x[~test], y_train=y[~test], client_train=person[~test],
        x_test=x[test], y_test=y[test], client_test=person[test],
    )  # fmt: skip


def invented() -> Dataset:
    """Numbers of the same shapes, with something to learn: a stand-in where the data are not at hand."""
    rng = np.random.default_rng(0)
    person, y = np.repeat(np.arange(1, 31), 20), np.tile(np.arange(6), 100)
    x = rng.normal(size=(600, 9, 128)).astype(np.float32) + (y - 2.5)[:, None, None].astype(np.float32)
    first = person <= 21
    parts = (x[first], y[first], x[~first], y[~first], person[first], person[~first])
    return Dataset("stand-in", *parts, classes=6, vocabulary=0)


def accuracies(method: str, data: Dataset, rounds: int, seed: int) -> tuple[NDArray[np.float64], float]:
    """Every person's accuracy with the model that serves it, and the megabytes sent up."""
    assert data.client_train is not None
    experiment = Experiment(
        method=method,
        model="har-cnn",
        partition="own",
        clients=len(np.unique(data.client_train)),
        per_round=10,
        training={"rate": 0.05, "epochs": 2, "batch": 32},
        rounds=rounds,
        evaluate_every=rounds,
        seed=seed,
    )
    prepared = prepare(experiment, data=data)
    result = play(experiment, prepared)
    accuracy = prepared.engine.personal(flatten(result.model, prepared.inputs.setting.layout))
    assert accuracy is not None
    sent = sum(row["bytes_up"] for row in result.rounds) / 1e6
    return accuracy.numpy(), sent


def main() -> None:
    """Run the three and print what they give to whom."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stand-in", action="store_true", help="invented numbers in place of UCI-HAR")
    given = parser.parse_args()
    data = by_person(invented() if given.stand_in else load_data("uci-har"), given.seed)
    assert data.client_train is not None
    people = np.unique(data.client_train)
    found = {}
    print(f"{'method':17} {'mean':>6} {'worst':>6} {'below 0.9':>10} {'MB up':>7}")
    for method in METHODS:
        found[method], sent = accuracies(method, data, given.rounds, given.seed)
        own = found[method]
        print(f"{method:17} {own.mean():6.3f} {own.min():6.3f} {(own < 0.9).sum():10} {sent:7.1f}", flush=True)
    print(f"\n{'person':>6} " + " ".join(f"{method:>17}" for method in METHODS))
    for place in np.argsort(found["fedavg"], kind="stable"):
        print(f"{people[place]:6} " + " ".join(f"{found[method][place]:17.3f}" for method in METHODS))


if __name__ == "__main__":
    main()
