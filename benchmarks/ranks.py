"""Gain from several ranks: one process with all cores against all ranks, cycle by cycle, and their difference.

    torchrun --nproc-per-node 2 benchmarks/ranks.py [--cycles 5] [--device auto] [--json FILE] [W1 W2 W3]

W1: 10 of 100 clients, 600 samples of 28x28 each, 784-200-200-10, batch 50, 1 epoch. W2: all 100 clients. W3: cnn1, 10
clients. `thread` is the local engine in rank 0 with one thread while the others wait, `one` that engine with all
cores; `all` is the distributed engine, cores shared evenly. On GPUs each rank has its own (NCCL), or ranks share the
GPUs (gloo). `collect` is the part of `all` that rank 0 spends after its own clients: waiting for the other ranks and
receiving their replies.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Examples, Fleet, Setting
from fedloom.core.work import Work
from fedloom.engine.clients import Clients
from fedloom.engine.distributed import Distributed, serve_rank, stop_ranks
from fedloom.engine.local import local_engine
from fedloom.engine.protocol import Engine
from fedloom.engine.ranks import Message, Ranks, join_ranks, rank_device
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.models import build
from fedloom.parts.select.uniform import Uniform
from fedloom.round import play_round

WORKLOADS = {"W1": ("2nn", 10), "W2": ("2nn", 100), "W3": ("cnn1", 10)}
CLIENTS, SAMPLES, BATCH = 100, 600, 50


class Workload:
    """A fleet with synthetic images, equal on all ranks."""

    def __init__(self, model: str, per_round: int, device: torch.device) -> None:
        torch.manual_seed(0)
        data = Examples(torch.rand(CLIENTS * SAMPLES, 1, 28, 28), torch.randint(0, 10, (CLIENTS * SAMPLES,)))
        module = build(model, (1, 28, 28), 10).to(device)
        shards = Shards(list(torch.arange(CLIENTS * SAMPLES).split(SAMPLES)), device)
        data = Examples(data.x.to(device), data.y.to(device))
        examples = torch.tensor(shards.sizes, device=device)
        fleet = Fleet(examples, torch.ones(CLIENTS, 10, dtype=torch.int64, device=device))
        self.setting = Setting(fleet, module, layout_of(module), classes(), data.x[:2])
        self.method = Method(select=Uniform(per_round), work=Work(epochs=1, batch=BATCH))
        self.model = flatten(module, self.setting.layout)
        self.local = local_engine(Clients(self.method, self.setting, data, shards))

    def play(self, engine: Engine, number: int) -> Tensor:
        """Play one round of FedAvg to its end."""
        memory = self.method.init(self.setting, self.model)
        chance = Chance(0, number, self.model.device)
        model = play_round(self.method, memory, self.model, self.setting, engine, chance)[0]
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return model


class Watched(Distributed):
    """The distributed engine, which measures rank 0's time after its own clients."""

    collected = 0.0  # milliseconds of the last order

    def _ask(self, orders: dict[int, Message], lead: Callable[[], Message] | None = None) -> dict[int, Message]:
        ready = time.perf_counter()

        def timed() -> Message:
            nonlocal ready
            assert lead is not None
            done = lead()
            ready = time.perf_counter()
            return done

        answers = super()._ask(orders, None if lead is None else timed)
        self.collected = 1000 * (time.perf_counter() - ready)
        return answers


def measure(work: Workload, ranks: Ranks, cycles: int) -> dict[str, float]:
    """Median milliseconds over the cycles without the first, and the largest difference of the two models."""
    threads, engine, apart = torch.get_num_threads(), Watched(work.local, ranks), 0.0
    times: dict[str, list[float]] = {"thread": [], "one": [], "all": [], "collect": []}
    for cycle in range(cycles + 1):
        took: dict[str, float] = {}
        for name, count in (("thread", 1), ("one", threads * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))):
            torch.set_num_threads(count)
            began = time.perf_counter()
            alone = work.play(work.local, cycle + 1)
            took[name] = 1000 * (time.perf_counter() - began)
        torch.set_num_threads(threads)
        began = time.perf_counter()
        both = work.play(engine, cycle + 1)
        took |= {"all": 1000 * (time.perf_counter() - began), "collect": engine.collected}
        apart = max(apart, float((alone - both).abs().max()))
        for name, taken in took.items():
            times[name] += [taken] if cycle else []
    return {name: statistics.median(taken) for name, taken in times.items()} | {"apart": apart}


def main() -> None:
    """Measure the given workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with join_ranks(options.device) as ranks:
        device = torch.device(rank_device(options.device) if torch.cuda.is_available() else "cpu")
        for name in options.workloads:
            work = Workload(*WORKLOADS[name], device)
            if ranks.rank > 0:
                serve_rank(ranks, lambda work=work: work.local)  # type: ignore[misc]
                continue
            try:
                found = results[name] = measure(work, ranks, options.cycles)
            finally:
                stop_ranks(ranks, {})
            taken = "   ".join(f"{way} {found[way]:8.1f} ms" for way in ("thread", "one", "all", "collect"))
            print(f"{name}  {taken}   one/all {found['one'] / found['all']:.2f}   apart {found['apart']:.1e}")
    if ranks.rank == 0:
        chip = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
        machine = f"{ranks.size} ranks, {chip or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        print(machine)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine, "milliseconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
