"""Time of the 16 runs of FedUMF's two MNIST tables: FedAvg and FedUMF, by partition, rate and cohort.

    python benchmarks/fedumf_tables.py mnist.npz [--rounds 150] [--device auto]

The network is McMahan's 2NN; batch 50, one epoch, momentum 0.5, weight decay 5e-4, 100 clients. Under FedUMF all
clients train in each round. Each model is evaluated on the 10,000 test images after each round.
"""

from __future__ import annotations

import argparse
import time

import torch

from fedloom import Experiment, run
from fedloom.data.load import load

TARGETS = {"iid": (0.92, 0.94, 0.96, 0.97), "shards": (0.91, 0.93, 0.95, 0.96)}


def experiment(method: str, partition: str, rate: float, part: float, rounds: int, device: str) -> Experiment:
    """The experiment of one run."""
    training = {"optimiser": "sgd", "rate": rate, "momentum": 0.5, "weight_decay": 5e-4, "epochs": 1, "batch": 50}
    return Experiment(
        method=method,
        partition=partition,
        model="2nn",
        clients=100,
        per_round=round(100 * part),
        training=training,
        rounds=rounds,
        device=device,
    )


def main() -> None:
    """Play all runs one after another, in one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    data = load(options.data)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() and options.device != "cpu" else "CPU"
    print(f"{name}, torch {torch.__version__}, {options.rounds} rounds")
    began = time.perf_counter()
    for partition, targets in TARGETS.items():
        for rate in (0.01, 0.05):
            for part in (0.1, 0.5):
                for method in ("fedavg", "fedumf"):
                    result = run(experiment(method, partition, rate, part, options.rounds, options.device), data=data)
                    scores = [row["accuracy"] for row in result.rounds]
                    reached = [next((n for n, s in enumerate(scores, 1) if s >= goal), None) for goal in targets]
                    cells = " ".join(f"{goal:.0%}:{n or '-'}" for goal, n in zip(targets, reached))
                    print(
                        f"{partition:6s} rate {rate} C {part} {method:6s} {result.wall_seconds:5.2f} s  {cells}",
                        flush=True,
                    )
    print(f"all {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
