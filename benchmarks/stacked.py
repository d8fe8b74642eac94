"""Gain from training runs together: `compare` with and without stacking, back to back in one process.

    python benchmarks/stacked.py [--cycles 5] [--rounds 20] [--threads 1] [compare groups]

`compare`: FedAvg and FedProx with five seeds each, digits, 100 clients of which 10 a round, as
`fedloom compare fedavg fedprox --seeds 5` runs them. `groups`: rounds alone, of prepared runs played in groups of
several sizes, for networks and cohorts of several sizes; `fedloom.runs.many_runs.CACHE` is chosen by it.
Medians over the cycles; a cycle runs each way once. With one thread processor time is counted too, which other programs
on the machine disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from fedloom.data.dataset import Dataset
from fedloom.data.load import load
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import play_together
from fedloom.studies.compare import compare

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def images(size: int = 6000) -> Dataset:
    """Synthetic images of 28x28."""
    draw = np.random.default_rng(0)
    x, y = draw.random((size + 500, 1, 28, 28), dtype=np.float32), draw.integers(0, 10, size + 500)
    return Dataset("images", x[:size], y[:size], x[size:], y[size:], None, None, 10, 0)


def whole(cycles: int, rounds: int) -> None:
    """The work of `fedloom compare`, without and with stacking."""
    experiments = {name: Experiment(method=name, rounds=rounds) for name in ("fedavg", "fedprox")}
    compare(experiments, [0], stack=False)  # warm up
    taken: dict[tuple[bool, str], list[float]] = {(stack, clock): [] for stack in (False, True) for clock in CLOCKS}
    for _ in range(cycles):
        for stack in (False, True):
            began = {name: clock() for name, clock in CLOCKS.items()}
            compare(experiments, range(5), stack=stack)
            for name, clock in CLOCKS.items():
                taken[stack, name].append(clock() - began[name])
    for name in CLOCKS:
        apart, stacked = (statistics.median(taken[stack, name]) for stack in (False, True))
        ratios = [a / b for a, b in zip(taken[False, name], taken[True, name])]
        print(
            f"compare, {name:9s} one by one {apart:6.2f} s   stacked {stacked:6.2f} s   "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def groups(name: str, values: dict[str, Any], sizes: list[int], cycles: int) -> None:
    """Rounds of as many runs as the largest group has, played in groups of each size."""
    data = load("digits") if values.get("data") != "images" else images()
    values = {key: value for key, value in values.items() if key != "data"}
    experiments = [Experiment(**values, seed=seed) for seed in range(max(sizes))]
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(cycles):
        for size in sizes:
            runs = [prepare(experiments[0], data=data)]
            runs += [prepare(one, data=data, sibling=runs[0]) for one in experiments[1:]]
            began = time.process_time()
            for a in range(0, len(runs), size):
                play_together(experiments[a : a + size], runs[a : a + size], [None] * size)
            taken[size].append(time.process_time() - began)
    inputs = runs[0].inputs
    weights = inputs.method.select.cohort_size(inputs.setting.fleet.size) * inputs.model.nbytes / 1e6
    first = statistics.median(taken[sizes[0]])
    found = "   ".join(f"{n} ({n * weights:.1f} MB): {first / statistics.median(t):.2f}" for n, t in taken.items())
    print(f"{name:20s} {found}")


SHAPES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "mlp, 10 a round": ({"rounds": 4}, [1, 2, 5, 10, 20]),
    "mlp, 50 a round": ({"rounds": 3, "per_round": 50}, [1, 2, 4, 8]),
    "mlp, 100 a round": ({"rounds": 3, "per_round": 100}, [1, 2, 4, 8]),
    **{
        f"2nn, {count} a round": (
            {
                "data": "images",
                "partition": "iid",
                "model": "2nn",
                "rounds": 3,
                "per_round": count,
                "training": {"epochs": 1},
            },
            [1, 2, 4, 8],
        )
        for count in (2, 5, 10)
    },
}


def main() -> None:
    """Measure the given cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["compare", "groups"])
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "compare" in options.parts:
        whole(options.cycles, options.rounds)
    if "groups" in options.parts:
        for name, (values, sizes) in SHAPES.items():
            groups(name, values, sizes, options.cycles)


if __name__ == "__main__":
    main()
