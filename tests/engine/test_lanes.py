"""Clients that train by themselves: in turn or one on every core, with the numbers of `Loop`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.work import Work
from fedloom.engine.lanes import Lanes
from fedloom.engine.local import Local, local_engine
from fedloom.engine.plan import ClientWay
from fedloom.errors import BadExperiment, RunStopped
from fedloom.layout import copied
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fjord import fjord
from pieces import CLASSES
from worlds import METHODS, World, assert_close, assert_identical, everything, play, small, states_of, world, world_of

BY_THEMSELVES = [way for way in get_args(ClientWay) if way != "together"]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def played(here: World, method: object, way: ClientWay, count: int = 2) -> tuple[object, object]:
    """Three rounds this way, and the engine."""
    engine = local_engine(here.clients(method), way=way)
    with threads(count):
        return play(here, method, engine), engine


@pytest.mark.parametrize("way", BY_THEMSELVES)
@pytest.mark.parametrize("name", ["fedavg", "fedavg-adam", "scaffold", "fjord", "feddc", "fedumf", "scattered-heavy"])
def test_every_way_equals_the_loop(name: str, way: ClientWay) -> None:
    here, method = world("normed"), dict(METHODS)[name]()
    run, engine = played(here, method, way)
    loop = here.loop(method)
    slow = play(here, method, loop)
    assert_close(everything(run), everything(slow), 1e-5)
    ids = engine.clients.states.known().tolist()
    assert_close(states_of(engine, ids, here.model), states_of(loop, ids, here.model), 5e-5)
    for ours, theirs in zip(run.replies, slow.replies):
        assert torch.equal(ours.ids, theirs.ids)
        assert_close(ours.report, theirs.report, 1e-5)


@pytest.mark.parametrize("network", ["normed", "dropout", "text"])
def test_the_number_of_cores_changes_no_bit(network: str) -> None:
    here, method = world(network), small(fedavg())
    one, two, five = (played(here, method, "per-core", count)[0] for count in (1, 2, 5))
    assert_identical(everything(one), everything(two))
    assert_identical(everything(one), everything(five))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("way", ["in-turn", "per-core"])
def test_batches_are_counted_once(way: ClientWay) -> None:
    here, method = world("normed"), small(fedavg())
    here = here._replace(setting=replace(here.setting, module=copied(here.setting.module)))
    engine = local_engine(here.clients(method), way=way)
    before = counted(engine)
    with threads(2):
        run = play(here, method, engine)
    steps = sum(int(reply.report["steps"].sum()) for reply in run.replies)
    assert counted(engine) == {name: value + steps for name, value in before.items()} != {}


def counted(engine: Local) -> dict[str, int]:
    """What norm layers have counted."""
    return {name: int(value) for name, value in engine.save().items() if name.startswith("counts.")}


def test_lanes_do_not_outlive_an_error() -> None:
    lanes = Lanes(world("mlp").setting)
    seen: list[int] = []

    def train(lane: object, piece: int) -> int:
        seen.append(piece)
        if piece == 3:
            raise ValueError("no")
        return piece

    with threads(2), pytest.raises(ValueError, match="no"):
        list(lanes.each(train, iter(range(1000))))
    assert max(seen) < 20
    assert not [one for one in threading.enumerate() if one.name.startswith("fedloom-lane")]
    assert torch.get_num_threads() == 1
    with threads(2):
        assert [done for _, done in lanes.each(lambda lane, piece: piece * 2, iter(range(3)))] == [0, 2, 4]


def test_an_interrupt_stops_clients_within_a_step() -> None:
    here = world("mlp")
    method, began = small(fedavg(), work=Work(steps=100_000, batch=6)), threading.Event()
    engine = local_engine(here.clients(method), way="per-core")
    finish = engine.clients.gather

    def gather(*given: object) -> object:
        if began.is_set():
            raise KeyboardInterrupt  # as Ctrl-C in the thread that waits
        began.set()
        return finish(*given)

    engine.clients.gather = gather
    with threads(2), pytest.raises(KeyboardInterrupt):
        play(here, method, engine, rounds=1)
    assert not [one for one in threading.enumerate() if one.name.startswith("fedloom-lane")]


def test_no_more_clients_are_read_ahead_than_said() -> None:
    lanes, read, done = Lanes(world("mlp").setting, most=2), [], []

    def pieces() -> Iterator[int]:
        for piece in range(50):
            read.append(piece)
            assert len(read) - len(done) <= 7
            yield piece

    with threads(8):
        for piece, _ in lanes.each(lambda lane, piece: None, pieces()):
            done.append(piece)
    assert done == read == list(range(50))


class Viewing(nn.Module):
    """A network whose own code needs channels one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.then, self.last = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        x = self.then(self.first(x))
        return self.last(x.view(len(x), 16))


def test_ways_that_do_not_fit_say_why() -> None:
    here, base = world("mlp"), world("normed")
    with pytest.raises(BadExperiment, match="no convolutions over images; these fit: together, in-turn, per-core"):
        local_engine(here.clients(small(fedavg())), way="per-core-channels-last")
    viewing = world_of(Viewing(), base.data, base.shards.examples.split(base.shards.sizes))
    with pytest.raises(BadExperiment, match="the network refuses it"):
        local_engine(viewing.clients(small(fedavg())), way="in-turn-channels-last")


def test_sub_models_are_cut_on_every_core_too() -> None:
    here, method = world("normed"), small(fjord())
    run, engine = played(here, method, "per-core")
    assert engine.plan.parts == "sliced"
    assert_close(everything(run), everything(play(here, method, here.local(method))), 1e-5)


def test_errors_of_a_lane_reach_the_caller() -> None:
    here, method = world("mlp"), small(fedavg())
    engine = local_engine(here.clients(method), way="per-core")
    for lane in engine.lanes._take(2) if engine.lanes is not None else []:
        lane.setting = replace(lane.setting, goal=replace(lane.setting.goal, loss=broken))
    with threads(2), pytest.raises(RunStopped, match="broken"):
        play(here, method, engine, rounds=1)


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that fails."""
    raise RunStopped("broken")
