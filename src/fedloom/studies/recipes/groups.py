"""What is played together, and in how many processes? By what runs have in common, and by time, cores and memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.accel.machine import cores, free_memory
from fedloom.data.known import KNOWN
from fedloom.engine.storage.placement import REPLY, cohort_of
from fedloom.layout import layout_of
from fedloom.models import build
from fedloom.models.table import example
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import kind_of
from fedloom.studies.recipes.cost import EXAMPLES, load
from fedloom.studies.recipes.store import key_of

Named = tuple[str, Experiment]  # the name to show, and the run

START = 4.0  # seconds until another process is ready to play: imports, device
CORES = 8  # for a process: with 16 two were quicker than one (25.8 s for 26.5, 28.5 for 33.1), three and four were not
GAIN = 0.8  # of the time that one process takes: where more take longer than this they are not worth their trouble
SHARED = 0.5  # of the free memory that processes on one GPU may need together: what is reckoned is rough
OWN = 2 * 2**30  # bytes of a GPU that a process takes for itself: context, kernels, captured graphs
REMEMBERED = 3  # models that each client may have left with it and with the server, at most
KEPT = 4  # numbers for each that a layer gives: forward, backward, and copies of both


class Group(NamedTuple):
    """Runs that may be trained together."""

    runs: list[Named]
    data: str  # what they are run on, as JSON
    seconds: float  # expected
    busy: float  # of these the device needs so many, whoever else is there

    def __str__(self) -> str:
        """For people."""
        names = [name for name, _ in self.runs]
        return f"{len(names)} runs ({names[0]}{', ...' if len(set(names)) > 1 else ''})"


def groups_of(runs: Iterable[Named], device: str) -> list[Group]:
    """Those alike together, by their data."""
    found: dict[Any, list[Named]] = {}
    for name, one in runs:
        kind = kind_of(one, one.build_method()) or key_of(one)
        found.setdefault((one.data.model_dump_json(), repr(kind)), []).append((name, one))
    ordered = sorted(found.items(), key=lambda pair: pair[0][0])  # a data set is read once
    return [Group(some, data, *_cost(some, device)) for (data, _), some in ordered]


def _cost(runs: Sequence[Named], device: str) -> tuple[float, float]:
    """Seconds, and what of them the device is busy, by the table in `cost`."""
    loads = [load(one) for _, one in runs]
    if device == "cpu":
        return sum(cpu for _, cpu in loads), sum(cpu for _, cpu in loads)
    on_gpu, most = [one for one, _ in loads], max(one.rounds for one, _ in loads)
    busy = most * sum(one.busy for one in on_gpu)
    return sum(one.own for one in on_gpu) + max(busy, most * max(one.least for one in on_gpu)), busy


def most(device: str) -> int:
    """How many processes this machine has cores for. On a CPU one: its products take all of them."""
    return 1 if device == "cpu" else max(1, cores() // CORES)


def worth(groups: Sequence[Group], most: int) -> int:
    """How many processes are over soonest, if that is much sooner."""
    most = max(1, min(len(groups), most))
    ends = {count: _ends(groups, count) for count in range(1, most + 1)}
    best = min(ends, key=lambda count: ends[count])
    return best if ends[best] <= GAIN * ends[1] else 1


def _ends(groups: Sequence[Group], count: int) -> float:
    """When all is over: the longest first, each to whoever is free; a device is never more than busy."""
    ends = [0.0, *([START] * (count - 1))]
    for seconds in sorted((group.seconds for group in groups), reverse=True):
        first = ends.index(min(ends))
        ends[first] += seconds
    return max(*ends, sum(group.busy for group in groups))


def fitting(groups: Sequence[Group], count: int, device: torch.device) -> int:
    """How many of `count` processes there is memory for, whichever groups they play at a time; at least one."""
    if device.type != "cuda" or count == 1:
        return count
    free, total = torch.cuda.mem_get_info(device)
    needs = sorted((need(group, total) for group in groups), reverse=True)
    hosts = sorted((OWN + 2 * _examples(group) for group in groups), reverse=True)  # while they are read, twice
    rooms = ((needs, SHARED * free), (hosts, SHARED * free_memory()))
    return next((some for some in range(count, 1, -1) if all(sum(each[:some]) <= room for each, room in rooms)), 1)


def need(group: Group, total: int) -> int:
    """Bytes that a group takes of a GPU that has `total`, about; all of it where the network's size is not known."""
    each = [_run_bytes(one, total) for _, one in group.runs]
    return OWN + _examples(group) + max(max(each), min(sum(each), total // 2))  # no more are stacked


def _examples(group: Group) -> int:
    """Bytes of the data set, where that is known."""
    one = group.runs[0][1]
    known = _input(one)
    return 0 if known is None else (4 * torch.Size(known[0]).numel() + 8) * sum(EXAMPLES.get(one.data.name, (0, 0)))


def _input(experiment: Experiment) -> tuple[tuple[int, ...], int] | None:
    """Shape of an example and number of classes, where that is known without looking at the data."""
    if experiment.data.name == "digits":
        return (1, 8, 8), 10
    known = KNOWN.get(experiment.data.name)
    return (known.rows, known.classes) if known is not None and known.rows else None


def _run_bytes(experiment: Experiment, total: int) -> int:
    """What the cohort of one run takes while it trains, and what all clients leave behind."""
    known = _input(experiment)
    if known is None or experiment.model.own is not None:
        return total
    method, settings = experiment.build_method(), json.dumps(experiment.model.settings)
    numbers, given = _numbers(experiment.model.name, settings, *known)
    batch = max(1, method.work.batch or EXAMPLES[experiment.data.name][0] // experiment.clients)
    client = 4 * (8 * numbers + KEPT * given * batch) + REPLY * numbers
    return cohort_of(method, experiment.clients) * client + experiment.clients * REMEMBERED * 4 * numbers


@cache
def _numbers(model: str, settings: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """How many numbers a network has, and how many all its layers give for one example."""
    found = 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal found
        if isinstance(output, Tensor) and not list(layer.children()):
            found += output[0].numel()

    with torch.random.fork_rng(devices=[]), torch.no_grad():  # nothing else is drawn otherwise for it
        module = build(model, shape, classes, **json.loads(settings)).eval()
        for layer in module.modules():
            layer.register_forward_hook(count)
        module(inputs := example(shape))
    return layout_of(module).total, found + inputs[0].numel()
