"""A server's learning rate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.mifa import mifa
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.aggregate.ranked_mean import Median
from fedloom.parts.aggregate.server_optimiser import ServerSgd
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.discounts import Polynomial
from pieces import Scattered
from worlds import assert_identical, everything, play, small, world


@pytest.mark.parametrize("method", [Method(), Method(mask=Scattered(), local=SubModel()), mifa()], ids=str)
def test_a_rate_of_one_is_the_aggregate_itself(method: Method) -> None:
    here, method = world("normed"), small(method)
    stepped = replace(method, aggregate=Stepped(method.aggregate))
    ours, theirs = (play(here, one, here.local(one)) for one in (stepped, method))
    assert_identical(everything(ours), everything(theirs))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.5])
@pytest.mark.parametrize("towards", [CoverageMean("uniform"), Median()])
def test_the_model_goes_rate_times_the_way(rate: float, towards: CoverageMean) -> None:
    here = world("normed")
    plain, stepped = small(Method(aggregate=towards)), small(Method(aggregate=Stepped(towards, ServerSgd(rate))))
    whole, part = (play(here, one, here.local(one), rounds=1).model for one in (plain, stepped))
    trained = here.setting.layout.trained
    expected = here.model + (whole - here.model) * rate
    expected[trained:] = here.model[trained:] + (whole - here.model)[trained:] * min(rate, 1.0)
    torch.testing.assert_close(part, expected, rtol=1e-6, atol=1e-7)
    assert trained < len(expected)  # running statistics, which no rate may make negative
    if rate == 0:
        assert torch.equal(part, here.model)


def test_numbers_that_nobody_sent_stay() -> None:
    setting, model = world("mlp").setting, world("mlp").model
    mask = torch.zeros(2, len(model), dtype=torch.bool)
    mask[:, 3] = True
    reply = Reply(torch.arange(2), torch.where(mask, model + 1, model), mask, {}, {}, torch.ones(2, dtype=torch.bool))
    new, _ = Stepped(CoverageMean("uniform"), ServerSgd(0.5))({}, setting, model, reply)
    moved = new - model
    assert float(moved[3]) == pytest.approx(0.5, abs=1e-6)
    assert torch.equal(moved.nonzero().flatten(), torch.tensor([3]))


def test_it_is_what_it_steps_towards() -> None:
    part = Stepped(LatestUpdates(wait=True), ServerSgd(0.5))
    setting, model = world("mlp").setting, world("mlp").model
    assert part.init(setting, model).keys() == LatestUpdates().init(setting, model).keys()
    assert part.note(setting) == LatestUpdates(wait=True).note(setting)
    assert part.record(part.init(setting, model)).keys() == {"heard"}
    assert Stepped(CoverageMean("targets")).reads_weight
    assert not Stepped(Median()).weighs_rows
    assert not part.replaceable
    with pytest.raises(BadExperiment, match="coverage mean"):
        Method(aggregate=Stepped(Median()), stale=AsChange(Polynomial(), "weight"))
    with pytest.raises(BadExperiment, match=r"rate .* is -1"):
        ServerSgd(-1)
