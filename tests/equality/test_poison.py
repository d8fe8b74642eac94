"""What was not sent cannot matter: NaN in its place changes not one bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.method import Method
from fedloom.types import Reply, State, column
from worlds import assert_identical, changed, every_method, everything, play, scattered, world


def fill(values: State, arrived: Tensor, garbage: float) -> State:
    """Garbage in the rows of those who did not arrive; whole numbers cannot be NaN and take -1."""
    wrong = {name: garbage if value.is_floating_point() else -1 for name, value in values.items()}
    return {name: torch.where(column(arrived, value), value, wrong[name]) for name, value in values.items()}


def spoil(garbage: float, losing: bool, masking: bool) -> Callable[[Reply, Chance], Reply]:
    """Random losses and random upload masks, with `garbage` wherever nothing was sent."""

    def change(reply: Reply, chance: Chance) -> Reply:
        arrived, mask, params = reply.arrived, reply.mask, reply.params
        if losing:
            arrived = arrived & (chance.uniform("lost", reply.ids) > 0.4)
        if masking:
            chosen = scattered(chance, reply.ids, params.shape[1], 0.6)
            mask = chosen if mask is None else chosen & mask
        sent = column(arrived, params) if mask is None else mask & column(arrived, params)
        params = torch.where(sent, params, garbage)
        extras, report = (fill(state, arrived, garbage) for state in (reply.extras, reply.report))
        return Reply(reply.ids, params, mask, extras, report, arrived)

    return change


@pytest.mark.parametrize(("losing", "masking"), [(True, False), (False, True), (True, True)])
@every_method
def test_poison_changes_nothing(method: Method, losing: bool, masking: bool) -> None:
    here = world("mlp")

    def run(garbage: float) -> State:
        return everything(play(here, method, changed(here.local(method), spoil(garbage, losing, masking))))

    poisoned = run(torch.nan)
    assert all(value.isfinite().all() for value in poisoned.values())
    assert_identical(poisoned, run(1e30))
