"""Time and memory of a client's epoch with a share of the neurons, compared with the whole model.

    python benchmarks/submodel.py [--cycles 15] [--threads 2] [--json FILE] [cnn2 2nn native fleet resnet18]

cnn2, 2nn: cohorts of one client (and, for 2nn, of ten) with 500 synthetic images each, one epoch in batches of 50.
`engine` is what clients do with their part of the model: plan the batches and learn. `frozen` trains the
sent neurons of their own whole networks. `plain` is `extract`ed and trained by hand with nn.Module and torch.optim.SGD.
Ratios are medians over the cycles of a way's time divided by the whole model's in the same cycle; a cycle runs each way
once, so that noise of the machine affects all of them. With `--threads 1` processor time counts, which other programs
disturb less than wall time.

Memory is measured by the operating system: a separate process for each way plays a round to warm up, then the highest
resident size during a second round is compared with the size before it. Freed blocks return to the system at once
(MALLOC_MMAP_THRESHOLD_), so that counted memory is in use. The data and the global model are loaded before.

native: speed of native code relative to torch's layers (FEDLOOM_NATIVE=0), in the same cycles.
fleet: 100 clients with 100 images each, shares 0.2, 0.4, 0.6, 0.8 and 1.0, all in a round, sliced against masked.
resnet18: time to derive the neurons and to extract half of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.rule import LocalRule
from fedloom.core.types import Examples, Fleet, Setting, Task
from fedloom.core.work import Work
from fedloom.engine.client import learn
from fedloom.engine.clients import Clients
from fedloom.engine.gradient.fastest import Chosen
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.local import Local, local_engine
from fedloom.engine.steps import Start
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.models import build
from fedloom.models.table import example
from fedloom.neurons.extract import extract, slice_index
from fedloom.neurons.trace import neuron_map
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.select.uniform import Uniform
from fedloom.round import play_round

BATCH, RATE = 50, 0.1
SHAPES = {"cnn2": (3, 32, 32), "2nn": (1, 28, 28)}
WAYS: dict[str, tuple[str, float]] = {  # name -> (what trains, its share of the neurons)
    "engine 1": ("engine", 1.0),
    "engine 0.5": ("engine", 0.5),
    "engine 0.25": ("engine", 0.25),
    "frozen 0.25": ("frozen", 0.25),
    "plain 1": ("plain", 1.0),
    "plain 0.5": ("plain", 0.5),
    "plain 0.25": ("plain", 0.25),
}


class Workload:
    """Clients with synthetic images; each way plays one round of all of them."""

    def __init__(self, model: str, clients: int, samples: int) -> None:
        torch.manual_seed(0)
        shape, images = SHAPES[model], clients * samples
        self.data = Examples(torch.rand(images, *shape), torch.randint(0, 10, (images,)))
        self.shards = Shards(list(torch.arange(images).split(samples)), torch.device("cpu"))
        self.module = build(model, shape, 10)
        layout = layout_of(self.module)
        fleet = Fleet(torch.tensor(self.shards.sizes), torch.zeros(clients, 10, dtype=torch.int64))
        self.setting = Setting(fleet, self.module, layout, classes(), self.data.x[:2])
        self.model, self.neurons = flatten(self.module, layout), self.setting.neurons
        self.gradient = StackedGradient(self.setting)

    def method(self, rule: LocalRule, shares: tuple[float, ...]) -> Method:
        """A method whose clients train sub-models of random neurons."""
        everyone, work = Uniform(self.setting.fleet.size), Work(epochs=1, batch=BATCH)
        return Method(select=everyone, allocate=Tiers(shares), mask=Ranked("random"), local=rule, work=work)

    def engine(self, method: Method, sliced: bool = True) -> Local:
        """The engine of these clients."""
        clients = Clients(method, self.setting, self.data, self.shards)
        return local_engine(clients, sliced=sliced, chosen=Chosen(self.gradient))

    def round(self, method: Method, sliced: bool) -> Callable[[int], Tensor]:
        """Play a whole round, with the server's part."""
        memory, local = method.init(self.setting, self.model), self.engine(method, sliced)
        return lambda number: play_round(method, memory, self.model, self.setting, local, Chance(0, number))[0]

    def clients(self, rule: LocalRule, share: float) -> Callable[[int], Tensor]:
        """Train all clients on the parts sent to them, as devices would, without cutting or scattering."""
        ids, sizes, layout = torch.arange(self.setting.fleet.size), self.shards.sizes, self.setting.layout
        method, gradient, state = self.method(rule, (share,)), self.gradient, {}
        params, mask, neurons = self.model.expand(len(ids), -1), None, None
        keep = self.neurons.cut(torch.rand(len(ids), self.neurons.size), share)
        if rule.traits.freezes:
            mask, state, neurons = self.neurons.expand(keep), {"own": params}, self.neurons
            gradient = gradient.freezing(keep, mask)
        else:
            index, shapes = slice_index(self.neurons, keep)
            layout = layout._replace(shapes=shapes)
            gradient = gradient.of_shapes(layout)
            params = params if share == 1 else params.gather(1, index)
        shares, everyone = torch.full((len(ids),), share), torch.ones(len(ids), dtype=torch.bool)
        task = Task(self.model, mask, keep, shares, everyone, {}, 1, RATE, RATE, layout.trained)
        plan = self.engine(method).plan

        def play(number: int) -> Tensor:
            batches = method.work.plan(ids, self.shards.rows(ids, max(sizes)), sizes, Chance(0, number))
            start = Start(
                method, self.setting, gradient, plan, self.data, task, state, {}, params, batches, neurons,
                mask is not None,
            )  # fmt: skip
            return learn(start)[0].sent

        return play

    def plain(self, share: float, number: int) -> Tensor:
        """Train each client's epoch by hand, on an extracted smaller model."""
        keep = self.neurons.cut(torch.rand(self.neurons.size), share)
        for rows in self.shards.examples.split(self.shards.sizes):
            small = deepcopy(self.module) if share == 1 else extract(self.module, keep, map=self.neurons)
            optimiser = torch.optim.SGD(small.parameters(), lr=RATE)
            for batch in rows[torch.randperm(len(rows))].split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(small(self.data.x[batch]), self.data.y[batch]).backward()
                optimiser.step()
        return nn.utils.parameters_to_vector(small.parameters()).detach()

    def way(self, name: str) -> Callable[[int], Tensor]:
        """Train in one of `WAYS`."""
        how, share = WAYS[name]
        if how == "plain":
            return lambda number: self.plain(share, number)
        return self.clients(KeepOwn(freeze=True) if how == "frozen" else SubModel(), share)


def measure(ways: dict[str, Callable[[int], Tensor]], cycles: int) -> dict[str, list[float]]:
    """Milliseconds of each way in each cycle, without the first cycle."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for cycle in range(cycles + 1):
        for name, way in ways.items():
            began = clock()
            way(cycle + 1)
            if cycle:
                times[name].append(1000 * (clock() - began))
    return times


def ratio(times: dict[str, list[float]], name: str, whole: str) -> float:
    """Median over the cycles of one way's time divided by another's."""
    return statistics.median(a / b for a, b in zip(times[name], times[whole]))


def resident(kind: str) -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(kind))


def peak(model: str, way: str) -> int:
    """Peak bytes of one client's round above the size before it, in a separate process."""
    play = Workload(model, 1, 500).way(way)
    play(1)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    play(2)
    return resident("VmHWM") - before


def peaks(model: str, threads: int) -> dict[str, float]:
    """Peak MiB of each way."""
    found = {}
    for name in WAYS:
        command = [sys.executable, __file__, "--threads", str(threads), "--peak", model, name]
        output = subprocess.check_output(command, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
        found[name] = int(output) / 2**20
    return found


def client(model: str, clients: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time and memory of each way, with ratios to the whole model trained in that way."""
    work = Workload(model, clients, 500)
    times = measure({name: work.way(name) for name in WAYS}, options.cycles)
    memory = peaks(model, options.threads) if clients == 1 and sys.platform == "linux" else {}
    results = {}
    for name, (how, _) in WAYS.items():
        whole = "plain 1" if how == "plain" else "engine 1"
        row = {"milliseconds": statistics.median(times[name]), "of_whole": ratio(times, name, whole)}
        text = f"{model} x{clients:<3d} {name:12s} {row['milliseconds']:8.1f} ms   {row['of_whole']:.2f} of whole"
        if memory:
            row |= {"peak_mib": memory[name], "peak_of_whole": memory[name] / memory[whole]}
            text += f"   {row['peak_mib']:6.1f} MiB   {row['peak_of_whole']:.2f} of whole"
        print(text, flush=True)
        results[name] = row
    return results


def native(cycles: int) -> dict[str, float]:
    """Speed of native code relative to torch's layers, by model, clients and way."""
    found = {}
    for model, clients in (("cnn2", 1), ("cnn2", 4), ("2nn", 1), ("2nn", 10)):
        work = Workload(model, clients, 500)
        for name in (name for name, (how, _) in WAYS.items() if how != "plain"):
            way = work.way(name)

            def by_torch(number: int, way: Callable[[int], Tensor] = way) -> Tensor:
                with patch("fedloom.engine.cpu.native_steps.library", lambda: None):
                    return way(number)

            times = measure({"torch": by_torch, "ours": way}, cycles)
            found[f"{model} x{clients} {name}"] = ratio(times, "torch", "ours")
    print("\n".join(f"{name}: {value:.2f} times faster" for name, value in found.items()), flush=True)
    return found


def fleet(model: str, cycles: int) -> dict[str, float]:
    """Rounds of a fleet of five tiers, with sliced networks and with masked ones."""
    work = Workload(model, 100, 100)
    method = work.method(SubModel(), (0.2, 0.4, 0.6, 0.8, 1.0))
    ways = {name: work.round(method, name == "sliced") for name in ("masked", "sliced")}
    times = measure(ways, cycles)
    found = {name: statistics.median(taken) for name, taken in times.items()}
    found["faster"] = ratio(times, "masked", "sliced")
    print(
        f"fleet of {model}: masked {found['masked']:.1f} ms   sliced {found['sliced']:.1f} ms   "
        f"{found['faster']:.2f} times faster",
        flush=True,
    )
    return found


def resnet18(cycles: int) -> dict[str, float]:
    """Milliseconds to derive a ResNet-18's neurons and to extract half of them."""
    module, inputs = build("resnet18", (3, 32, 32), 10), example((3, 32, 32))
    neurons = neuron_map(module, inputs)
    keep = neurons.cut(torch.rand(neurons.size), 0.5)
    ways: dict[str, Callable[[int], Tensor]] = {
        "map": lambda number: neuron_map(module, inputs).lists[0],
        "extract": lambda number: next(extract(module, keep, map=neurons).parameters()),
    }
    found = {name: statistics.median(taken) for name, taken in measure(ways, cycles).items()}
    print(f"resnet18: map {found['map']:.0f} ms   extract at 0.5 {found['extract']:.1f} ms")
    return found


def main() -> None:
    """Measure the given cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["cnn2", "2nn", "native", "fleet", "resnet18"])
    parser.add_argument("--cycles", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "WAY"), help="print one way's peak memory in bytes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak(*options.peak))
        return
    machine = f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}"
    print(machine)
    results: dict[str, object] = {"machine": machine}
    for model, cohorts in {"cnn2": [1], "2nn": [1, 10]}.items():
        if model in options.workloads:
            results |= {f"{model} x{clients}": client(model, clients, options) for clients in cohorts}
    if "native" in options.workloads:
        results["native"] = native(options.cycles)
    if "fleet" in options.workloads:
        results |= {f"fleet {model}": fleet(model, min(3, options.cycles)) for model in SHAPES}
    if "resnet18" in options.workloads:
        results["resnet18"] = resnet18(3)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
