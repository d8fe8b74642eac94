"""Runs of networks with frozen parts: what they send, save, share and refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom import BadExperiment, BadModel, Dataset, Experiment, load_model, resume, run
from fedloom.engine.gradient.dropout import keyed
from fedloom.engine.storage.activations import activation_bytes
from fedloom.layout import base_of
from fedloom.runs.build import prepare

OWN = """
from pathlib import Path
import torch
from torch import nn

def net() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    nn.init.constant_(layers[1].weight, float((Path(__file__).parent / "pretrained").read_text()))
    layers[1].requires_grad_(False)
    return layers
"""


def tiny(**changes: object) -> Experiment:
    """Two rounds of two clients on digits."""
    values = {"clients": 4, "per_round": 2, "rounds": 2, "training": {"epochs": 1, "batch": 100}, "device": "cpu"}
    return Experiment(**{**values, **changes})


def network(frozen: bool = True) -> nn.Sequential:
    """A dense network whose first layer may be frozen."""
    found = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    found[1].requires_grad_(not frozen)
    return found


class Scaled(nn.Module):
    """A linear layer between a constant with infinite numbers and a buffer that training moves."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)
        self.register_buffer("cap", torch.full((10,), torch.inf))
        self.register_buffer("mean", torch.zeros(10))
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, 10]."""
        scores: Tensor = self.norm(self.out(x.flatten(1))).minimum(self.cap)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(scores.mean(0), 0.1)
        return scores


class Words(nn.Module):
    """The mean of words' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, 3]."""
        scores: Tensor = self.out(self.words(x).mean(1))
        return scores


def texts() -> Dataset:
    """Sixty made-up texts of seven words."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(1, 20, (60, 7)), np.arange(60) % 3
    return Dataset("texts", x, y, x[:12], y[:12], None, None, 3, 20)


def test_frozen_numbers_are_neither_sent_nor_saved(tmp_path: Path) -> None:
    net, whole = network(), network(frozen=False)
    result, other = run(tiny(), model=net, out=tmp_path / "run"), run(tiny(), model=whole)
    frozen = 4 * (64 * 16 + 16)  # bytes
    for ours, theirs in zip(result.rounds, other.rounds):
        assert 0 <= theirs["bytes_up"] - ours["bytes_up"] - 2 * frozen < 200  # and shorter headers
        assert 0 <= theirs["bytes_down"] - ours["bytes_down"] - 2 * frozen < 200
    assert load_file(tmp_path / "run" / "model.safetensors").keys() == {"3.weight", "3.bias"}
    assert torch.equal(result.model.get_parameter("1.weight"), net[1].weight)
    assert not result.model.get_parameter("1.weight").requires_grad
    assert not torch.equal(result.model.get_parameter("3.weight"), net[3].weight)


def test_frozen_numbers_are_held_once() -> None:
    net = network()
    inputs = prepare(tiny(), model=net).inputs
    for one in (inputs.network, inputs.setting.module):
        assert one.get_parameter("1.weight").data_ptr() == net[1].weight.data_ptr()
        assert one.get_parameter("3.weight").data_ptr() != net[3].weight.data_ptr()
    inputs.network.requires_grad_(True)
    assert not net[1].weight.requires_grad


def test_buffers_that_training_moves_are_in_the_vector_and_constants_are_not() -> None:
    net = Scaled()
    setting = prepare(tiny(), model=net).inputs.setting
    assert set(setting.layout.names) == {
        *("out.weight", "out.bias", "norm.weight", "norm.bias"), "mean", "norm.running_mean", "norm.running_var",
    }  # fmt: skip
    assert base_of(setting.module, setting.layout).keys() == {"cap"}
    result = run(tiny(), model=net)
    assert torch.equal(result.model.get_buffer("cap"), net.cap)
    assert bool(result.model.get_buffer("mean").any())
    assert not bool(net.mean.any())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_base_of_half_precision_is_taken(kind: torch.dtype) -> None:
    class Half(nn.Module):
        """A frozen layer that computes in half precision."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(64, 8).to(kind).requires_grad_(False), nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            """Scores [B, 10]."""
            scores: Tensor = self.out(self.first(x.flatten(1).to(self.first.weight.dtype)).relu().to(x.dtype))
            return scores

    net = Half()
    local, loop = (run(tiny(engine=engine), model=net).model for engine in ("local", "loop"))
    assert torch.equal(local.get_parameter("first.weight"), net.first.weight)
    torch.testing.assert_close(local.get_parameter("out.weight"), loop.get_parameter("out.weight"), rtol=0, atol=1e-3)


def test_a_run_goes_on_with_its_own_base_alone(tmp_path: Path) -> None:
    net = network()
    other = network()
    other[3].load_state_dict(net[3].state_dict())
    run(tiny(rounds=1), model=net, out=tmp_path / "run")
    with pytest.raises(BadExperiment, match=r"the base is not that of the run that was begun.*run\(model="):
        resume(tmp_path / "run", rounds=2, model=other)
    again, straight = resume(tmp_path / "run", rounds=2, model=net), run(tiny(), model=net)
    assert torch.equal(again.model.get_parameter("3.weight"), straight.model.get_parameter("3.weight"))


def test_a_frozen_network_of_ones_own_comes_back_and_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "pretrained").write_text("0.25")
    result = run(tiny(model=f"{tmp_path}/mine.py:net"), out=tmp_path / "run")
    found = load_model(tmp_path / "run")
    for name, value in result.model.named_parameters():
        assert torch.equal(found.get_parameter(name), value), name
    assert torch.equal(found.get_buffer("2.running_mean"), result.model.get_buffer("2.running_mean"))
    (tmp_path / "pretrained").write_text("0.5")
    with pytest.raises(BadModel, match="frozen parts of model"):
        load_model(tmp_path / "run")


def test_a_float64_network_on_tokens_runs() -> None:
    net = Words().double()
    values = {"clients": 4, "per_round": 2, "rounds": 2, "partition": "iid", "device": "cpu"}
    runs = [
        run(Experiment(**values, engine=engine, codec={"values": kind}), model=net, data=texts())
        for kind in ("float32", "float16", "int8")
        for engine in ("local", "loop")
    ]
    for local, loop in zip(runs[::2], runs[1::2]):
        ours, theirs = (one.model.get_parameter("out.weight") for one in (local, loop))
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_activations_are_measured_without_a_trace() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))
    setting = replace(prepare(tiny(), model=net).inputs.setting, module=keyed(net))  # one that was not measured before
    before, chance = {n: b.clone() for n, b in setting.module.named_buffers()}, torch.random.get_rng_state()
    assert 4 * 64 <= activation_bytes(setting) == activation_bytes(setting) < 4 * 200
    assert all(torch.equal(value, before[name]) for name, value in setting.module.named_buffers())
    assert torch.equal(torch.random.get_rng_state(), chance)


def test_activations_of_tokens_count_what_words_become() -> None:
    setting = prepare(tiny(partition="iid"), model=Words(), data=texts()).inputs.setting
    vectors, places, scores = 4 * 6, 8 * 7, 4 * 10  # the mean of a text's words, its words, room for more
    assert vectors + places <= activation_bytes(setting) <= vectors + places + 4 * 6 * 7 + scores
