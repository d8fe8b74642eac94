"""A resumed run is the undisturbed run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import worlds
from fedloom.checkpoint import store
from fedloom.checkpoint.saver import Checkpoints
from fedloom.checkpoint.snapshot import Reached, put_back, take
from fedloom.checkpoint.tensors import bytes_of
from fedloom.codec import Codec
from fedloom.errors import BadExperiment, RunStopped
from fedloom.evaluate.accuracy import Score
from fedloom.experiment import Experiment
from fedloom.ledger import Ledger
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.run import Result, resume, run
from fedloom.select.uniform import Uniform
from fedloom.simulation import Simulation
from fedloom.world.channel import Bursty
from fedloom.world.simulated import Simulated, World
from fedloom.world.wire import Wire

# ---- every method, by its pieces: play two rounds, save, put back into fresh engines, play two more


def simulation(method: Method, codec: Codec) -> Simulation:
    """The tiny fleet in a world with bursts of losses, its replies through a codec."""
    here = worlds.world("mlp")
    engine = here.local(method)
    wire = Wire(engine, method, here.setting, codec)
    world = Simulated(wire, method, here.setting, World(channel=Bursty(enter=0.3, leave=0.5)), wire.price)
    clients = list(range(len(worlds.SIZES)))
    return Simulation(
        method, here.setting, here.setting.module, engine, wire, world, here.model, here.data, None, clients, 3, [""]
    )


def played(world: Simulation, ledger: Ledger, at: Reached, rounds: int) -> Reached:
    """Some rounds more."""
    from fedloom.run import _round

    for _ in range(rounds):
        at = _round(Experiment(rounds=100, evaluate_every=3, seed=worlds.SEED), world, ledger, at)
    return at


def start(world: Simulation) -> Reached:
    """Before the first round."""
    return Reached(0, world.model, world.method.init(world.setting, world.model))


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a clock says; NaN made comparable."""
    return [{k: repr(v) for k, v in row.items() if k != "wall_seconds"} for row in rows]


@pytest.mark.parametrize("codec", [Codec(), Codec("int8", feedback=True)], ids=["float32", "int8-feedback"])
@worlds.every_method
def test_straight_equals_resumed(method, codec, tmp_path):
    straight, ledger = simulation(method, codec), Ledger(list(range(len(worlds.SIZES))))
    at = played(straight, ledger, start(straight), 2)
    path = store.save(tmp_path, 2, take(straight, ledger, at).files(), {})
    at = played(straight, ledger, at, 2)

    other, fresh = simulation(method, codec), Ledger(list(range(len(worlds.SIZES))))
    again = put_back(other, fresh, store.read(path))
    assert again.round == 2
    again = played(other, fresh, again, 2)

    ours, theirs = take(straight, ledger, at), take(other, fresh, again)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for file in ours.tensors:
        assert list(ours.tensors[file]) == list(theirs.tensors[file])  # columns stand in the same order too
        for name, value in ours.tensors[file].items():
            assert bytes_of(value) == bytes_of(theirs.tensors[file][name]), name  # NaN is equal to itself here
    assert untimed(ours.rows) == untimed(theirs.rows)
