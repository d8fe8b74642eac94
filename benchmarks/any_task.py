"""Time of a round for several goals, against a plain PyTorch loop written by hand, in one process.

    python benchmarks/any_task.py [--cycles 5] [--threads 2] [--write FILE.md] [--json FILE] [WORKLOAD ...]

10 clients take one epoch each on invented data, in batches of 50; a cycle plays one round of each way, and ratios are
medians over the cycles of fedloom's time divided by the loop's in the same cycle. The loop copies the network for every
client, takes the very batches that fedloom takes (dealing them is in fedloom's time alone), transforms them by the very
functions, steps with torch.optim.SGD and averages the weights; what it ends with is compared with fedloom's model, and
the largest difference is printed. Neither way evaluates.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom import Chance, Dataset, Experiment, play_round
from fedloom.core.goal import Goal
from fedloom.core.work import Batches
from fedloom.engine.feed import Feed
from fedloom.layout import flatten, load
from fedloom.runs.build import Prepared, prepare

CLIENTS, BATCH = 10, 50
TARGETS = {"regression": "at most 1.0", "crop-flip": "at most 0.75"}  # for the ratio
HEAD = (
    "| workload | fedloom, ms | by hand, ms | ratio | models apart | aim | way |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Workload:
    """A goal on invented data."""

    about: str
    goal: dict[str, Any]
    model: str
    samples: int  # of a client
    shape: tuple[int, ...]
    target: Callable[[np.random.Generator, int], Any]
    augment: tuple[str, ...] = ()
    words: int = 0  # inputs are tokens below this number
    settings: dict[str, Any] = field(default_factory=dict)  # of the network

    def data(self) -> Dataset:
        """Random inputs and targets."""
        rng, count = np.random.default_rng(0), CLIENTS * self.samples
        x: Any = rng.standard_normal((count, *self.shape), np.float32)
        if self.words:
            x = rng.integers(1, self.words, (count, *self.shape))
        y = self.target(rng, count)
        classes = int(y.max()) + 1 if y.dtype.kind == "i" else 1
        return Dataset("bench", x, y, x[:64], y[:64], None, None, classes, self.words)

    def experiment(self) -> Experiment:
        """FedAvg with every client in every round."""
        return Experiment(
            goal=self.goal, model={"name": self.model, "settings": self.settings}, augment=self.augment,
            partition="iid", clients=CLIENTS, per_round=CLIENTS, device="cpu",
            training={"rate": 0.01, "batch": BATCH, "epochs": 1},
        )  # fmt: skip


def class_of(count: int, *shape: int) -> Callable[[np.random.Generator, int], Any]:
    """Random classes below `count`, of any shape."""
    return lambda rng, n: rng.integers(0, count, (n, *shape))


WORKLOADS = {
    "regression": Workload(
        "numbers, mlp 100-64, 32 inputs, 500 examples", {"name": "numbers"}, "mlp", 500, (32,),
        lambda rng, n: rng.standard_normal(n, np.float32),
    ),
    "crop-flip": Workload(
        "classes, cnn2, 3x32x32 images, 500 examples, crop and flip", {"name": "classes"}, "cnn2", 500, (3, 32, 32),
        class_of(10), ("crop", "flip"),
    ),
    "smoothed": Workload(
        "classes with smoothing 0.1, cnn2, 500 examples", {"name": "classes", "settings": {"smoothing": 0.1}}, "cnn2",
        500, (3, 32, 32), class_of(10),
    ),
    "labels": Workload(
        "8 labels, cnn1, 1x28x28 images, 500 examples", {"name": "labels"}, "cnn1", 500, (1, 28, 28), class_of(2, 8)
    ),
    "next-token": Workload(
        "next-token, char-conv, 48 of 65 characters, 200 examples", {"name": "next-token"}, "char-conv", 200, (48,),
        class_of(65, 48), words=65,
    ),
    "pixels": Workload(
        "pixels, fcn, 1x24x24 images, 200 examples", {"name": "pixels"}, "fcn", 200, (1, 24, 24), class_of(3, 24, 24)
    ),
}  # fmt: skip


def deal(prepared: Prepared, round_: int) -> list[Batches]:
    """The batches that each client takes in a round of fedloom's."""
    inputs, dealt = prepared.inputs, []
    for client in range(CLIENTS):
        ids, sizes = torch.tensor([client]), [inputs.shards.sizes[client]]
        dealt.append(inputs.method.work.plan(ids, inputs.shards.rows(ids, sizes[0]), sizes, Chance(0, round_)))
    return dealt


def by_hand(prepared: Prepared, model: Tensor, dealt: list[Batches]) -> Tensor:
    """A round as one would write it: every client in turn, with a network of its own; the average of their weights."""
    inputs, setting = prepared.inputs, prepared.inputs.setting
    goal: Goal = setting.goal
    mean = torch.zeros_like(model)
    for batches in dealt:
        network: nn.Module = load(deepcopy(inputs.network), setting.layout, model).train()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
        for batch in Feed(inputs.train, batches, goal, setting.transform):
            optimiser.zero_grad()
            loss = goal.loss(network(batch.x[0]), batch.y[0])
            (loss.mean() if goal.weigh is None else (loss * batch.weight[0]).sum()).backward()
            optimiser.step()
        mean += flatten(network, setting.layout) / CLIENTS
    return mean


def measure(workload: Workload, cycles: int) -> dict[str, Any]:
    """Milliseconds of both ways, their ratio, and the largest difference of their models."""
    prepared = prepare(workload.experiment(), data=workload.data())
    inputs, engine = prepared.inputs, prepared.trainer
    assert engine is not None
    memory = inputs.method.init(inputs.setting, inputs.model)
    ours, theirs, apart = [], [], 0.0
    for cycle in range(cycles + 1):
        dealt = deal(prepared, cycle + 1)
        began = time.perf_counter()
        found, *_ = play_round(inputs.method, memory, inputs.model, inputs.setting, engine, Chance(0, cycle + 1))
        middle = time.perf_counter()
        expected = by_hand(prepared, inputs.model, dealt)
        end = time.perf_counter()
        apart = max(apart, float((found - expected).abs().max()))
        if cycle:  # the first one warms up
            ours.append(1000 * (middle - began))
            theirs.append(1000 * (end - middle))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    plan = prepared.trainer.plan.record() if prepared.trainer is not None else {}
    return {
        "about": workload.about, "fedloom": statistics.median(ours), "by hand": statistics.median(theirs),
        "ratio": ratio, "difference": apart, "way": f"{plan['gradient']}, {plan['steps'][0]}",
    }  # fmt: skip


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


def page(lines: list[str], cycles: int, threads: int) -> str:
    """The table as a page of `benchmarks/results`."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    table = "\n".join(lines)
    system = f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}, threads: {threads}"
    return f"""# Any task, against a loop by hand

    python benchmarks/any_task.py --cycles {cycles} --threads {threads}

Machine: {os.cpu_count()} cores of {processor()}, {system};
on average {load:.1f} programs wanted the cores in the last minute.

10 clients take one epoch each in batches of 50. The loop by hand trains one client after the other in plain PyTorch, on
the same batches and with the same transforms, and averages. Medians of {cycles} rounds of each way in turn; the ratio
is the median of the rounds' ratios, below 1: fedloom is quicker.

{table}
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="a page with the table, the machine and the command")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows, lines = {}, [*HEAD]
    print("\n".join(lines))
    for name in given.workloads:
        row = rows[name] = measure(WORKLOADS[name], given.cycles)
        numbers = f"{row['fedloom']:.1f} | {row['by hand']:.1f} | {row['ratio']:.2f} | {row['difference']:.1e}"
        lines.append(f"| {row['about']} | {numbers} | {TARGETS.get(name, '')} | {row['way']} |")
        print(lines[-1], flush=True)
    if given.write:
        given.write.write_text(page(lines, given.cycles, given.threads))
    if given.json:
        machine = {"torch": torch.__version__, "threads": given.threads, "processor": processor()}
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
