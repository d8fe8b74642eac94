"""Every client's own model on its own test split, against a plain loop over the clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.core.optimiser import Sgd
from fedloom.engine.clients import Clients
from fedloom.engine.local import Local, local_engine
from fedloom.engine.storage.shards import Shards
from fedloom.method import Method
from fedloom.methods.scaffold import scaffold
from fedloom.parts.local.keep_own import KeepOwn
from pieces import Forced
from worlds import SIZES, World, play, scattered_parts, small, world

TESTED = (4, 0, 1, 7, 60, 2, 0, 3, 1, 9, 5, 2)  # test examples of each client; client 1 and client 6 have none
PLAYED = ((0, 1, 2, 3, 4), (2, 4, 6, 8, 9))  # 5, 7, 10 and 11 never take part: theirs is the network as built


def splits() -> Shards:
    """Any examples serve as test examples here; some belong to several clients."""
    starts = [7 * client % (sum(SIZES) - size) for client, size in enumerate(TESTED)]
    return Shards([torch.arange(a, a + size) for a, size in zip(starts, TESTED)], torch.device("cpu"))


def by_hand(here: World, models: list[Tensor]) -> Tensor:
    """One client after another, one example after another."""
    module, examples, accuracy = here.setting.module.eval(), splits(), []
    for model, own in zip(models, examples.examples.split(examples.sizes)):
        tensors = here.setting.layout.split(model)
        with torch.no_grad():
            right = [
                functional_call(module, tensors, here.data.x[k : k + 1]).argmax() == here.data.y[k]
                for k in own.tolist()
            ]
        accuracy.append(sum(map(bool, right)) / len(right) if right else torch.nan)
    return torch.tensor(accuracy, dtype=torch.float64)


def trained(
    here: World, method: Method, chunk: int | None = None, tested: Shards | None = None
) -> tuple[Local, Tensor]:
    """An engine after two rounds, and the global model."""
    method = replace(method, select=Forced(PLAYED), optimiser=Sgd(rate=0.5))
    own_test = here.data, splits() if tested is None else tested
    engine = local_engine(Clients(method, here.setting, here.data, here.shards, own_test=own_test), chunk)
    return engine, play(here, method, engine, len(PLAYED)).model


@pytest.mark.parametrize("batch", [1, 16, 1024])
@pytest.mark.parametrize("chunk", [1, 2, 5, None])
@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_own_models_on_own_splits(network, chunk, batch, monkeypatch):
    monkeypatch.setattr("fedloom.engine.personal.at_once", lambda x: batch)
    here = world(network)
    engine, model = trained(here, scattered_parts(KeepOwn()), chunk)
    took_part = sorted({client for cohort in PLAYED for client in cohort})
    assert engine.clients.states.known().tolist() == took_part
    own = dict(zip(took_part, engine.clients.states.get(took_part, {"own": model})["own"]))
    models = [own.get(client, here.model) for client in range(len(SIZES))]
    assert len({tuple(one.tolist()) for one in models}) == len(took_part) + 1

    ours = engine.personal(model)
    torch.testing.assert_close(ours, by_hand(here, models), rtol=0, atol=1e-12, equal_nan=True)
    assert ours.isnan().tolist() == [size == 0 for size in TESTED]
    assert not torch.equal(ours, by_hand(here, [model] * len(SIZES)))  # it matters whose model it is


@pytest.mark.parametrize("network", ["cnn", "dropout", "text"])
def test_every_network(network):
    here = world(network)
    engine, model = trained(here, scattered_parts(KeepOwn()))
    known = engine.clients.states.known().tolist()
    own = dict(zip(known, engine.clients.states.get(known, {"own": model})["own"]))
    models = [own.get(client, here.model) for client in range(len(SIZES))]
    ours = engine.personal(model)
    torch.testing.assert_close(ours, by_hand(here, models), rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("method", [Method(), scaffold()], ids=["no state", "state, but no model"])
def test_the_global_model_serves_who_has_none(method):
    here = world("mlp")
    engine, model = trained(here, small(method))
    ours = engine.personal(model)
    torch.testing.assert_close(ours, by_hand(here, [model] * len(SIZES)), rtol=0, atol=1e-12, equal_nan=True)


def test_asking_makes_nobody_known():
    here = world("mlp")
    engine, model = trained(here, scattered_parts(KeepOwn()))
    before = engine.clients.states.known().tolist()
    first = engine.personal(model)
    assert engine.clients.states.known().tolist() == before
    torch.testing.assert_close(engine.personal(model), first, equal_nan=True)


def test_nobody_has_test_examples():
    here = world("mlp")
    none = Shards([torch.empty(0, dtype=torch.int64) for _ in SIZES], torch.device("cpu"))
    engine, model = trained(here, scattered_parts(KeepOwn()), tested=none)
    assert engine.personal(model).isnan().all()
    assert here.local(Method()).personal(model) is None


@pytest.mark.parametrize("method", [small(Method()), scattered_parts(KeepOwn())], ids=["global", "own"])
def test_diverged_models_are_right_about_nothing(method):
    here = world("mlp")
    engine, model = trained(here, method)
    known = engine.clients.states.known().tolist()
    if known:
        engine.clients.states.put(known, {"own": torch.full((len(known), len(model)), torch.nan)})
    ours = engine.personal(torch.full_like(model, torch.nan))
    assert ours[known or slice(None)].nan_to_num().eq(0).all()
