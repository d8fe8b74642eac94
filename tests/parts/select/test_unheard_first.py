"""Clients that never answered are asked first; after that the draw equals `Uniform`."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform
from worlds import world

HERE = world("mlp")


def heard(ids: torch.Tensor, arrived: torch.Tensor) -> Reply:
    """A reply with ids and nothing else."""
    return Reply(ids, HERE.model.expand(len(ids), -1), None, {}, {}, arrived)


def test_all_are_asked_before_anyone_is_asked_again() -> None:
    part = UnheardFirst(5)
    memory, asked = part.init(HERE.setting, HERE.model), []
    for number in (1, 2, 3):
        cohort, memory = part(memory, HERE.setting, Chance(2, number))
        assert torch.equal(cohort.ids, cohort.ids.sort().values)
        assert cohort.authorised.all()
        asked.append(cohort.ids)
        memory = part.observe(memory, HERE.setting, HERE.model, heard(cohort.ids, cohort.authorised))
    assert torch.equal(asked[0], Uniform(5)({}, HERE.setting, Chance(2, 1))[0].ids)
    assert len(torch.cat(asked[:2]).unique()) == 10
    assert torch.cat(asked).unique().tolist() == list(range(12))
    for number in range(4, 9):
        ids = part(memory, HERE.setting, Chance(2, number))[0].ids
        assert torch.equal(ids, Uniform(5)({}, HERE.setting, Chance(2, number))[0].ids)


def test_those_who_did_not_answer_are_asked_again() -> None:
    part = UnheardFirst(8)
    first, memory = part(part.init(HERE.setting, HERE.model), HERE.setting, Chance(2, 1))
    memory = part.observe(memory, HERE.setting, HERE.model, heard(first.ids, first.ids < 6))
    lost = set(first.ids[first.ids >= 6].tolist())
    second = set(part(memory, HERE.setting, Chance(2, 2))[0].ids.tolist())
    assert lost
    assert lost <= second
    assert set(range(12)) - set(first.ids.tolist()) <= second


def test_small_fleets_take_part_whole_and_none_is_refused() -> None:
    cohort, _ = UnheardFirst(50)(UnheardFirst(50).init(HERE.setting, HERE.model), HERE.setting, Chance(2, 1))
    assert cohort.ids.tolist() == list(range(12))
    with pytest.raises(BadExperiment, match="count of clients a round is 0"):
        UnheardFirst(0)
