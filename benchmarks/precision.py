"""Accuracy and milliseconds per round of each precision, over the same seeds.

    python benchmarks/precision.py [--data digits] [--model mlp] [--rounds 30] [--clients 100] [--per-round 10]
                                   [--seeds 3] [--device auto] [--json FILE]

FedAvg, Dirichlet 0.5. Accuracy is the mean over seeds with half its 95 % interval, and the mean difference to `default`
seed by seed. Milliseconds per round are the median over seeds of the time of a run minus that of three rounds; runs are
evaluated after their last round only.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedloom import Experiment, run
from fedloom.evaluate.targets import interval

PRECISIONS = ("default", "float32", "tf32", "bf16")
WARM = 3  # rounds in which kernels are chosen and steps captured


class Found(NamedTuple):
    """The results of one run."""

    accuracy: float
    milliseconds: float


def one(facts: dict[str, Any], precision: str, seed: int) -> Found:
    """Play one run."""
    short = run(Experiment(**{**facts, "rounds": WARM}, precision=precision, seed=seed))
    result = run(Experiment(**facts, precision=precision, seed=seed))
    return Found(result.accuracy or 0.0, 1000 * (result.wall_seconds - short.wall_seconds) / (facts["rounds"] - WARM))


def main() -> None:
    """Measure each precision under each seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--data", "digits"), ("--model", "mlp"), ("--device", "auto")):
        parser.add_argument(name, default=default)
    for name, number in (("--rounds", 30), ("--clients", 100), ("--per-round", 10), ("--seeds", 3), ("--epochs", 5)):
        parser.add_argument(name, type=int, default=number)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.rounds < WARM + 3:
        parser.error(f"--rounds is {options.rounds}; at least {WARM + 3} are needed to time some")
    facts = {
        "data": options.data, "model": options.model, "device": options.device, "rounds": options.rounds,
        "clients": options.clients, "per_round": options.per_round, "evaluate_every": options.rounds,
        "partition": {"name": "dirichlet", "settings": {"alpha": 0.5}},
        "training": {"rate": options.rate, "epochs": options.epochs, "batch": options.batch},
    }  # fmt: skip
    cuda = options.device != "cpu" and torch.cuda.is_available()
    what = torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    print(f"{what}, torch {torch.__version__}")
    print(f"{options.data}, {options.model}, {options.per_round} of {options.clients} clients, {options.rounds} rounds")
    for name in PRECISIONS:  # the first run compiles and chooses kernels
        run(Experiment(**{**facts, "rounds": WARM}, precision=name))
    found: dict[str, list[Found]] = {name: [] for name in PRECISIONS}
    for seed in range(options.seeds):  # all precisions in turn, so that noise of the machine affects all of them
        for name, runs in found.items():
            runs.append(one(facts, name, seed))
    print(f"{'precision':10s} {'accuracy':>18s} {'to default':>11s} {'ms a round':>11s} {'to default':>11s}")
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in found.items():
        accuracy = interval([each.accuracy for each in runs])
        gain = statistics.mean(a.accuracy - b.accuracy for a, b in zip(runs, found["default"]))
        taken, usual = (statistics.median(one.milliseconds for one in some) for some in (runs, found["default"]))
        half = "" if accuracy.half is None else f" ± {accuracy.half:.4f}"
        print(f"{name:10s} {f'{accuracy.mean:.4f}{half}':>18s} {gain:+11.4f} {taken:11.2f} {taken / usual:11.2f}")
        rows[name] = {"accuracy": [each.accuracy for each in runs], "milliseconds": taken}
    if options.json:
        options.json.write_text(json.dumps({"machine": what, "experiment": facts, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
