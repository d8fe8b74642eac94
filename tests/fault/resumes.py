"""Runs that are played, saved, put into fresh engines and compared, all to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import worlds
from fedloom.codec import Codec
from fedloom.core.types import State
from fedloom.method import Method
from fedloom.runs.build import Prepared
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.snapshot import Progress, Snapshot, take_snapshot
from fedloom.runs.checkpoint.tensors import bytes_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs
from fedloom.runs.ledger import Ledger
from fedloom.runs.one_round import play_one
from fedloom.step import begin_flight
from fedloom.world.channel import Bursty
from fedloom.world.message_parts import MessageParts
from fedloom.world.simulated import Simulated
from fedloom.world.virtual_time import VirtualTime
from fedloom.world.wire import Wire


def prepared(method: Method, codec: Codec, here: worlds.World) -> Prepared:
    """The tiny fleet in a world with bursts of losses, its replies through a codec."""
    engine = here.local(method)
    parts = MessageParts(method, here.setting, codec)
    wire = Wire(engine, parts, here.setting)
    world = Simulated(wire, method, here.setting, price=parts.prices, channel=Bursty(enter=0.3, leave=0.5))
    inputs = Inputs(
        method, here.setting, here.setting.module, here.model, here.data, here.shards, None, None, here.data, 3,
        list(range(len(worlds.SIZES))), None, "", "own",
    )  # type: ignore[arg-type]  # where things lie is not asked for  # fmt: skip
    return Prepared(inputs, world, [], engine, timed=VirtualTime(world))


def played(built: Prepared, ledger: Ledger, at: Progress, rounds: int) -> Progress:
    """Some rounds more."""
    for _ in range(rounds):
        at = play_one(Experiment(rounds=100, evaluate_every=3, seed=worlds.SEED), built, ledger, at)
    return at


def start(built: Prepared) -> Progress:
    """Before the first round."""
    method, setting, model = built.inputs.method, built.inputs.setting, built.inputs.model
    flight = None if method.pace.barrier else begin_flight(method, setting, model)
    return Progress(0, model, method.init(setting, model), flight)


def saved(built: Prepared, ledger: Ledger, at: Progress, folder: Path) -> Path:
    """A checkpoint of the run."""
    return store.save(folder, at.round, take_snapshot(built, ledger, at).files(), {})


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a clock says; NaN made comparable."""
    return [
        {k: repr(v) for k, v in row.items() if k not in ("wall_seconds", "evaluation_seconds", "personal_seconds")}
        for row in rows
    ]


def assert_same(ours: Snapshot, theirs: Snapshot) -> None:
    """All that two checkpoints would hold, but for the clock of the machine."""
    assert ours.tensors.keys() == theirs.tensors.keys()
    for file in ours.tensors:
        one, other = _by_task(ours.tensors[file]), _by_task(theirs.tensors[file])
        assert list(one) == list(other)  # columns stand in the same order too
        for name, value in one.items():
            assert bytes_of(value) == bytes_of(other[name]), name  # NaN is equal to itself here
    assert untimed(ours.rows) == untimed(theirs.rows)


def _by_task(file: State) -> State:
    """A file with a row for each task, however many of them share it; other files are as they are."""
    rows = {name: value[file[_whose(name)]] for name, value in file.items() if _whose(name) in file}
    none = {name: value < 0 for name, value in file.items() if name.startswith("whose.")}
    return {**file, **rows, **none}


def _whose(name: str) -> str:
    """The name of the column that says which row is whose."""
    return name.replace("rows.", "whose.", 1) if name.startswith("rows.") else ""
