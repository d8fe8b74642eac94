"""Steps by our kernels for linear layers in a row against plain steps. On a GPU, or with TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from fedloom.chance import Chance
from fedloom.data.dataset import Dataset
from fedloom.engine.cuda.compact import Compact, fits
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.cuda.mlp_step import MlpStep
from fedloom.engine.cuda.row_scaling import RowScaling
from fedloom.engine.cuda.step_buffers import StepBuffers
from fedloom.engine.facts import facts_of
from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.local import Local, local_engine
from fedloom.engine.plan import plan_steps
from fedloom.round import play_round
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, clients_of, inputs_of

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


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels run on any device."""
    monkeypatch.setattr("fedloom.engine.facts.own_kernels", lambda device: True)


def _inputs(case: dict[str, Any], shape: tuple[int, ...] = (1, 3, 7)) -> tuple[Experiment, Inputs]:
    """A few examples, dealt unequally, so that clients take unequally many steps."""
    training = {"epochs": 1, "batch": 10, **case.get("training", {})}
    draw, count = np.random.default_rng(0), 3 * max(10, training["batch"])
    y = draw.integers(0, 3, count)
    x = (draw.standard_normal((count, *shape)) + y[:, None, None, None]).astype(np.float32)
    data = Dataset("few", x, y, x[:9], y[:9], None, None, 3, 0)
    settings = {"model": "mlp", "clients": 3, "per_round": 3, "partition": "dirichlet"}
    experiment = Experiment(device=DEVICE, **{**settings, **case, "training": training})
    return experiment, inputs_of(experiment, data=data)


def _captured(experiment: Experiment, inputs: Inputs) -> tuple[Local, Graphs]:
    """The engine as on a GPU, but for the capture of its steps."""
    graphs = Graphs(capture=False)
    return local_engine(clients_of(inputs), sliced=experiment.execution == "sliced", graphs=graphs), graphs


def _plain(experiment: Experiment, inputs: Inputs) -> Local:
    """The engine without buffers, on any device."""
    clients, chosen = clients_of(inputs), fastest_gradient(inputs.setting, inputs.train)
    plan = plan_steps(facts_of(clients, *chosen, sliced=experiment.execution == "sliced"))
    return Local(clients, chosen, plan, chunk=100)


def _played(inputs: Inputs, engine: Local) -> tuple[Tensor, Tensor]:
    """The model after two rounds, and the second round's losses."""
    method, setting, model = inputs.method, inputs.setting, inputs.model
    memory = method.init(setting, model)
    for number in (1, 2):
        chance = Chance(0, number, model.device)
        model, memory, _, reply = play_round(method, memory, model, setting, engine, chance)
    return model, reply.report["loss"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_take_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MlpStep] = []
    make = StepBuffers._make_mlp_step
    monkeypatch.setattr(StepBuffers, "_make_mlp_step", lambda *facts: made.append(make(*facts)) or made[-1])
    experiment, inputs = _inputs(CASES[name])
    wanted = _played(inputs, _plain(experiment, inputs))
    assert not made
    engine, _ = _captured(experiment, inputs)
    assert engine.plan.steps == ("kernels",)
    assert (engine.plan.parts == "compact") == (name in COMPACT)
    found = _played(inputs, engine)
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
    case = {"model": "cnn2", "clients": 5, "per_round": 5, **CONVOLUTIONS[name]}
    experiment, inputs = _inputs(case, (3, 16, 16))
    engine, graphs = _captured(experiment, inputs)
    assert engine.plan.parts == "sliced or compact"
    found, wanted = (_played(inputs, one) for one in (engine, _plain(experiment, inputs)))
    (only,) = graphs._buffers.values()
    assert only.compact is not None
    for mine, theirs in zip(found, wanted):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("model", ["mlp", "cnn2"])
def test_weights_are_scaled_where_they_are_moved(model: str) -> None:
    setting = _inputs({"method": "fjord", "model": model}, (3, 16, 16))[1].setting
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
    experiment, inputs = _inputs({"method": "fjord", "model": model}, (3, 32, 32))
    plan = _captured(experiment, inputs)[0].plan
    assert (plan.parts == "sliced or compact") == well
    assert well or dict(plan.reasons)["sliced or compact"]
    gradient = fastest_gradient(inputs.setting, inputs.train).gradient.stacked
    assert gradient is not None
    assert (gradient.zeros_stay and not fits(inputs.setting.neurons)) == well


def test_dropout_is_not_a_row_of_linear_layers() -> None:
    experiment, inputs = _inputs({"method": "fedavg", "model": "ra-mlp"})
    engine, graphs = _captured(experiment, inputs)
    assert engine.plan.steps == ("fused",)
    _played(inputs, engine)
    assert [one.mlp_step for one in graphs._buffers.values()] == [None]
