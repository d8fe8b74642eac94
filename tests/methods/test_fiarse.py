"""FIARSE: FedAvg where everybody has everything, masked descent without the factor, and what the factor is."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.methods.fiarse import Thresholded, fiarse
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.largest import Largest
from worlds import assert_close, everything, played, small, world

PLAIN = small(Method(aggregate=CoverageMean("uniform")))


@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_whole_models_are_fedavg_with_equal_weights(network: str) -> None:
    assert_close({"": played(network, small(fiarse((1.0,)))).model}, {"": played(network, PLAIN).model}, 2e-6)


def test_one_step_without_the_factor_is_masked_descent() -> None:
    one = Work(steps=1, batch=6)
    masked = Method(
        allocate=Tiers((0.5, 0.25)), mask=Largest("model"), local=SubModel(own_part=False),
        aggregate=CoverageMean("uniform"),
    )  # fmt: skip
    without = small(fiarse((0.5, 0.25), factor=False), work=one)
    assert_close({"": played("cnn", without).model}, {"": played("cnn", small(masked, work=one)).model}, 1e-6)
    assert not torch.equal(played("cnn", small(fiarse((0.5, 0.25)), work=one)).model, played("cnn", without).model)


@pytest.mark.parametrize("scope", ["layer", "stage", "model"])
def test_masks_are_nested_and_of_the_share(scope: str) -> None:
    here, shares = world("normed"), torch.tensor([0.1, 0.4, 0.7])
    mask = Largest(scope)({}, here.setting, here.model, torch.arange(3), shares, Chance(1, 1))[0].mask  # type: ignore[arg-type]
    assert mask is not None
    assert (mask[0] <= mask[1]).all()
    assert (mask[1] <= mask[2]).all()
    layered = torch.zeros(len(here.model), dtype=torch.bool)
    groups = [[layer] for layer in here.setting.layers] if scope != "model" else [list(here.setting.layers)]
    for group in groups:
        places = torch.cat([torch.arange(len(here.model))[span.place] for layer in group for span in layer.spans])
        layered[places] = True
        assert mask[:, places].sum(1).tolist() == [int(share * len(places) + 1e-6) for share in (0.1, 0.4, 0.7)]
    assert mask[:, ~layered].all()
    names = [span.name for layer in here.setting.layers for span in layer.spans]
    assert names == ["0.weight", "0.bias", "5.weight", "5.bias"]
    assert [layer.name for layer in here.setting.layers] == ["0", "5"]


def test_the_factor_is_the_chain_rule_through_the_mask() -> None:
    x = torch.tensor([[0.1, -0.2, 0.25, -0.5, 3.0]], requires_grad=True)
    up, theta = torch.tensor([[1.0, 2.0, -1.0, 0.5, 1.0]]), 0.2
    size = x.detach().abs()
    soft = torch.where(size >= theta, 2 * theta / (size + theta) ** 2, 0.0)  # the surrogate of the mask's slope
    on = (size >= theta).float()
    mask = on + soft * (x.abs() - size)
    ((x * mask) * up).sum().backward()
    task = played("mlp", small(fiarse())).tasks[0]._replace(
        model=torch.full((5,), theta), mask=None, share=torch.tensor([0.5]),
        extras={"groups": torch.ones(1, 5, dtype=torch.int32), "cuts": torch.zeros(1, 2, dtype=torch.int32)},
    )  # fmt: skip
    found = Thresholded().correct(task, {}, x.detach(), x.detach(), up)
    torch.testing.assert_close(found, x.grad)
    factor = (found / up)[size >= theta]
    assert float(factor[0]) == pytest.approx(1.5)
    assert (factor > 1).all()
    assert (factor.diff() < 0).all()


def test_numbers_outside_the_first_mask_never_move() -> None:
    run = played("normed", small(fiarse((0.3, 0.1))))
    for task, reply in zip(run.tasks, run.replies):
        assert task.mask is not None
        assert torch.equal(reply.params[~task.mask], task.model.expand_as(reply.params)[~task.mask])
    assert "local.share" not in everything(run)
