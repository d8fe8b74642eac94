"""Accuracy of aggregates under attacks.

    python benchmarks/attacks.py [--data digits] [--seeds 3] [--rounds 60] [--partition iid] [--method fedavg] [-o FILE]

20 % of the clients attack in four ways; each aggregate under each attack, and without one. Accuracy is the mean of the
last ten rounds, over seeds. Cohorts are drawn at random, so more than 20 % of one may be attackers.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedloom import Experiment, run

ATTACKS = ("none", "sign-flip", "scaling", "noise", "label-flip")
AGGREGATES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {},
    "trimmed-mean": {"cut": 0.35},
    "krum": {"attackers": 0.35},
}
CLIENTS, PER_ROUND, LAST = 100, 20, 10


def accuracy(method: str, data: str, partition: str, aggregate: str, attack: str, seed: int, rounds: int) -> float:
    """Mean test accuracy of the last rounds."""
    experiment = Experiment(
        method=method,
        data=data,
        partition=partition,
        aggregate={"name": aggregate, "settings": AGGREGATES[aggregate]},
        attack=attack,
        clients=CLIENTS,
        per_round=PER_ROUND,
        rounds=rounds,
        seed=seed,
        device="cpu",
    )
    return mean(row["accuracy"] for row in run(experiment).rounds[-LAST:])


def table(method: str, data: str, partition: str, seeds: int, rounds: int) -> list[str]:
    """One row per attack, one column per aggregate, in Markdown."""
    lines = [f"| attack | {' | '.join(AGGREGATES)} | best robust, below the clean mean |", "|---|" + "---:|" * 5]
    clean = 0.0
    for attack in ATTACKS:
        found = {
            name: mean(accuracy(method, data, partition, name, attack, seed, rounds) for seed in range(seeds))
            for name in AGGREGATES
        }
        clean = found["mean"] if attack == "none" else clean
        best = max((name for name in found if name != "mean"), key=lambda name: found[name])
        cells = " | ".join(f"{100 * value:.1f}" for value in found.values())
        lines.append(f"| {attack} | {cells} | {best}, {100 * (clean - found[best]):.1f} points |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Print the table, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("-o", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = table(options.method, options.data, options.partition, options.seeds, options.rounds)
    about = f"{options.method}, {options.data}, {options.partition}, {CLIENTS} clients, {PER_ROUND} a round, "
    about += (
        f"{options.rounds} rounds, {options.seeds} seeds; torch {torch.__version__}, {platform.machine()}, 1 thread"
    )
    text = "\n".join([about, "", *lines, ""])
    if options.o:
        options.o.write_text(text)


if __name__ == "__main__":
    main()
