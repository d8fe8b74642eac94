"""Steps in static buffers, as they are captured on a GPU, give the same numbers as steps taken one by one.

Here they run uncaptured, on a CPU, so that every way through `StepBuffers` is seen without a GPU. Rows with kernels of
our own run them in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedloom.engine.cuda.momentum as momentum
import fedloom.engine.facts as facts
import fedloom.engine.gradient.layers as layers
from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Sgd
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.cuda.step_buffers import StepBuffers
from fedloom.engine.gradient.fastest import Chosen
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.engine.local import local_engine
from fedloom.method import Method
from fedloom.parts.select.bernoulli import Bernoulli
from pieces import NETWORKS
from worlds import METHODS, World, assert_close, every_method, everything, play, played, world

OPTIMISERS = {
    "sgd": Sgd(rate=0.1),
    "weight decay": Sgd(rate=0.05, weight_decay=0.1, decay=0.5),
    "momentum": Sgd(rate=0.05, momentum=0.9),
    "momentum and decay": Sgd(rate=0.05, momentum=0.9, weight_decay=0.1),
    "kept momentum": Sgd(rate=0.05, momentum=0.9, fresh=False),
    "clip": Sgd(rate=0.05, clip=0.1),
    "adam": Adam(rate=0.01, fresh=False),
    "adam with eps": Adam(rate=0.01, eps=1e-3, fresh=False),  # else noise around a zero gradient takes whole steps
}
# network, method, optimiser: the steps that must be taken. "held": a mask holds numbers at what they were; "zeroed": at
# zero; "kept": moments outlive the round. In "normed" running statistics move as well, and clients take unequally many
# steps everywhere.
STEPS = {
    ("normed", "fedavg", "sgd"): "fused",
    ("normed", "fedavg", "weight decay"): "fused",
    ("normed", "fedavg", "momentum"): "momentum",
    ("normed", "fedavg", "momentum and decay"): "momentum",
    ("normed", "fedavg", "kept momentum"): "plain, kept",
    ("normed", "fedavg", "clip"): "plain",
    ("normed", "fedavg", "adam with eps"): "plain, kept",
    ("normed", "fedprox", "momentum"): "plain, kept",
    ("normed", "scaffold", "sgd"): "plain",
    ("normed", "scattered", "weight decay"): "fused, zeroed",
    ("normed", "scattered", "momentum and decay"): "momentum, zeroed",
    ("normed", "scattered", "kept momentum"): "plain, masked, kept",
    ("normed", "fedspu", "weight decay"): "fused, held",
    ("normed", "fedspu", "momentum and decay"): "momentum, held",
    ("normed", "fedspu", "clip"): "plain, masked",
    ("normed", "fjord", "sgd"): "fused",
    ("normed", "heterofl", "sgd"): "momentum, scaled",
    ("normed", "heterofl", "momentum and decay"): "momentum, scaled",
    ("normed", "heterofl", "adam with eps"): "plain, kept",
    ("text", "fedavg", "sgd"): "fused",
    ("dropout", "fedavg", "momentum"): "momentum",
}
KERNEL_STEPS = {
    ("mlp", "fedavg", "sgd"): "mlp",
    ("mlp", "fedavg", "momentum and decay"): "mlp, velocity",
    ("mlp", "scattered", "weight decay"): "mlp, masked",
    ("mlp", "fedspu", "momentum"): "mlp, velocity, masked",
    ("mlp", "fjord", "weight decay"): "mlp, compact",
    ("mlp", "federated-dropout", "momentum and decay"): "mlp, velocity, compact",
    ("mlp", "heterofl", "sgd"): "mlp, scaled, compact",
    ("mlp", "heterofl", "momentum"): "mlp, velocity, scaled, compact",
    ("mlp", "scaffold", "sgd"): "plain",
    ("mlp", "fedavg", "clip"): "plain",
    ("cnn", "fedavg", "momentum and decay"): "momentum",
    ("cnn", "fedspu", "momentum"): "momentum, held",
    ("cnn", "fjord", "weight decay"): "fused, compact",
    ("cnn", "federated-dropout", "momentum and decay"): "momentum, compact",
    ("cnn", "heterofl", "sgd"): "momentum, scaled, compact",
    ("normed", "heterofl", "momentum"): "momentum, scaled, compact",
    ("dropout", "fedavg", "sgd"): "fused",
}


def _taken(buffers: StepBuffers) -> str:
    """The steps that these buffers take, in the words of the tables above."""
    mlp = buffers.mlp_step is not None
    step = {"kernels": "mlp", "autograd": "plain"}.get(buffers.way, buffers.way)
    words = {
        "velocity": mlp and bool(buffers.velocity),
        "scaled": buffers.scaling is not None,
        "compact": buffers.compact is not None,
        "held": bool(buffers.held_values),
        "zeroed": bool(buffers.zeroed),
        "masked": buffers.masked and (mlp or step == "plain"),
        "kept": bool(buffers.moments),
    }
    return ", ".join([step, *(word for word, true in words.items() if true)])


def _assert_equal_steps(here: World, method: Method, rounds: int) -> set[str]:
    """The steps that were taken, where they gave the numbers of one client after another."""
    graphs = Graphs(capture=False)
    found = play(here, method, here.local(method, graphs=graphs), rounds)
    wanted = play(here, method, here.loop(method), rounds)
    assert_close(everything(found), everything(wanted), 1e-5)
    return {_taken(buffers) for buffers in graphs._buffers.values()}


def _method(name: str, optimiser: str) -> Method:
    return replace(dict(METHODS)[name](), optimiser=OPTIMISERS[optimiser])


@pytest.mark.parametrize("row", STEPS, ids=", ".join)
def test_steps_equal_one_client_after_another(row: tuple[str, str, str]) -> None:
    network, *method = row
    assert _assert_equal_steps(world(network), _method(*method), 3) == {STEPS[row]}


@pytest.mark.parametrize("row", KERNEL_STEPS, ids=", ".join)
def test_steps_by_kernels_equal_one_client_after_another(
    row: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a GPU, and run there; see test_mlp_step.py and test_cuda.py")
    for module in (facts, momentum, layers):
        monkeypatch.setattr(module, "own_kernels", lambda device: True)
    network, *method = row
    assert _assert_equal_steps(world(network), _method(*method), 2) == {KERNEL_STEPS[row]}


@every_method
def test_every_method_equals_plain_steps(method: Method) -> None:
    here = world("normed")
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=3)
    assert_close(everything(found), everything(played("normed", method, 3)), 1e-5)


@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "normed"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord"])
def test_other_networks(name: str, network: str) -> None:
    here, method = world(network), dict(METHODS)[name]()
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=2)
    assert_close(everything(found), everything(play(here, method, here.local(method), rounds=2)), 1e-5)


@pytest.mark.parametrize("optimiser", list(OPTIMISERS))
@pytest.mark.parametrize("name", ["fedavg", "scattered", "fedprox"])
def test_other_optimisers(name: str, optimiser: str) -> None:
    here, method = world("normed"), _method(name, optimiser)
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=3)
    assert_close(everything(found), everything(play(here, method, here.local(method), rounds=3)), 1e-5)


@pytest.mark.parametrize("name", ["fedavg", "scattered", "fedprox"])
def test_gradients_by_vmap(name: str) -> None:
    here, method, graphs = world("mlp"), _method(name, "sgd"), Graphs(capture=False)
    engine = local_engine(here.clients(method), chosen=Chosen(VmappedGradient(here.setting)), graphs=graphs)
    assert_close(everything(play(here, method, engine)), everything(play(here, method, here.loop(method))), 1e-5)
    assert {_taken(buffers).partition(",")[0] for buffers in graphs._buffers.values()} == {"plain"}


def test_plain_gradients_need_no_buffers() -> None:
    here, method, graphs = world("mlp"), _method("fedavg", "sgd"), Graphs(capture=False)
    engine = local_engine(here.clients(method), chosen=Chosen(PlainGradient(here.setting)), graphs=graphs)
    assert_close(everything(play(here, method, engine)), everything(play(here, method, here.loop(method))), 1e-5)
    assert not graphs._buffers


def test_smaller_cohorts_use_larger_buffers() -> None:
    here, method = world("mlp"), Method(select=Bernoulli(0.7))
    graphs = Graphs(capture=False)
    cohorts = {len(method.select({}, here.setting, Chance(0, number))[0].ids) for number in range(1, 9)}
    found = play(here, method, here.local(method, graphs=graphs), rounds=8)
    assert len(graphs._buffers) < len(cohorts)  # or this shows nothing
    wanted = play(here, method, here.local(method), rounds=8)
    assert torch.equal(found.replies[-1].ids, wanted.replies[-1].ids)
    assert_close(everything(found), everything(wanted), 1e-5)
