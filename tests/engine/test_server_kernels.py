"""Kernels of the server's half and of uploads against plain PyTorch. On a GPU, or with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

import fedloom.aggregate.coverage_mean as coverage_mean
import fedloom.aggregate.plain_mean as plain_mean
import fedloom.upload.importance as importance
from fedloom.neurons.trace import neuron_map
from fedloom.types import Reply

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEANS = {
    "examples": coverage_mean.CoverageMean(),
    "uniform": coverage_mean.CoverageMean("uniform"),
    "sparse": plain_mean.PlainMean(),
}
NETWORKS = {
    "dense": (nn.Sequential(nn.Flatten(), nn.Linear(21, 9), nn.ReLU(), nn.Linear(9, 3)), (2, 3, 7)),
    "convolutional": (
        nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)),
        (2, 2, 5, 5),
    ),
}


@pytest.mark.parametrize("clients", [1, 3, 16, 21])
@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("lost", [1, None])  # one client, or everybody
def test_means_of_masked_replies(clients: int, name: str, lost: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(clients)
    model, params = torch.randn(301, generator=draw), torch.randn(clients, 301, generator=draw)
    mask = torch.rand(clients, 301, generator=draw) < 0.4
    mask[:, 7] = False  # nobody sent it
    arrived = torch.arange(clients) != lost if lost else torch.zeros(clients, dtype=torch.bool)
    mask &= arrived[:, None]
    params = torch.where(mask, params, model)
    report = {"examples": torch.arange(1, clients + 1)}
    parts = (torch.arange(clients), params, mask, {}, report, arrived)
    reply = Reply(*(part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in parts))
    reply = reply._replace(report={"examples": report["examples"].to(DEVICE)})
    found = []
    for ours in (True, False):
        for module in (coverage_mean, plain_mean):
            monkeypatch.setattr(module, "own_kernels", lambda device, ours=ours: ours)
        found.append(MEANS[name]({}, None, model.to(DEVICE), reply)[0])  # type: ignore[arg-type]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert found[0][7] == (0 if name == "sparse" and lost else model[7])


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_rows_are_worth(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS[name]
    neurons = neuron_map(network, torch.zeros(shape)).to(DEVICE)
    draw = torch.Generator().manual_seed(0)
    first, last = (torch.randn(4, neurons.total, generator=draw).to(DEVICE) for _ in range(2))
    first[0] = 0  # measured by what became of it
    found = []
    for ours in (True, False):
        monkeypatch.setattr(importance, "own_kernels", lambda device, ours=ours: ours)
        found.append(importance.row_worth(neurons, first, last, 0.01, norm))  # type: ignore[arg-type]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
