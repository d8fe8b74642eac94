"""A run with faults, saves, damage and crashes in any order is, after every step, the run without bytes or disks."""

from __future__ import annotations

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fault.injector import FAULTS, Injector
from fedloom.chance import Chance
from fedloom.core.types import Reply, State
from fedloom.method import Memory
from fedloom.round import play_round
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.tensors import pack
from worlds import METHODS, SEED, changed, world

HERE = world("mlp")


class Server:
    """Who plays rounds, and all it must remember between them."""

    def __init__(self, name: str) -> None:
        self.method = dict(METHODS)[name]()
        self.engine = HERE.local(self.method)
        self.model, self.round = HERE.model, 0
        self.memory: Memory = self.method.init(HERE.setting, HERE.model)

    def play(self, engine: Any) -> None:
        """One round."""
        self.round += 1
        chance = Chance(SEED, self.round)
        self.model, self.memory, _, _ = play_round(self.method, self.memory, self.model, HERE.setting, engine, chance)

    def state(self) -> dict[str, State]:
        """What a checkpoint has to hold."""
        memory = {f"{slot}/{name}": v for slot, own in self.memory.items() for name, v in own.items()}
        server = {"model": self.model, "round": torch.tensor(self.round), **memory}
        return {"server.safetensors": server, "engine.safetensors": self.engine.save()}

    def restore(self, state: dict[str, State]) -> None:
        """As it was when it was saved."""
        server = {name: value.clone() for name, value in state["server.safetensors"].items()}
        self.model, self.round = server.pop("model"), int(server.pop("round"))
        self.memory = {slot: {} for slot in self.memory}
        for name, value in server.items():
            slot, _, own = name.partition("/")
            self.memory[slot][own] = value
        self.engine = HERE.local(self.method)
        self.engine.load({name: value.clone() for name, value in state["engine.safetensors"].items()})


class FaultyRun(RuleBasedStateMachine):
    """A server behind a bad network on a bad disk, beside one that is merely told what was lost."""

    @initialize(name=st.sampled_from(("fedavg", "scaffold", "feddc", "mifa")), quorum=st.integers(1, 4))
    def begin(self, name: str, quorum: int) -> None:
        """Both before the first round."""
        self.folder = Path(tempfile.mkdtemp())
        self.name, self.ours, self.theirs = name, Server(name), Server(name)
        self.network = Injector(self.ours.engine, self.ours.method, HERE.setting, 0, quorum=quorum)
        self.saved: list[tuple[Path, dict[str, State]]] = []  # on our disk, and what they remember in memory

    @rule(faults=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4), seed=st.integers(0, 99))
    def play(self, faults: list[str], seed: int) -> None:
        """A round in which any of these may happen to a message; late ones arrive in later rounds."""
        self.network.engine, self.network.faults, self.network.seed = self.ours.engine, tuple(faults), seed
        self.ours.play(self.network)
        there = self.network.arrived[-1] if self.network.counted[-1] else set()

        def lose(reply: Reply, chance: Chance) -> Reply:
            return reply._replace(arrived=torch.tensor([client in there for client in reply.ids.tolist()]))

        self.theirs.play(changed(self.theirs.engine, lose))

    @rule()
    def save(self) -> None:
        """Write a checkpoint."""
        files = {name: pack(state) for name, state in self.ours.state().items()}
        path = store.save(self.folder, self.ours.round, files, {})
        self.saved = [(old, state) for old, state in self.saved if old != path]
        self.saved.append((path, deepcopy(self.theirs.state())))
        self.saved.sort(key=lambda pair: store.list_all(self.folder).index(pair[0]))

    @precondition(lambda self: self.saved)
    @rule(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), which=st.integers(0, 9))
    def damage(self, place: float, bit: int, which: int) -> None:
        """Flip one bit of the newest checkpoint."""
        path, _ = self.saved.pop(0)
        file = sorted(path.iterdir())[which % len(list(path.iterdir()))]
        raw = bytearray(file.read_bytes())
        raw[int(place * len(raw))] ^= 1 << bit
        file.write_bytes(bytes(raw))

    @rule()
    def crash(self) -> None:
        """All that is in memory is gone: go on from the newest checkpoint that is whole, or from the start."""
        self.ours = Server(self.name)
        found = None
        for path in store.list_all(self.folder):
            try:
                found = store.read(path)
                break
            except store.Damaged:
                continue
        assert (None if found is None else found.path) == (self.saved[0][0] if self.saved else None)
        if found is None:
            self.theirs = Server(self.name)
            return
        self.ours.restore({name: store.tensors(found, name) for name in found.files})
        self.theirs.restore(self.saved[0][1])

    @invariant()
    def the_runs_are_one(self) -> None:
        """Model, memory and every client's state, to the bit."""
        if not hasattr(self, "ours"):
            return
        ours, theirs = self.ours.state(), self.theirs.state()
        assert ours.keys() == theirs.keys()
        for file in ours:
            assert ours[file].keys() == theirs[file].keys()
            for name, value in ours[file].items():
                assert torch.equal(value, theirs[file][name]), name

    def teardown(self) -> None:
        """Leave no folder."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestFaultyRun = FaultyRun.TestCase
TestFaultyRun.settings = settings(
    max_examples=12, stateful_step_count=14, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
