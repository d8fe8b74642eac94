"""A batch of one example under batch norm: both engines take the step, by the running statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedloom.core.types import Batch
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.layout import flatten
from fedloom.methods import fedavg
from pieces import CLASSES
from worlds import assert_close, play, small, world, world_of

NETS: dict[str, Callable[[], nn.Module]] = {
    "twice": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6),
        nn.Linear(6, CLASSES),
    ),
    "momentum": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, CLASSES)
    ),
    "no statistics": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, CLASSES)
    ),
    "not affine": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, CLASSES)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_engines_agree(name):
    torch.manual_seed(0)
    mlp = world("mlp")
    here = world_of(NETS[name](), mlp.data, mlp.shards.examples.split(mlp.shards.sizes))
    method = small(fedavg())
    assert any(size % method.work.batch == 1 for size in mlp.shards.sizes)
    local = here.local(method)
    assert local.gradient.kind == "stacked"
    one, two = (play(here, method, engine) for engine in (local, here.loop(method)))
    assert_close({"model": one.model}, {"model": two.model}, 1e-5)
    assert bool(one.model.isfinite().all())


@pytest.mark.parametrize("name", NETS)
def test_a_lone_example_is_normalised_by_the_running_statistics_which_stay(name):
    torch.manual_seed(0)
    mlp = world("mlp")
    here = world_of(NETS[name](), mlp.data, mlp.shards.examples.split(mlp.shards.sizes), torch.float64)
    setting = here.setting
    start = flatten(setting.module, setting.layout)
    params = torch.stack((start, start * 1.2))
    params[:, setting.layout.trained :].uniform_(0.5, 1.5)  # running statistics of some training
    x, y = mlp.data.x[:6].double().view(2, 3, *mlp.data.x.shape[1:]), mlp.data.y[:6].view(2, 3)
    weight = torch.tensor([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    batch = Batch(x, y, weight, torch.zeros(2, dtype=torch.int64))
    ours, theirs = params.clone(), params.clone()
    found, expected = StackedGradient(setting)(ours, batch), PlainGradient(setting)(theirs, batch)
    for one, other in zip((*found, ours), (*expected, theirs)):
        assert torch.allclose(one, other, atol=1e-12)
    assert torch.equal(ours[0], params[0])
    if setting.layout.trained < setting.layout.total:
        assert not torch.equal(ours[1], params[1])
        answer = StackedGradient(setting).outputs(params[:1], x[:1, :1])[0]  # evaluation reads the same statistics
        assert torch.allclose(setting.loss(answer, y[0, :1])[0], found[1][0], atol=1e-12)
