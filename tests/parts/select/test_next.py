"""Selects asked for one client after another: with everybody free the first are the cohort of a round."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.part import NobodyLeft, Select
from fedloom.errors import BadExperiment
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.power_of_choice import PowerOfChoice
from fedloom.parts.select.still_running import StillRunning
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.select.utility import Utility
from fedloom.parts.select.within import FastestWithinBudget, WithinDeadline
from worlds import SIZES, world

N = len(SIZES)
SELECTS = [
    Uniform(5), UnheardFirst(5), StillRunning(5), PowerOfChoice(5, 9), Everyone(), Bernoulli(0.4), Utility(count=5),
    FastestWithinBudget(0.5), WithinDeadline(4000.0, 6),
]  # fmt: skip


def memory_of(select: Select) -> dict[str, torch.Tensor]:
    """Memory in which some clients are known."""
    memory = select.init(world().setting, world().model)
    known = torch.arange(N) % 3 == 0
    changes = {"heard": known, "stopped": known, "tried": known, "last": known.long(), "utility": known * 3.0}
    changes["loss"] = torch.where(known, torch.arange(N) / 7, torch.inf)
    return {name: changes[name].to(value.dtype) if name in changes else value for name, value in memory.items()}


@pytest.mark.parametrize("select", SELECTS, ids=repr)
@pytest.mark.parametrize("round_", [1, 2, 9])
def test_the_first_of_all_are_the_cohort(select: Select, round_: int) -> None:
    here, chance, memory = world(), Chance(3, round_), memory_of(select)
    cohort, _ = select(memory, here.setting, chance)
    most = 6 if isinstance(select, WithinDeadline) else len(cohort.ids)
    ids, _ = select.next(memory, here.setting, chance, torch.ones(N, dtype=torch.bool), most)
    assert ids.sort().values.tolist() == cohort.ids.tolist()


@pytest.mark.parametrize("select", [one for one in SELECTS if one.alone], ids=repr)
def test_the_order_of_clients_does_not_depend_on_how_many_are_asked(select: Select) -> None:
    here, chance, memory = world(), Chance(3, 4), memory_of(select)
    free = torch.arange(N) != 2
    whole, _ = select.next(memory, here.setting, chance, free, N)
    assert 2 not in whole.tolist()
    assert len(set(whole.tolist())) == len(whole)
    for count in range(len(whole) + 1):
        some, _ = select.next(memory, here.setting, chance, free, count)
        assert some.tolist() == whole.tolist()[:count]
    if isinstance(select, Uniform | UnheardFirst | StillRunning):  # who is asked does not move the others
        free = free & (torch.arange(N) != int(whole[0]))
        rest, _ = select.next(memory, here.setting, chance, free, N)
        assert rest.tolist() == whole.tolist()[1:]


def test_cohorts_that_cannot_be_chosen_one_by_one_are_refused() -> None:
    free = torch.ones(N, dtype=torch.bool)
    with pytest.raises(BadExperiment, match="SomeSend chooses whole cohorts"):
        SomeSend(3).next({}, world().setting, Chance(0, 1), free, 3)
    select = Utility(sampling=True)
    with pytest.raises(BadExperiment, match="sampling=False"):
        select.next(memory_of(select), world().setting, Chance(0, 1), free, 3)


def test_nobody_left_is_said() -> None:
    memory = {"stopped": torch.ones(N, dtype=torch.bool)}
    with pytest.raises(NobodyLeft):
        StillRunning(3).next(memory, world().setting, Chance(0, 1), ~memory["stopped"], 3)
