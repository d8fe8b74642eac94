"""Time of a round for networks of many kinds, against a plain PyTorch loop written by hand, on two cores.

    python benchmarks/any_network.py [--only NAME ...] [--cycles 5] [--list]

10 clients (4 for ResNet-18) take one epoch in batches of 50 on invented data. In a cycle three ways play the same round
from the same weights, each cycle in another order: the loop in one process on two threads, the same loop in two
processes of one thread each, which stand ready and train every second client, and fedloom. Ratios are medians over the
cycles of a loop's time divided by fedloom's in the same cycle; nothing is evaluated. The loop is what one would write:
a copy of the network for every client, `backward`, the correction of the method, `torch.optim`, and the average of the
weights. It takes the very batches that fedloom takes, and the models of both are compared. What SCAFFOLD, FedDyn and
FedDC store after a round it leaves out, which costs it less.

What is run is kept in results/any_network.json, so that parts can be run one by one (`--only`); results/any_network.md
is written from it each time. Without `--only` all are run, which takes about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from fedloom import Chance, Dataset, Experiment, play_round
from fedloom.core.optimiser import Adam
from fedloom.engine.client import initial_state
from fedloom.engine.feed import Feed
from fedloom.layout import flatten, load
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.threads import threads_for

BATCH, CORES, FLOOR = 50, 2, 0.97
RESULTS = Path(__file__).parent / "results"
KEPT, PAGE = RESULTS / "any_network.json", RESULTS / "any_network.md"


@dataclass(frozen=True)
class Workload:
    """A network and a method on invented data."""

    about: str
    model: str
    shape: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    goal: float | None = None  # times the loop on two threads
    samples: int = 200  # of a client
    clients: int = 10
    words: int = 0  # inputs are tokens below this number
    target: str = "classes"
    method: str = "fedavg"
    training: dict[str, Any] = field(default_factory=dict)

    def data(self) -> Dataset:
        """Random inputs and targets."""
        rng, count = np.random.default_rng(0), self.clients * self.samples
        x: Any = rng.standard_normal((count, *self.shape), np.float32)
        if self.words:
            x = rng.integers(1, self.words, (count, *self.shape))
        y = rng.integers(0, 10, (count, *self.shape[1:]) if self.target == "pixels" else count)
        return Dataset("bench", x, y, x[:64], y[:64], None, None, 10, self.words)

    def experiment(self) -> Experiment:
        """Every client in every round."""
        return Experiment(
            method=self.method, goal=self.target, model={"name": self.model, "settings": self.settings},
            partition="iid", clients=self.clients, per_round=self.clients, device="cpu",
            training={"rate": 0.01, "batch": BATCH, "epochs": 1, **self.training},
        )  # fmt: skip


IMAGE, TEXT = (3, 32, 32), (64,)
CNN2 = Workload("cnn2, FedAvg, SGD", "cnn2", IMAGE)
ADAM = {"optimiser": "adam", "rate": 0.001}
WORKLOADS = {
    "resnet20": Workload("ResNet-20, batch norm", "resnet20", IMAGE, goal=1.6),
    "mobilenet": Workload("MobileNet-style, batch norm", "mobilenet", IMAGE, goal=1.3),
    "vit": Workload("ViT, 6 blocks, 64 wide", "vit", IMAGE, goal=1.2, samples=100),
    "transformer": Workload(
        "text transformer, 2 blocks, 64 wide, 64 tokens", "transformer", TEXT, goal=1.15, words=5000
    ),
    "resnet18": Workload("ResNet-18, batch norm", "resnet18", IMAGE, goal=1.15, samples=100, clients=4),
    "resnet18-group": Workload(
        "ResNet-18, group norm", "resnet18", IMAGE, {"norm": "group"}, 1.15, samples=100, clients=4
    ),
    "lstm": Workload("LSTM, two layers, 40 tokens", "lstm", (40,), {"layers": 2}, 1.0, words=1000),
    "gru": Workload("GRU, two layers, 40 tokens", "gru", (40,), {"layers": 2}, 1.0, words=1000),
    "unet": Workload("small U-Net, 24 x 24 pixels", "unet", (1, 24, 24), target="pixels"),
    "cnn2": CNN2,
    "cnn2-adam": Workload("cnn2, FedAvg, Adam", "cnn2", IMAGE, goal=2.2, training=ADAM),
    "cnn2-fedprox": Workload("cnn2, FedProx", "cnn2", IMAGE, goal=2.2, method="fedprox"),
    "cnn2-scaffold": Workload("cnn2, SCAFFOLD", "cnn2", IMAGE, goal=2.2, method="scaffold"),
    "cnn2-feddyn": Workload("cnn2, FedDyn", "cnn2", IMAGE, method="feddyn"),
    "cnn2-feddc": Workload("cnn2, FedDC", "cnn2", IMAGE, method="feddc"),
}


# ---- the loop by hand


class Sent(NamedTuple):
    """What a round starts from: the model, and what the method has stored on the server and for each client."""

    model: Tensor  # [P]
    control: Tensor  # [P] SCAFFOLD's and FedDC's control variate of the server
    controls: Tensor  # [C, P] those of the clients
    drifts: Tensor  # [C, P] FedDyn's and FedDC's


def correct(method: str, weight: float, sent: Sent, client: int, network: nn.Module) -> None:
    """Add to the gradients what the method adds at every step; all clients have equally many examples."""
    end = 0
    for parameter in network.parameters():
        here, shape, grad, now = (
            slice(end, end + parameter.numel()),
            parameter.shape,
            parameter.grad,
            parameter.detach(),
        )
        end += parameter.numel()
        assert grad is not None
        if method in ("fedprox", "feddyn", "feddc"):
            grad.add_(now - sent.model[here].view(shape), alpha=weight)
        if method in ("feddyn", "feddc"):
            grad.add_(sent.drifts[client, here].view(shape), alpha=weight)
        if method in ("scaffold", "feddc"):
            grad.add_(sent.control[here].view(shape)).sub_(sent.controls[client, here].view(shape))


def train_client(prepared: Prepared, workload: Workload, sent: Sent, client: int, round_: int) -> Tensor:
    """A client's weights after its steps, in plain PyTorch."""
    inputs = prepared.inputs
    setting, work, goal = inputs.setting, inputs.method.work, inputs.setting.goal
    network = load(deepcopy(inputs.network), setting.layout, sent.model).train()
    rate = inputs.method.optimiser.rate
    kind = torch.optim.Adam if isinstance(inputs.method.optimiser, Adam) else torch.optim.SGD
    optimiser, rule = kind(network.parameters(), lr=rate), inputs.method.local
    ids, sizes = torch.tensor([client]), [inputs.shards.sizes[client]]
    batches = work.plan(ids, inputs.shards.rows(ids, sizes[0]), sizes, Chance(0, round_))
    weight = getattr(rule, "mu", getattr(rule, "alpha", 0.0))
    for batch in Feed(inputs.train, batches, goal, setting.transform):
        optimiser.zero_grad()
        loss = goal.loss(network(batch.x[0]), batch.y[0])
        (loss.mean() if goal.weigh is None else (loss * batch.weight[0]).sum()).backward()
        if workload.method != "fedavg":
            correct(workload.method, weight, sent, client, network)
        optimiser.step()
    return flatten(network, setting.layout)


def end(workload: Workload, sent: Sent, mean: Tensor) -> Tensor:
    """The next model, from the mean of the clients' weights; FedDyn and FedDC add the mean of all drifts."""
    drifts = workload.method in ("feddyn", "feddc")
    return mean + sent.drifts.mean(0) + mean - sent.model if drifts else mean


def one_process(prepared: Prepared, workload: Workload, sent: Sent, round_: int) -> Tensor:
    """A round in this process: the average of all clients' weights."""
    mean = torch.zeros_like(sent.model)
    for client in range(workload.clients):
        mean += train_client(prepared, workload, sent, client, round_) / workload.clients
    return end(workload, sent, mean)


class Processes:
    """Two processes that train every second client; weights lie in memory that all share."""

    def __init__(self, name: str, sent: Sent) -> None:
        context = mp.get_context("spawn")
        self.sent = Sent(*(value.clone().share_memory_() for value in sent))
        self.workload, self.trained = WORKLOADS[name], torch.zeros_like(sent.controls).share_memory_()
        self.pipes, self.workers = [], []
        for number in range(CORES):
            here, there = context.Pipe()
            worker = context.Process(target=serve, args=(name, number, self.sent, self.trained, there), daemon=True)
            worker.start()
            self.pipes.append(here)
            self.workers.append(worker)
        for pipe in self.pipes:
            assert pipe.recv() == "ready"

    def __call__(self, sent: Sent, round_: int) -> Tensor:
        """A round: the average of all clients' weights."""
        for ours, theirs in zip(self.sent, sent):
            ours.copy_(theirs)
        for pipe in self.pipes:
            pipe.send(round_)
        for pipe in self.pipes:
            assert pipe.recv() == "done"
        return end(self.workload, sent, self.trained.mean(0))

    def close(self) -> None:
        """End both."""
        for pipe, worker in zip(self.pipes, self.workers):
            pipe.send(None)
            worker.join()


def serve(name: str, number: int, sent: Sent, trained: Tensor, pipe: Any) -> None:
    """Train every second client of each round until None comes."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    prepared = prepare(pinned(workload.experiment()), data=workload.data())
    pipe.send("ready")
    while (round_ := pipe.recv()) is not None:
        for client in range(number, workload.clients, CORES):
            trained[client] = train_client(prepared, workload, sent, client, round_)
        pipe.send("done")


def pinned(experiment: Experiment) -> Experiment:
    """The experiment for a process that does not train by fedloom: nothing is measured."""
    return Experiment(**{**experiment.model_dump(), "engine": "loop"})


# ---- fedloom


class Fedloom:
    """Rounds of fedloom from where a first round has led, so that every correction has work to do."""

    def __init__(self, workload: Workload) -> None:
        self.experiment = workload.experiment()
        self.prepared = prepare(self.experiment, data=workload.data())
        assert self.prepared.trainer is not None
        self.engine = self.prepared.trainer
        inputs = self.prepared.inputs
        self.memory, self.model = inputs.method.init(inputs.setting, inputs.model), inputs.model
        self._play(1000)  # clients have states now
        self.states = {name: value.clone() for name, value in self.engine.save().items()}

    def _play(self, round_: int) -> Tensor:
        """One round; the server's memory stays what it becomes only in the first."""
        inputs = self.prepared.inputs
        model, memory, *_ = play_round(
            inputs.method, self.memory, self.model, inputs.setting, self.engine, Chance(0, round_)
        )
        if round_ == 1000:
            self.model, self.memory = model, memory
        return model

    def __call__(self, round_: int) -> Tensor:
        """The model after a round from the same start."""
        return self._play(round_)

    def again(self) -> None:
        """Put clients back to where they were."""
        self.engine.load({name: value.clone() for name, value in self.states.items()})


def measure(name: str, cycles: int) -> dict[str, Any]:
    """Milliseconds of all three ways in every cycle, and the largest difference of their models."""
    workload = WORKLOADS[name]
    ours = Fedloom(workload)
    sent = sent_by(ours, workload)
    plan = ours.engine.plan
    several = Processes(name, sent)
    taken: dict[str, list[float]] = {"fedloom": [], "two threads": [], "two processes": []}
    apart = 0.0
    ways: dict[str, Callable[[int], Tensor]] = {
        "fedloom": ours,
        "two threads": lambda round_: one_process(ours.prepared, workload, sent, round_),
        "two processes": lambda round_: several(sent, round_),
    }
    try:
        for cycle in range(cycles + 1):
            found = {}
            for way in [*taken][cycle % 3 :] + [*taken][: cycle % 3]:
                ours.again()
                with threads_for([ours.prepared.inputs]) if way == "fedloom" else all_cores():
                    began = time.perf_counter()
                    found[way] = ways[way](cycle + 1)
                    if cycle:  # the first one warms up
                        taken[way].append(1000 * (time.perf_counter() - began))
            apart = max(apart, *(float((found["fedloom"] - other).abs().max()) for other in found.values()))
    finally:
        several.close()
    size = f"{workload.clients} x {workload.samples}"
    return {
        "about": workload.about, "clients": size, "goal": workload.goal, "taken": taken, "apart": apart,
        "way": f"{plan.clients}, {plan.gradient}, {plan.steps[0]}", "measured": dict(getattr(plan, "measured", ())),
        "when": time.strftime("%Y-%m-%d"), "commit": commit(),
    }  # fmt: skip


def sent_by(ours: Fedloom, workload: Workload) -> Sent:
    """What the loop starts from: the model and memory that fedloom starts from."""
    none = torch.zeros(workload.clients, len(ours.model))
    own = {"control": none, "drift": none}
    if ours.states:
        clients = ours.engine.clients
        first = initial_state(clients.method, clients.setting, ours.model)
        own |= clients.states.get(list(range(workload.clients)), first)
    control = ours.memory["local"].get("control", none[0])
    return Sent(ours.model.clone(), control.clone(), own["control"].clone(), own["drift"].clone())


@contextmanager
def all_cores() -> Iterator[None]:
    """Two threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- the page


def ratios(row: dict[str, Any], other: str) -> list[float]:
    """How many times faster fedloom was than another way, cycle by cycle."""
    return [theirs / ours for theirs, ours in zip(row["taken"][other], row["taken"]["fedloom"])]


def judged(row: dict[str, Any]) -> tuple[float, float, bool]:
    """Times the two-thread loop, times the better of the two, and whether all goals are reached."""
    threads, processes = (statistics.median(ratios(row, way)) for way in ("two threads", "two processes"))
    better = min(threads, processes)
    return threads, better, better >= FLOOR and threads >= (row["goal"] or 0)


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The results as a page."""
    lines = [
        "# Any network against a plain loop", "",
        "Written by `python benchmarks/any_network.py`; what is measured and how stands at the top of that file.",
        f"Machine: {machine()}.", "",
        "Times are milliseconds a round, medians over the cycles. `x threads`: how many times faster than the loop",
        "on two threads; `x better`: than the better of the loop on two threads and in two processes. Goals:",
        f"`x better` at least {FLOOR} everywhere, and `x threads` at least what the column says.", "",
        "| network, method | clients | two threads | two processes | fedloom | x threads | goal | x better | reached |"
        " models apart | way |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    missed = []
    for name in WORKLOADS:
        if (row := rows.get(name)) is None:
            continue
        middle = {way: statistics.median(times) for way, times in row["taken"].items()}
        threads, better, reached = judged(row)
        missed += [] if reached else [row["about"]]
        goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
        lines.append(
            f"| {row['about']} | {row['clients']} | {middle['two threads']:,.0f} | {middle['two processes']:,.0f} | "
            f"{middle['fedloom']:,.0f} | {threads:.2f} | {goal} | {better:.2f} | {'yes' if reached else '**no**'} | "
            f"{row['apart']:.0e} | {row['way']} |"
        )
    absent = [name for name in WORKLOADS if name not in rows]
    lines += ["", f"Not reached: {'; '.join(missed)}." if missed else "All goals are reached."]
    lines += [f"Not run: {', '.join(absent)}."] if absent else []
    lines += ["", "Ways: how clients share the cores, whose gradients, whose steps; see `docs/explanation-engine.md`."]
    return "\n".join([*lines, ""])


def machine() -> str:
    """The machine in words."""
    names = [line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name")]
    found = names[0] if names else platform.processor()
    return f"{found}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"


def cpuinfo() -> list[str]:
    """What Linux says of the processor."""
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def commit() -> str:
    """The commit that was measured."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Measure, keep, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), help="these alone; all others stay as they were")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="names and sizes")
    given = parser.parse_args()
    if given.list:
        for name, one in WORKLOADS.items():
            print(f"{name}: {one.about}; {one.clients} clients of {one.samples} examples")
        return
    torch.set_num_threads(CORES)
    rows: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in given.only or WORKLOADS:
        began = time.perf_counter()
        row = rows[name] = measure(name, given.cycles)
        threads, better, reached = judged(row)
        print(
            f"{name}: {threads:.2f} x two threads, {better:.2f} x the better, "
            f"{'reached' if reached else 'NOT reached'}; apart {row['apart']:.0e}; {row['way']} "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        KEPT.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    sys.exit(main())
