"""What was not sent cannot matter: NaN in its place changes not one bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task, column
from fedloom.errors import BadExperiment
from fedloom.method import Method
from pieces import Forced, scattered
from worlds import assert_identical, changed, engine_of, every_method, everything, play, world


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
        return everything(play(here, method, changed(here.local(method), spoil(garbage, losing, masking)), rounds=2))

    poisoned = run(torch.nan)
    assert not any(value.isnan().any() for value in poisoned.values())
    assert_identical(poisoned, run(1e30))


@every_method
def test_what_is_not_sent_down_is_not_read(method: Method) -> None:
    """Of the model; from the second contact on, since a client may begin with a whole one."""
    here, forced = world("mlp"), Forced(((3,), (3,), (3,)))
    try:
        alone = replace(method, select=forced)
    except BadExperiment as why:  # its clients need a selection of their own kind
        pytest.skip(str(why))

    def run(garbage: float | None) -> State:
        engine = here.local(alone)

        def send(ids: Tensor, task: Task, chance: Chance) -> Reply:
            if garbage is not None and task.mask is not None and task.round > 1:
                task = task._replace(model=torch.where(task.mask[0], task.model, garbage))
            return engine.train(ids, task, chance)

        return everything(play(here, alone, engine_of(send)))

    assert_identical(run(torch.nan), run(None))
