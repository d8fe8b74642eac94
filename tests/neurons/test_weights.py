"""The weights of hidden layers, found by running the network, and methods that choose single numbers among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.layout import layout_of
from fedloom.models.table import build
from fedloom.neurons.trace import neuron_map
from fedloom.neurons.weights import hidden_weights
from fedloom.parts.mask.hidden import into_hidden
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

NETWORKS = {
    "mlp": ((1, 28, 28), 0),
    "cnn2": ((1, 28, 28), 0),
    "resnet20": ((3, 32, 32), 0),
    "mobilenet": ((3, 32, 32), 0),
    "har-cnn": ((6, 32), 0),
    "char-conv": ((16,), 50),
    "fasttext": ((16,), 50),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_they_are_those_that_lead_into_hidden_neurons(name: str) -> None:
    shape, words = NETWORKS[name]
    module = build(name, shape, 10, words)
    x = torch.randint(0, words, (2, *shape)) if words else torch.randn(2, *shape)
    layout = layout_of(module)
    expected = [t for t in into_hidden(neuron_map(module, x, layout)) if len(t.shape) > 1]
    found = hidden_weights(module, x, layout)
    assert found.spans == tuple((t.name, t.start, t.stop) for t in expected)
    assert found.total == layout.total
    assert module.training


class Branching(nn.Module):
    """A forward that nothing can trace, with a tied, a frozen and a normed layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(16, 10)  # built first, runs last
        self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 16)
        self.third, self.frozen = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)
        self.third.weight = self.second.weight
        self.norm = nn.LayerNorm((2, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, 10]."""
        x = self.first(x.flatten(1)).relu()
        x = self.second(x).relu() if float(x.detach().sum()) > 0 else self.third(x)
        x = self.norm(self.frozen(x).unflatten(1, (2, 8))).flatten(1)
        scores: Tensor = self.last(x)
        return scores


def test_of_a_network_that_cannot_be_traced() -> None:
    module = Branching()
    layout = layout_of(module)
    found = hidden_weights(module, torch.randn(2, 1, 8, 8), layout)
    assert [span.name for span in found.spans] == ["first.weight", "second.weight"]
    places = dict(zip(layout.names, torch.tensor([0, *layout.sizes]).cumsum(0).tolist()))
    assert all(span.start == places[span.name] for span in found.spans)


SINGLE: dict[str, dict[str, Any]] = {
    "oap-largest": {},
    "ra-fed": {"mode": "element"},
    "ram-fed": {"mode": "element"},
    "safari": {},
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_numbers_need_no_neurons(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.neurons.trace.neuron_map", lambda *_: pytest.fail("asked for neurons"))
    training = {"epochs": 1, "batch": 50}
    ends = []
    for engine in ("local", "loop"):
        experiment = Experiment(
            method={"name": name, "settings": SINGLE[name]}, clients=4, rounds=3, training=training, engine=engine
        )
        ends.append(run(experiment, model=Branching()).model.state_dict())
    for key, value in ends[0].items():
        assert torch.allclose(value, ends[1][key], atol=1e-5), key
