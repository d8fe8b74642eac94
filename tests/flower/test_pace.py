"""Waits in Flower that are shortened: which they are in this release, how long they become, how they are reckoned."""

from __future__ import annotations

import sys
import time
from functools import partial

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("flwr")

import flwr.superlink.grid.http_grid as http_grid
import flwr.supernode.runtime.run_clientapp as run_clientapp
import flwr.supernode.start_client_internal as loop
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

from fedloom.flower.protocol import pace


def test_looks_follow_soon_and_then_every_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pacer = pace.Pacer()
    for _ in range(9):
        pacer.sleep(3)
    assert slept == pytest.approx([0.5, 0.5, 0.5, 0.75, 1.125, 1.6875, 2.53125, 3.0, 3.0])
    slept.clear()
    pacer.sleep(0.5)  # its app works
    pacer.sleep(3)
    assert slept == [pace.REPLY, pace.FIRST]


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_looks_are_counted_as_they_are_made(one: float, other: float) -> None:
    """Within one look of the pacer's own, and no fewer for more time."""
    at, count = 0.0, 1
    while (at := at + pace.look_after(at)) <= one:
        count += 1
    assert abs(pace.looks_within(one) - count) <= 1
    assert pace.looks_within(0) == 0
    assert pace.looks_within(min(one, other)) <= pace.looks_within(max(one, other))


def test_this_flower_waits_where_we_think(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", time)
    for module, name in ((run_clientapp, "pull_and_inflate_object_from_tree"), (http_grid, "pull_objects")):
        monkeypatch.setattr(module, name, getattr(module, name))
    pace.pace_looks()
    pace.pace_pulls()
    assert loop.time.sleep is not time.sleep
    assert loop.time.monotonic is time.monotonic
    for place, name in pace.PULLERS:
        assert isinstance(getattr(sys.modules[place], name), partial)


def test_an_object_on_its_way_is_had_soon_after_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower alone asks after 1 and then 2 seconds."""
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)
    pace.pace_pulls()
    began = time.monotonic()

    def pull(name: str) -> bytes:
        if time.monotonic() < began + 1.1:
            raise ObjectUnavailableError(name)
        return b"it"

    assert http_grid.pull_objects(["a"], pull) == {"a": b"it"}
    assert 1.1 <= time.monotonic() - began < 1.1 + 2 * pace.SLOWEST
