"""How long does a round take? `loop` and `local` back to back in one process, against a loop written by hand.

    python benchmarks/round.py [--cycles 5] [--json FILE] [W1 W2 W3 fleet]

W1: 10 of 100 clients, 600 samples of 28x28 each, 784-200-200-10, batch 50, 1 epoch. W2: all 100 clients.
W3: cnn1, 10 clients. `fleet`: W1 with 100 and with 10,000 clients (60 samples each), 10 a round.
`plain` is what one would write without fedloom: nn.Module, torch.optim.SGD, one client after another.
Medians over the cycles; a cycle runs each way once, so that noise of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.client import Examples
from fedloom.engine.local import Local, Loop, Shards
from fedloom.layout import flatten, layout_of
from fedloom.local.work import Work
from fedloom.method import Method
from fedloom.models import build
from fedloom.round import play_round
from fedloom.select.uniform import Uniform
from fedloom.simulation import per_example
from fedloom.types import Fleet, Setting

BATCH, RATE = 50, 0.1


class Workload:
    """A fleet with made-up images, and three ways to play a round on it."""

    def __init__(self, model: str, clients: int, per_round: int, samples: int) -> None:
        torch.manual_seed(0)
        shape = (1, 28, 28)
        pool = min(clients, 100) * samples  # a large fleet shares the pool: memory is not what is measured
        self.data = Examples(torch.rand(pool, *shape), torch.randint(0, 10, (pool,)))
        self.shards = Shards(
            [torch.arange(samples) + (client % 100) * samples for client in range(clients)], torch.device("cpu")
        )
        self.module = build(model, shape, 10)
        self.per_round, self.clients, self.samples = per_round, clients, samples
        layout = layout_of(self.module)
        fleet = Fleet(torch.tensor(self.shards.sizes), torch.ones(clients, 10, dtype=torch.int64))
        self.setting = Setting(fleet, self.module, layout, per_example, self.data.x[:2])
        self.method = Method(select=Uniform(per_round), work=Work(epochs=1, batch=BATCH))
        self.model = flatten(self.module, layout)
        self.local = Local(self.method, self.setting, self.data, self.shards)
        self.loop = Loop(self.method, self.setting, self.data, self.shards)

    def play(self, engine: Local, number: int) -> Tensor:
        """One round of FedAvg."""
        memory = self.method.init(self.setting, self.model)
        return play_round(self.method, memory, self.model, self.setting, engine, Chance(0, number))[0]

    def plain(self, number: int) -> Tensor:
        """One round of FedAvg as one would write it by hand."""
        chosen = torch.randperm(self.clients)[: self.per_round].tolist()
        start = {name: value.clone() for name, value in self.module.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        self.module.train()
        for client in chosen:
            self.module.load_state_dict(start)
            optimiser = torch.optim.SGD(self.module.parameters(), lr=RATE)
            rows = torch.randperm(self.samples) + (client % 100) * self.samples
            for batch in rows.split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(self.module(self.data.x[batch]), self.data.y[batch]).backward()
                optimiser.step()
            for name, value in self.module.state_dict().items():
                total[name] += value / len(chosen)
        self.module.load_state_dict(start)
        return nn.utils.parameters_to_vector(list(total.values()))


def measure(ways: dict[str, Callable[[int], Tensor]], cycles: int) -> dict[str, float]:
    """Median milliseconds of each way; the first cycle warms up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for cycle in range(cycles + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way(cycle + 1)
            if cycle:
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(taken) for name, taken in times.items()}


def compare(name: str, work: Workload, cycles: int) -> dict[str, float]:
    """`plain`, `loop` and `local` on one workload."""
    ways = {
        "plain": work.plain,
        "loop": lambda number: work.play(work.loop, number),
        "local": lambda number: work.play(work.local, number),
    }
    found = measure(ways, cycles)
    print(
        f"{name:6s} plain {found['plain']:8.1f} ms   loop {found['loop']:8.1f} ms   local {found['local']:8.1f} ms   "
        f"local/plain {found['local'] / found['plain']:.2f}   local/loop {found['local'] / found['loop']:.2f}"
    )
    return found


def main() -> None:
    """Run the workloads asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3", "fleet"])
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}"
    print(machine)
    results: dict[str, dict[str, float]] = {}
    for name, (model, per_round) in {"W1": ("2nn", 10), "W2": ("2nn", 100), "W3": ("cnn1", 10)}.items():
        if name in options.workloads:
            results[name] = compare(name, Workload(model, 100, per_round, 600), options.cycles)
    if "fleet" in options.workloads:
        small, large = Workload("2nn", 100, 10, 60), Workload("2nn", 10_000, 10, 60)
        results["fleet"] = measure(
            {"100": lambda n: small.play(small.local, n), "10000": lambda n: large.play(large.local, n)},
            4 * options.cycles,
        )
        few, many = results["fleet"].values()
        print(f"fleet  100 clients {few:.1f} ms   10,000 clients {many:.1f} ms   ratio {many / few:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "milliseconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
