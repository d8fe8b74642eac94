"""Tests of the properties that parts declare."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Sampling
from fedloom.core.types import Cohort, Setting, State
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.parts import (
    Affordable,
    AsTrained,
    Bernoulli,
    Everyone,
    FastestWithinBudget,
    KeepOwn,
    LatencyAndLoss,
    PowerOfChoice,
    Prune,
    Select,
    SomeSend,
    StillRunning,
    SubModel,
    Tiers,
    UnheardFirst,
    Uniform,
    Utility,
    WithinDeadline,
)
from worlds import world

SELECTS: list[tuple[Select, int, Select | None, Sampling | None, bool]] = [  # of 20 clients; with a count of 3
    (Uniform(), 10, Uniform(3), Sampling(cohort=10), False),
    (Uniform(30), 20, Uniform(3), Sampling(cohort=30), False),
    (Bernoulli(0.3), 20, None, Sampling(probability=0.3), False),
    (Everyone(), 20, None, Sampling(probability=1.0), True),
    (SomeSend(5), 20, SomeSend(3), Sampling(cohort=5), True),
    (SomeSend(5, 0.4), 20, None, Sampling(probability=0.4), True),
    (UnheardFirst(), 10, UnheardFirst(3), None, False),
    (StillRunning(), 10, StillRunning(3), None, False),
    (PowerOfChoice(4), 4, PowerOfChoice(3), None, False),
    (WithinDeadline(9.0, 6), 6, WithinDeadline(9.0, 3), None, False),
    (FastestWithinBudget(), 20, None, None, False),
    (Utility(), 20, Utility(count=3), None, False),
    (Utility(count=7), 7, Utility(count=3), None, False),
]


@pytest.mark.parametrize(("part", "size", "counted", "drawn", "whole"), SELECTS, ids=str)
def test_how_many_are_selected(
    part: Select, size: int, counted: Select | None, drawn: Sampling | None, whole: bool
) -> None:
    assert part.cohort_size(20) == size
    assert part.with_count(3) == counted
    assert part.drawn == drawn
    assert part.whole_fleet == whole
    assert part.needs_losses == isinstance(part, PowerOfChoice | Utility)
    assert part.skips_stopped == isinstance(part, StillRunning)


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_is_no_larger_than_declared(name: str) -> None:
    setting = world("mlp").setting
    if setting.fleet.devices is None and name in ("fedcs", "oort"):
        pytest.skip("needs devices")
    method, model = METHODS[name](), torch.zeros(setting.layout.total)
    cohort, _ = method.select(method.select.init(setting, model), setting, Chance(1, 1))
    assert len(cohort.ids) <= method.select.cohort_size(setting.fleet.size)
    assert not method.select.whole_fleet or len(cohort.ids) == setting.fleet.size


def test_parts_that_reckon_with_work_are_given_it() -> None:
    work = Work(epochs=2, batch=7)
    for part in (FastestWithinBudget(), WithinDeadline(), Utility(), LatencyAndLoss(), Affordable()):
        assert part.for_work(work).work == work  # type: ignore[attr-defined]
    assert Uniform(4).for_work(work) == Uniform(4)
    assert Tiers().for_work(work) == Tiers()


def test_the_server_knows_masks_unless_clients_choose() -> None:
    assert Method().masks_known
    assert Method(mask=METHODS["fjord"]().mask, local=SubModel()).masks_known
    assert not Method(local=Prune(), upload=AsTrained()).masks_known
    assert not Method(local=KeepOwn(), upload=METHODS["feddd"]().upload).masks_known


@dataclass(frozen=True)
class FirstClient(Select):
    """A part of a user that declares nothing."""

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        return Cohort(torch.tensor([0]), torch.tensor([True])), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: object) -> State:
        return memory


def test_an_own_part_is_taken_to_be_what_is_safe() -> None:
    part = FirstClient()
    assert (part.drawn, part.with_count(3), part.cohort_size(20)) == (None, None, 20)
    assert part.learns  # it observes replies
    assert (part.whole_fleet, part.skips_stopped, part.needs_losses) == (False, False, False)
