"""Kernels of the server and of uploads against PyTorch: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

import fedloom.core.means as means
import fedloom.core.unsent as unsent
import fedloom.neurons.map as neurons_map
import fedloom.parts.upload.importance as importance
from fedloom.core.types import Reply
from fedloom.neurons.trace import neuron_map
from fedloom.parts.admit.finite import Finite
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.plain_mean import PlainMean
from neurons.nets import Bag, Dense, Gate, Padded, cnn, mlp, resnet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEANS = {
    "examples": CoverageMean(),
    "uniform": CoverageMean("uniform"),
    "sparse": PlainMean(),
}
NETWORKS = {
    "dense": (nn.Sequential(nn.Flatten(), nn.Linear(21, 9), nn.ReLU(), nn.Linear(9, 3)), (2, 3, 7)),
    "convolutional": (
        nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)),
        (2, 2, 5, 5),
    ),
}
OWNED = {  # networks whose numbers belong to neurons in many ways
    **NETWORKS,
    "one layer": (mlp(5, 3), (2, 5)),  # no hidden neuron
    "pooled": (cnn(), (2, 1, 8, 8)),
    "residual": (resnet((4, 6), 1), (2, 3, 8, 8)),
    "embedding": (Bag(), (2, 7)),
    "one by one": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), Gate(8),
            Dense(nn.Conv2d(8, 3, 1)), Padded(11, 1), nn.Flatten(), nn.Linear(117, 3),
        ),
        (2, 2, 8, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("clients", [1, 8, 11])
@pytest.mark.parametrize("name", OWNED)
def test_masks_of_kept_neurons(name: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = OWNED[name]
    example = torch.ones(shape, dtype=torch.int64) if name == "embedding" else torch.randn(shape)
    neurons = neuron_map(network, example).to(DEVICE)
    draw = torch.Generator().manual_seed(clients)
    wide = (torch.rand(clients, neurons.full_size + 2, generator=draw) < 0.6).to(DEVICE)
    for rows in (False, True):
        for keep in (wide[:, : neurons.size].clone(), wide[:, : neurons.full_size]):  # the second: rows lie apart
            found = []
            for ours in (True, False):
                monkeypatch.setattr(neurons_map, "own_kernels", lambda device, ours=ours: ours)
                found.append(neurons.expand(keep, rows))
            assert len(neurons.owners) == 1 + rows  # the kernel did the first
            assert found[0].dtype == torch.bool
            assert torch.equal(*found)
            assert torch.equal(found[0].view(torch.uint8), found[1].view(torch.uint8))  # not just any true byte


def test_masks_of_any_number_of_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    neurons = neuron_map(mlp(4, 6, 3), torch.zeros(2, 4)).to(DEVICE)
    keep = (torch.arange(24) % 5 > 1).view(2, 2, 6).to(DEVICE)
    theirs = neurons.expand(keep)
    monkeypatch.setattr(neurons_map, "own_kernels", lambda device: True)
    assert torch.equal(neurons.expand(keep), theirs)
    assert torch.equal(neurons.expand(keep.mT.contiguous().mT), theirs)  # columns lie apart
    assert torch.equal(neurons.expand(keep[0, 1]), theirs[0, 1])
    assert neurons.expand(keep[:0]).shape == (0, 2, neurons.total)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("ready", [False, True])
def test_masks_inside_a_graph(ready: bool) -> None:
    neurons = neuron_map(mlp(4, 6, 3), torch.zeros(2, 4)).to(DEVICE)
    keep = (torch.arange(18) % 5 > 1).view(3, 6).to(DEVICE)
    if ready:
        neurons.expand(keep)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask = neurons.expand(keep)
    assert len(neurons.owners) == ready  # nothing is made while a graph is captured
    keep.logical_not_()
    graph.replay()
    assert torch.equal(mask, neurons.expand(keep))


SENT = ("whole", "masked", "the same for all")


def _reply(clients: int, sent: str, lost: list[int]) -> tuple[torch.Tensor, Reply]:
    """A model, and replies with NaN wherever nothing was sent or arrived."""
    draw = torch.Generator().manual_seed(clients)
    model, params = torch.randn(1301, generator=draw), torch.randn(clients, 1301, generator=draw)
    mask = torch.rand(clients if sent == "masked" else 1, 1301, generator=draw) < 0.4
    arrived = torch.ones(clients, dtype=torch.bool)
    arrived[lost] = False
    here = arrived[:, None] & (mask if sent != "whole" else torch.ones(1, 1).bool())
    params = torch.where(here, params, torch.nan).to(DEVICE)
    mask = mask.to(DEVICE).expand(clients, -1)
    extras = {"change": torch.where(arrived[:, None], 1.5, torch.nan).repeat(1, 7).to(DEVICE)}
    report = {"examples": torch.arange(1, clients + 1, device=DEVICE)}
    reply = Reply(torch.arange(clients, device=DEVICE), params, mask, extras, report, arrived.to(DEVICE))
    return model.to(DEVICE), reply if sent != "whole" else reply._replace(mask=None)


def _same(ours: Reply, theirs: Reply) -> None:
    """Equal to the bit."""
    assert torch.equal(ours.params, theirs.params)  # no NaN is left
    assert (ours.mask is None) == (theirs.mask is None)
    assert ours.mask is None or theirs.mask is None or torch.equal(ours.mask, theirs.mask)
    assert torch.equal(ours.extras["change"], theirs.extras["change"])
    assert torch.equal(ours.report["examples"], theirs.report["examples"])


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("lost", [[], [1], [0, 1, 2]])
def test_unsent_numbers_are_the_models(sent: str, lost: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "own_kernels", lambda device: False)
    model, reply = _reply(3, sent, lost)
    theirs = [unsent.read_unsent_as_unchanged(model, reply, whole) for whole in {False, not lost}]
    monkeypatch.setattr(unsent, "own_kernels", lambda device: True)
    for whole, wanted in zip({False, not lost}, theirs):
        before, (_, fresh) = model.clone(), _reply(3, sent, lost)
        asked = None if fresh.mask is None else fresh.mask.clone()
        read = unsent.read_unsent_as_unchanged(model, fresh, whole)
        _same(read, wanted)
        assert read.params is fresh.params  # in place
        assert torch.equal(model, before)
        assert asked is None or (fresh.mask is not None and torch.equal(fresh.mask, asked))  # it may be the task's


@pytest.mark.parametrize("sent", SENT)
def test_refused_replies_are_the_models(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for ours in (True, False):
        monkeypatch.setattr(unsent, "own_kernels", lambda device, ours=ours: ours)
        model, reply = _reply(4, sent, [1])
        reply = unsent.read_unsent_as_unchanged(model, reply)
        reply.params[2, 5] = torch.inf
        touched = reply.params.clone()
        reply, _ = Finite()({}, None, model, None, reply)  # type: ignore[arg-type]
        assert reply.arrived.tolist() == [True, False, False, True]
        assert torch.equal(reply.params[[0, 1, 3]], touched[[0, 1, 3]])
        assert torch.equal(reply.params[2], model)
        found.append(reply)
    _same(*found)


def test_numbers_that_a_rule_sends_twice_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "own_kernels", lambda device: True)
    model, reply = _reply(2, "whole", [])
    reply = reply._replace(extras={"change": reply.params[:, 3:9]}, mask=torch.zeros_like(reply.params).bool())
    sent = reply.extras["change"].clone()
    read = unsent.read_unsent_as_unchanged(model, reply, whole=True)
    assert torch.equal(read.extras["change"], sent)
    assert torch.equal(read.params, model.expand(2, -1))


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
        monkeypatch.setattr(means, "own_kernels", lambda device, ours=ours: ours)
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
        found.append(importance.row_importance(neurons, first, last, 0.01, norm))  # type: ignore[arg-type]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
