"""A run whose clients are in flight at a checkpoint goes on to the same bits, from every step of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import worlds
from fault.resumes import assert_same, played, prepared, saved, start
from fedloom.codec import Codec
from fedloom.method import Method
from fedloom.methods.fedat import fedat
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Polynomial
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.flight import save_flight
from fedloom.runs.checkpoint.snapshot import FLIGHT, restore_snapshot, take_snapshot
from fedloom.runs.play import ledger_of
from world.made import equipped, made

STEPS = 6
BY_NAME = dict(worlds.METHODS)
FEW = Buffered(2, 8)
PLAIN, FEEDBACK = Codec(), Codec(values="int8", feedback=True)


def of(name: str, pace: Any = FEW, **changes: Any) -> Method:
    """A method of the list without a barrier."""
    return replace(BY_NAME[name](), pace=pace, **{"stale": AsChange(Polynomial(0.5)), **changes})


KINDS: dict[str, tuple[Method, Codec]] = {
    "a buffer": (of("fedavg"), PLAIN),
    "one reply a step": (of("fedavg", Buffered(1, 8), stale=AsModel(0.6, Polynomial(0.5))), PLAIN),
    "a time-out": (of("fedavg", Buffered(3, 6, timeout=30.0, late=False)), PLAIN),
    "replies too old": (of("fedavg", Buffered(2, 8, oldest=1)), PLAIN),
    "replies too old, awaited": (of("fedavg", Buffered(2, 8, oldest=2, too_old="wait", timeout=200.0)), PLAIN),
    "after a step": (of("scaffold", Buffered(3, 8, refill="step")), PLAIN),
    "recalled": (of("fedspu", Buffered(3, 8, refill="step", recall=True)), PLAIN),
    "a window": (of("fedavg", Windowed(0.8, 8)), PLAIN),
    "a window of parts": (of("fjord", Windowed(0.8, 8)), PLAIN),
    "tiers": (of("fedavg", ByTier(2, 3)), PLAIN),
    "tiers of parts": (of("fedrolex", ByTier(3, 2)), PLAIN),
    "fedat": (worlds.small(fedat(2, 3)), PLAIN),
    "bases": (of("scaffold", Buffered(2, 8, hold="bases")), PLAIN),
    "fedspu": (of("fedspu"), PLAIN),
    "fedspu by numbers": (of("fedspu", stale=AsChange(Polynomial(0.5), by="numbers")), PLAIN),
    "fedspu by steps, bases": (of("fedspu", Buffered(2, 8, hold="bases"), stale=AsChange(by="steps")), PLAIN),
    "scaffold": (of("scaffold"), PLAIN),
    "scaffold with feedback": (of("scaffold"), FEEDBACK),
    "feddc": (of("feddc"), PLAIN),
    "feddd, trained when asked": (of("feddd", Buffered(2, 8, refill="step")), PLAIN),
    "feddd with feedback": (of("feddd", Buffered(2, 8, refill="step")), FEEDBACK),
    "kept moments": (of("fedavg-kept-adam"), PLAIN),
    "single numbers": (of("scattered-heavy"), PLAIN),
    "heterofl": (of("heterofl"), PLAIN),
    "mifa": (of("mifa"), PLAIN),
    "ra-fed": (of("ra-fed"), PLAIN),
    "safari": (of("safari"), PLAIN),
    "early stopping": (of("fedspu-stopping"), PLAIN),
    "a choice by loss": (of("power-of-choice", Buffered(2, 8, refill="step")), PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_at_any_step_is_the_straight_one(kind: str, tmp_path: Path) -> None:
    method, codec = KINDS[kind]
    here = equipped(made(availability=0.8))
    straight = prepared(method, codec, here)
    ledger, at = ledger_of(straight.inputs), start(straight)
    paths, snapshots = [], []
    for _ in range(STEPS):
        at = played(straight, ledger, at, 1)
        paths.append(saved(straight, ledger, at, tmp_path))
        snapshots.append(take_snapshot(straight, ledger, at).copied())
    in_flight = [len(snapshot.tensors[FLIGHT]["tasks.numbers"]) for snapshot in snapshots]
    assert any(in_flight) != method.pace.recall
    for step, path in enumerate(paths[:-1], 1):
        other = prepared(method, codec, here)
        table = ledger_of(other.inputs)
        again = restore_snapshot(other, table, store.read(path))
        assert_same(snapshots[step - 1], take_snapshot(other, table, again))  # what was read is what was written
        for snapshot in snapshots[step:]:
            again = played(other, table, again, 1)
            assert_same(snapshot, take_snapshot(other, table, again))


def test_what_tasks_share_is_saved_once_and_only_rows_that_are_needed(tmp_path: Path) -> None:
    method = of("scaffold", Buffered(1, 8))
    here = equipped(made(up=3e3))
    straight = prepared(method, PLAIN, here)
    at = played(straight, ledger_of(straight.inputs), start(straight), 5)
    assert at.flight is not None
    tasks, held = list(at.flight.tasks.values()), save_flight(at.flight)
    bases = {task.base for task in tasks}
    trained = [task for task in tasks if task.trained is not None]
    assert len(held["rows.reply.params"]) == len(trained) < len(tasks) == 7
    assert len(held["rows.task.extras.control"]) == len(bases) < len(tasks)
    assert {name for name in held if name.startswith("model.")} == {f"model.{base}" for base in bases}


def test_runs_with_a_barrier_are_saved_as_before(tmp_path: Path) -> None:
    method = BY_NAME["fedavg"]()
    straight = prepared(method, PLAIN, equipped())
    ledger = ledger_of(straight.inputs)
    assert FLIGHT not in take_snapshot(straight, ledger, played(straight, ledger, start(straight), 1)).tensors
