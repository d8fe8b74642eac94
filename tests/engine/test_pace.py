"""The way that is measured: the fastest is taken, remembered, taken again and never mixed up with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedloom.core.optimiser import Adam
from fedloom.engine import pace
from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.local import Engines, local_engine
from fedloom.engine.plan import ClientWay, lines_of
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fjord import fjord
from fedloom.methods.scaffold import scaffold
from worlds import World, small, world

ADAM = Adam(rate=0.01)  # the C code does not take it


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedloom" / "ways"


def engines(here: World | None = None, method: object = None) -> Engines:
    """The engines of a world."""
    here, method = here or world("normed"), method or small(fedavg(), optimiser=ADAM)
    return Engines(here.clients(method), fastest_gradient(here.setting, here.data), 100)


Clock = Callable[[dict[str, float]], list[tuple[str, int, int]]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Ways take as many seconds for a client's step as the test says; what was timed is noted."""

    def told(seconds: dict[str, float]) -> list[tuple[str, int, int]]:
        seen: list[tuple[str, int, int]] = []

        def timed(self: object, way: ClientWay, clients: int, steps: int) -> float:
            seen.append((way, clients, steps))
            return seconds[way] * clients * steps

        monkeypatch.setattr(pace._Watch, "seconds", timed)
        return seen

    return told


TIMES = {"together": 0.03, "in-turn": 0.02, "per-core": 0.01}


def test_the_fastest_is_taken(clock: Clock) -> None:
    clock({**TIMES, "per-core-channels-last": 0.02})
    way, measured = pace.fastest_way(engines(), 8)
    assert way == "per-core"
    assert dict(measured) == pytest.approx(
        {"together": 30, "in-turn": 20, "per-core": 10, "per-core-channels-last": 20}
    )


def test_channels_last_is_tried_where_the_way_is_not_far_behind(clock: Clock) -> None:
    seen = clock({**TIMES, "in-turn": 0.005, "in-turn-channels-last": 0.004})
    assert pace.fastest_way(engines(), 8)[0] == "in-turn-channels-last"
    assert {way for way, *_ in seen} == {"together", "in-turn", "per-core", "in-turn-channels-last"}
    lasts = {"in-turn-channels-last": 0.01, "per-core-channels-last": 0.008}
    seen = clock({"together": 0.05, "in-turn": 0.012, "per-core": 0.013, **lasts})
    assert pace.fastest_way(engines(), 7)[0] == "per-core-channels-last"
    assert {way for way, *_ in seen} >= set(lasts)


def test_one_client_a_core_is_taken_where_ways_are_even(clock: Clock) -> None:
    clock({"together": 0.03, "in-turn": 0.0100, "per-core": 0.0105, "per-core-channels-last": 0.02,
           "in-turn-channels-last": 0.02})  # fmt: skip
    assert pace.fastest_way(engines(), 8)[0] == "per-core"


def test_long_steps_are_timed_once(clock: Clock) -> None:
    seen = clock({**dict.fromkeys(TIMES, 20.0), "per-core-channels-last": 30.0, "in-turn-channels-last": 30.0})
    pace.fastest_way(engines(), 8)
    assert len(seen) <= 6
    assert all(clients * steps == 1 for _, clients, steps in seen)  # one thread: one client


def test_a_hopeless_way_is_timed_once(clock: Clock) -> None:
    seen = clock({"together": 0.5, "in-turn": 0.02, "per-core": 0.01, "per-core-channels-last": 0.01})
    pace.fastest_way(engines(), 8)
    assert sum(way == "together" for way, *_ in seen) == 1


def test_measuring_changes_nothing() -> None:
    made = engines()
    before = {name: value.clone() for name, value in made.clients.save().items()}
    model, x = world("normed").model.clone(), made.clients.data.x.clone()
    way, measured = pace.fastest_way(made, 8)
    assert way in made.ways()
    assert dict(measured)[way] <= pace.EVEN * min(dict(measured).values())
    assert {"together", "in-turn", "per-core"} <= dict(measured).keys()
    after = made.clients.save()
    assert after.keys() == before.keys()  # nobody was met
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(world("normed").model, model)
    assert torch.equal(made.clients.data.x, x)


def test_what_was_found_is_remembered(cache: Path, clock: Clock) -> None:
    seen = clock({**TIMES, "per-core-channels-last": 0.02})
    first = pace.fastest_way(engines(), 8)
    assert len(list(cache.iterdir())) == 1
    timed = len(seen)
    clock({"together": 0.001, **{way: 0.02 for way in (*TIMES, "in-turn-channels-last") if way != "together"}})
    assert pace.fastest_way(engines(), 8) == first
    assert len(seen) == timed


@pytest.mark.parametrize(
    "change",
    [
        lambda: engines(world("dropout")),
        lambda: engines(method=small(fedavg(), optimiser=replace(ADAM, clip=1.0), work=fedavg().work)),
        lambda: engines(method=small(fedavg(), optimiser=ADAM, work=replace(small(fedavg()).work, batch=3))),
        lambda: engines(method=small(scaffold(), optimiser=ADAM)),
        lambda: replace(engines(), chunk=2),
    ],
)
def test_other_work_is_measured_anew(change: Callable[[], Engines]) -> None:
    assert pace._key(engines(), 8) != pace._key(change(), 8)
    assert pace._key(engines(), 8) != pace._key(engines(), 7)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"way": "per-core"}', '{"way": "flying", "measured": {}}'])
def test_a_damaged_memory_is_replaced(text: str, cache: Path, clock: Clock) -> None:
    clock({**TIMES, "per-core-channels-last": 0.02})
    pace.fastest_way(engines(), 8)
    (file,) = cache.iterdir()
    file.write_text(text)
    assert pace.fastest_way(engines(), 8)[0] == "per-core"
    assert json.loads(file.read_text())["way"] == "per-core"


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path, clock: Clock) -> None:
    clock({**TIMES, "per-core-channels-last": 0.02})
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    assert pace.fastest_way(engines(), 8)[0] == "per-core"


def test_what_is_known_is_not_measured() -> None:
    def never(engines: Engines) -> tuple[ClientWay, tuple[()]]:
        raise AssertionError("measured")

    here = world("mlp")
    native = local_engine(here.clients(small(fedavg())), pick=never)
    assert native.plan.steps[0] == "native"
    assert native.plan.clients == "together"


def test_a_plan_tells_what_was_measured() -> None:
    measured = (("together", 31.0), ("per-core", 12.5))
    here = world("normed")
    engine = local_engine(here.clients(small(fjord(), optimiser=ADAM)), pick=lambda made: ("per-core", measured))
    lines = dict(lines_of(engine.plan.record()))
    assert lines["clients"].startswith("per-core: every core")
    assert "together 31, per-core 12.5" in lines["measured"]
    assert lines["sub-models"].startswith("sliced")
    assert lines["not stacked"] == "clients train per-core"
