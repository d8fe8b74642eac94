"""Costs of a large fleet: `fedloom run` in separate processes; seconds, milliseconds per round, peak memory.

    python benchmarks/large_fleet.py [--clients 10000 100000] [--per-round 100 1000] [--rounds 20] [--cycles 3]

Each client has five examples of 16 synthetic numbers, so the data grow with the fleet (their size is printed with the
figures); the cohort does not. `start` is everything but the rounds: the process, data, partition, network. `processor`
is processor time of the whole process, which other programs on the machine disturb less. `round` is the median round
of a run, without evaluation. Medians over the cycles; a cycle runs each case once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

EACH, FEATURES = 5, 16


def make_data(file: Path, clients: int) -> float:
    """Write examples for `clients` clients, and return their MB in memory."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((EACH * clients, FEATURES), np.float32), rng.integers(0, 10, EACH * clients)
    np.savez(file, x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
    return (x.nbytes + y.nbytes + 8 * len(y)) / 1e6  # numbers, labels, owners


def measure(method: str, data: Path, clients: int, per_round: int, rounds: int, folder: Path) -> dict[str, float]:
    """Measure one run in a process."""
    words = f"run {method} --data {data} --partition iid --clients {clients} --rounds {rounds} --out {folder} --json"
    words += f" --set per_round={per_round} --set evaluate_every={rounds}"
    command = [sys.executable, "-m", "fedloom", *words.split()]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    taken = pq.read_table(folder / "rounds.parquet")["wall_seconds"].to_pylist()
    return {
        "seconds": seconds,
        "start": seconds - sum(taken),
        "round": 1000 * statistics.median(taken[1:]),
        "processor": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss / 1024,  # MiB; Linux counts kilobytes
    }


def main() -> None:
    """Measure all cases, cycle by cycle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--per-round", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [(clients, per_round) for per_round in options.per_round for clients in options.clients]
    found: dict[tuple[int, int], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as place:
        files = {clients: Path(place) / f"pool-{clients}.npz" for clients in options.clients}
        sizes = {clients: make_data(file, clients) for clients, file in files.items()}
        for cycle in range(options.cycles):
            for clients, per_round in cases:
                folder = Path(place) / f"{clients}-{per_round}-{cycle}"
                taken = measure(options.method, files[clients], clients, per_round, options.rounds, folder)
                found[clients, per_round].append(taken)
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {options.method}")
    print("| clients | a round | data, MB | start, s | processor, s | round, ms | peak memory, MiB |")
    print("|---|---|---|---|---|---|---|")
    medians = {
        case: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for case, runs in found.items()
    }
    for (clients, per_round), of in medians.items():
        figures = f"{of['start']:.1f} | {of['processor']:.1f} | {of['round']:.1f} | {of['memory']:.0f}"
        print(f"| {clients:,} | {per_round:,} | {sizes[clients]:.0f} | {figures} |")
    if options.json:
        options.json.write_text(json.dumps([{"case": case, **of} for case, of in medians.items()], indent=2) + "\n")


if __name__ == "__main__":
    main()
