"""Steps by our kernels against steps by PyTorch: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

import fedloom.engine.ways as ways

import fedloom.engine.cuda.step_buffers as step_buffers
from fedloom.chance import Chance
from fedloom.data.dataset import Dataset
from fedloom.engine.cuda.compact import Compact, fits
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.cuda.row_scaling import RowScaling
from fedloom.round import play_round
from fedloom.runs.build import Simulation, prepare
from fedloom.runs.experiment import Experiment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOMENTUM = {"momentum": 0.5, "weight_decay": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"method": "fedavg"},
    "decay": {"method": "fedavg", "training": {"weight_decay": 1e-2}},
    "momentum": {"method": "fedavg", "training": MOMENTUM},
    "wide": {"method": "fedavg", "training": {"batch": 70}},  # more examples than a tile has rows
    "lone": {"method": "fedavg", "training": {"batch": 1}},
    "frozen": {"method": "fedspu", "training": MOMENTUM},
    "masked": {"method": "federated-dropout", "execution": "masked"},
    "sliced": {"method": "federated-dropout", "training": MOMENTUM},
    "ordered": {"method": "fjord", "training": {"weight_decay": 1e-2}},
    "dealt": {"method": "ist"},
    "scaled": {"method": "heterofl", "training": {"weight_decay": 1e-2}},
    "scaled, momentum": {"method": "heterofl", "training": MOMENTUM},
    "scaled, masked": {"method": "heterofl", "execution": "masked"},
    "one size": {"method": {"name": "federated-dropout", "settings": {"shares": (0.5,)}}},
}


def _prepared(case: dict[str, Any], shape: tuple[int, ...] = (1, 3, 7)) -> Simulation:
    """A few examples, dealt unequally, so that clients take unequally many steps."""
    training = {"epochs": 1, "batch": 10, **case.get("training", {})}
    draw, count = np.random.default_rng(0), 3 * max(10, training["batch"])
    y = draw.integers(0, 3, count)
    x = (draw.standard_normal((count, *shape)) + y[:, None, None, None]).astype(np.float32)
    data = Dataset("few", x, y, x[:9], y[:9], None, None, 3, 0)
    settings = {"model": "mlp", "clients": 3, "per_round": 3, "partition": "dirichlet"}
    return prepare(Experiment(device=DEVICE, **{**settings, **case, "training": training}), data=data)


def _played(here: Simulation, walk: Graphs | None = None) -> tuple[Tensor, Tensor]:
    """The model after two rounds, and the second round's losses."""
    here.engine.walk = walk
    model, memory = here.model, here.method.init(here.setting, here.model)
    for number in (1, 2):
        chance = Chance(0, number, model.device)
        model, memory, _, reply = play_round(here.method, memory, model, here.setting, here.engine, chance)
    return model, reply.report["loss"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_take_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(ways, "own_kernels", lambda device: False)
    wanted = _played(_prepared(CASES[name]))
    monkeypatch.setattr(ways, "own_kernels", lambda device: True)
    make = step_buffers.StepBuffers._make_mlp_step
    monkeypatch.setattr(step_buffers.StepBuffers, "_make_mlp_step", lambda self: made.append(make(self)) or made[-1])
    found = _played(_prepared(CASES[name]), Graphs(capture=False))
    assert made
    assert all(one is not None for one in made)
    assert {one.buffers.compact is not None for one in made} == {name in COMPACT}
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


GROUPED = {"name": "resnet20", "settings": {"norm": "group"}}  # statistics over several neurons
COMPACT = ("sliced", "ordered", "dealt", "one size", "scaled", "scaled, momentum")
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "ordered": {"method": "fjord", "training": {"weight_decay": 1e-2}},
    "momentum": {"method": "federated-dropout", "training": MOMENTUM},
    "scaled": {"method": "heterofl", "training": {"momentum": 0.5}},
    "scaled, no momentum": {"method": "heterofl"},
    "normed": {"method": "fjord", "model": "spu-cifar"},
    "fused": {"method": {"name": "federated-dropout", "settings": {"shares": (0.3, 0.6, 1.0)}}},
}


# interpreted, all but the smallest take 95 s together; `test_graphs.py` takes their steps on a smaller network
INTERPRETED = ("normed",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if DEVICE == "cuda" or n in INTERPRETED else pytest.mark.slow) for n in CONVOLUTIONS],
)
def test_images_of_several_sizes_side_by_side(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(ways, "own_kernels", lambda device: True)
    case, walk = {"model": "cnn2", "clients": 5, "per_round": 5, **CONVOLUTIONS[name]}, Graphs(capture=False)
    found, wanted = (_played(_prepared(case, (3, 16, 16)), way) for way in (walk, None))
    (only,) = walk._buffers.values()
    assert only.compact is not None
    for mine, theirs in zip(found, wanted):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("model", ["mlp", "cnn2"])
def test_weights_are_scaled_where_they_are_moved(model: str) -> None:
    setting = _prepared({"method": "fjord", "model": model}, (3, 8, 8)).setting
    neurons, layout = setting.neurons, setting.layout
    draw = torch.Generator().manual_seed(1)
    keep = neurons.cut(torch.rand(4, neurons.size, generator=draw).to(DEVICE), torch.tensor([0.2, 0.5, 0.7, 1.0]))
    first = torch.randn(4, layout.total, generator=draw).to(DEVICE)
    scaling, compact = RowScaling(layout, first), Compact(neurons, layout, first, True)
    scale = torch.randint(0, 4, (4, len(scaling.at)), generator=draw).to(DEVICE, torch.float32)
    ends = [*scaling.at.tolist()[1:], layout.total]
    whole = scale.repeat_interleave(torch.tensor(ends, device=DEVICE) - scaling.at, 1)  # of every number
    moved = []
    for models in (whole, whole * first):
        compact.begin(keep, models, None)
        moved.append({name: t.clone() for name, t in compact.tensors.items()})
    scaling.begin(scale, first)
    compact.begin(keep, first, scaling)
    for name, products in compact.tensors.items():
        assert torch.equal(products, moved[1][name])
        rows = moved[0][name].flatten(2).amax(2) if products.dim() > 2 else moved[0][name]
        assert torch.equal(scaling.rate_factors[name], rows.square())
        products += 0.5
    mask, last = neurons.expand(keep), compact.end(4, scaling)
    assert not last[~mask].any()
    still = mask & (whole == 0)
    assert still.any()
    assert torch.equal(last[still], first[still])  # as it was, whatever became of the product
    torch.testing.assert_close(last[mask & ~still], (first + 0.5 / whole)[mask & ~still])


@pytest.mark.parametrize(
    ("model", "well"),
    [("cnn2", True), ("resnet20", True), (GROUPED, False), ("ra-mlp", False)],
)
def test_which_networks_are_trained_side_by_side(model: Any, well: bool) -> None:
    here = _prepared({"method": "fjord", "model": model}, (3, 32, 32))
    gradient = here.engine.gradient
    assert (fits(here.setting.neurons) and ways.zero_stays(gradient.graph, here.setting.module)) == well


def test_dropout_breaks_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "own_kernels", lambda device: True)
    here = _prepared({"method": "fedavg", "model": "ra-mlp"})
    here.engine.walk = walk = Graphs(capture=False)
    play_round(here.method, here.method.init(here.setting, here.model), here.model, here.setting, here.engine,
               Chance(0, 1, here.model.device))  # fmt: skip
    assert [one.mlp_step for one in walk._buffers.values()] == [None]
