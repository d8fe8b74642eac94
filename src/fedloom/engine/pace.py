"""Which way clients share the cores quickest, measured on this very network and remembered for this machine.

A way decides the last bits of a run. So what was found once is kept in the cache folder, by all that speed depends on.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from fedloom.accel.machine import cache_folder
from fedloom.chance import Chance
from fedloom.core.types import Task
from fedloom.core.work import Work
from fedloom.engine.clients import Clients
from fedloom.engine.cpu.native import identity, processor
from fedloom.engine.local import Engines, Local, Measured
from fedloom.engine.plan import ClientWay
from fedloom.files import replace_file
from fedloom.layout import flatten
from fedloom.method import Method

log = logging.getLogger("fedloom")

FORMAT = 2  # of what is remembered
SPELL = 0.2  # seconds that a way is timed for, twice
LONG = 0.4  # seconds of one step of one client per core from which every way takes one such step alone
HOPELESS = 2.5  # times as slow as the best so far: such a way is not timed again
CLOSE = 1.3  # times as slow as the other of the ways of clients by themselves: channels last may still turn the tables
EVEN = 1.08  # times as slow as the best: one client a core counts as even, since new threads cost it most in a trial


def fastest_way(engines: Engines, cohort: int) -> tuple[ClientWay, Measured]:
    """The fastest way for `cohort` clients a round, and how long a client's step takes in those that were tried."""
    file = cache_folder() / "ways" / f"{_key(engines, cohort)}.json"
    found = _remembered(file, engines)
    if found is None:
        found = _measured(engines, cohort)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, [json.dumps({"way": found[0], "measured": dict(found[1])}).encode()])
        except OSError as problem:
            log.info("the fastest way cannot be remembered: %s", problem)
    return found


def _remembered(file: Path, engines: Engines) -> tuple[ClientWay, Measured] | None:
    """What was found before; None where nothing was, or what was is damaged."""
    try:
        found = json.loads(file.read_text())
        way: ClientWay = found["way"]
        measured = tuple((str(name), float(ms)) for name, ms in found["measured"].items())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        log.info("'%s' cannot be read (%s); the ways are measured again", file, problem)
        return None
    return (way, measured) if way in get_args(ClientWay) and not engines.why_not(way) else None


def _measured(engines: Engines, cohort: int) -> tuple[ClientWay, Measured]:
    """Time all ways; those with channels side by side only where the way itself is not far behind."""
    ways, cores = engines.ways(), torch.get_num_threads()
    cohort, here = min(cohort, len(engines.clients.shards.sizes)), engines.clients.save()
    kept = {name: value.clone() for name, value in here.items() if name.startswith("counts.")}
    stop = _Watch(engines)
    try:
        alone = [way for way in ("per-core", "in-turn") if way in ways]
        first = min(cores, cohort)
        seconds = stop.seconds(alone[0], first, 1) / first  # also wakes torch up
        clients, steps, spells = first, 1, 1
        if first * seconds < LONG:
            many = int(SPELL / seconds)
            clients, spells = min(cohort, engines.chunk, max(first, many // 2)), 2
            clients = max(clients - clients % first, 1)  # as many for every core
            steps = max(2, min(8, many // clients))
        found = stop.compare([way for way in ways if not way.endswith("channels-last")], clients, steps, spells)
        best = min(found[way] for way in alone)
        near = {f"{way}-channels-last" for way in alone if found[way] <= CLOSE * best}
        found |= stop.compare([way for way in ways if way in near], clients, steps, spells)
    finally:
        for name, value in engines.clients.save().items():
            if name in kept:
                value.copy_(kept[name])
    even = [way for way in found if way.startswith("per-core") and found[way] <= EVEN * min(found.values())]
    fastest = min(even or found, key=lambda way: found[way])
    return fastest, tuple((way, float(f"{ms:.4g}")) for way, ms in found.items())


class _Watch:
    """Times ways on clients of usual size, who take steps of plain descent with the method's optimiser."""

    def __init__(self, engines: Engines) -> None:
        clients, setting = engines.clients, engines.clients.setting
        self._engines, self._engine = engines, dict[ClientWay, Local]()
        self._model = flatten(setting.module, setting.layout).to(clients.data.x.device)
        sizes = clients.shards.sizes
        self._order = sorted(range(len(sizes)), key=lambda client: abs(sizes[client] - sorted(sizes)[len(sizes) // 2]))

    def compare(self, ways: list[ClientWay], clients: int, steps: int, spells: int) -> dict[ClientWay, float]:
        """Milliseconds of a client's step: the shortest of `spells`, after a first one where there are several."""
        found: dict[ClientWay, float] = {}
        for spell in range(spells + (spells > 1)):
            for way in ways:
                if spell and found[way] > HOPELESS * min(found.values()):
                    continue
                ms = 1000 * self.seconds(way, clients, steps) / clients / steps
                found[way] = ms if spell <= 1 and spells > 1 else min(ms, found.get(way, torch.inf))
        return found

    def seconds(self, way: ClientWay, clients: int, steps: int) -> float:
        """Seconds that this many clients take for this many steps each."""
        own, model = self._engines.clients, self._model
        method = own.method
        if way not in self._engine:
            mine = Clients(Method(optimiser=method.optimiser), own.setting, own.data, own.shards)
            self._engine[way] = self._engines.by(way, clients=mine)
        engine = self._engine[way]
        engine.clients.method = replace(engine.clients.method, work=Work(steps=steps, batch=method.work.batch))
        ids, rate = torch.tensor(self._order[:clients]), method.optimiser.rate
        share, all_send = torch.ones(clients), torch.ones(clients, dtype=torch.bool)
        task = Task(model, None, None, share, all_send, {}, 1, rate, rate, own.setting.layout.trained, ids, True)
        began = time.perf_counter()
        engine.train(ids, task, Chance(0, 1))
        return time.perf_counter() - began


def _key(engines: Engines, cohort: int) -> str:
    """A name for all that the speed of the ways depends on."""
    clients, setting = engines.clients, engines.clients.setting
    method, x = clients.method, setting.example
    facts = [
        FORMAT, setting.module, *_code_of(setting.module), setting.layout, tuple(x.shape[1:]), x.dtype,
        type(setting.transform).__name__, setting.goal.name, method.local.traits, type(method.optimiser).__name__,
        method.optimiser.plain, method.optimiser.heavy, method.work.batch, cohort, min(cohort, engines.chunk),
        engines.sliced, engines.chosen.gradient.kind, engines.ways(), torch.get_num_threads(), torch.__version__,
        identity(), processor(),
    ]  # fmt: skip
    return sha256("\n".join(map(str, facts)).encode()).hexdigest()[:24]


def _code_of(module: nn.Module) -> list[str]:
    """The source of the network's own classes, which its printed form does not show."""
    found = {}
    for kind in {type(part) for part in module.modules()}:
        if not kind.__module__.startswith("torch."):
            try:
                found[f"{kind.__module__}.{kind.__qualname__}"] = inspect.getsource(kind)
            except (OSError, TypeError):  # typed in, or made by a program
                found[f"{kind.__module__}.{kind.__qualname__}"] = ""
    return [found[name] for name in sorted(found)]
