"""Memory of clients in flight is given up when most rows of a matrix are done with, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import fedloom.step
from asynchronous_worlds import around, fly
from fedloom.core.flight import Flight
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.discounts import Polynomial
from fedloom.step import Step
from fedloom.world.channel import Pieces
from world.made import equipped, made
from worlds import METHODS


@pytest.mark.parametrize("name", ["scaffold", "fedspu", "feddd"])
def test_at_most_twice_the_rows_are_kept_and_the_numbers_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = dict(METHODS)[name]()
    refill = "step" if name == "feddd" else "arrival"
    method = replace(base, pace=Buffered(1, 9, refill=refill), stale=AsChange(Polynomial(0.5)))
    here, compact = equipped(made(up=3e3)), fedloom.step.compact

    def played(change: Callable[[Flight], None]) -> tuple[list[Step], bool]:
        """Some steps, and whether a matrix ever had more than twice the rows that are needed."""
        wasted = False

        def watched(flight: Flight) -> None:
            nonlocal wasted
            change(flight)
            needed = Counter(id(task.wave) for task in flight.tasks.values())
            needed += Counter(id(task.trained) for task in flight.tasks.values())
            rows = {id(task.wave): len(task.wave.fates) for task in flight.tasks.values()}
            rows |= {id(task.trained): len(task.trained.ids) for task in flight.tasks.values() if task.trained}
            wasted |= any(count > 2 * needed[matrix] for matrix, count in rows.items())

        monkeypatch.setattr(fedloom.step, "compact", watched)
        return fly(here, method, around(here, method, pieces=Pieces(3, 0.2)), 12).steps, wasted

    (ours, wasted), (theirs, without) = played(compact), played(lambda flight: None)
    assert (wasted, without) == (False, True)
    assert all(torch.equal(one.model, other.model) for one, other in zip(ours, theirs))
