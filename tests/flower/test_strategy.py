"""A Flower Strategy of fedloom's parts equals fedloom's own rounds where clients train equally."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.flower import masked, strategy
from fedloom.flower.your_app.contract import needs_mod
from fedloom.methods import METHODS as BY_NAME
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddd import feddd
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fjord import fjord
from fedloom.methods.heterofl import heterofl
from flower_own import Played, close
from worlds import METHODS, hashed, play, played, small, world, world_of

MAKERS = {
    **dict(METHODS),
    "feddd": lambda: small(feddd(class_term=False)),  # a server of plain clients knows nothing of classes
    "feddd-random": lambda: small(feddd(select_by="random", outputs=False, every=2, class_term=False)),
    "heterofl": lambda: small(heterofl(scale=False, mask_labels=False)),
}
# plain clients, whole models
PLAIN = ["fedavg", "fedavg-steps", "fedavg-epochs", "fedavg-median", "fedavg-krum", "mifa", "fedvarp",
         "fedavgm", "fedadam", "fedexp"]  # fmt: skip
# whole neurons are left out, or nothing is held in place: the user's steps need not know of masks
FREELY = ["feddd", "feddd-random", "fjord", "fjord-trimmed-mean", "heterofl", "fedrolex", "federated-dropout", "ist",
          "keep-own", "ra-fed", "ram-fed", "fedumf", "fedumf-fjord", "hermes", "fedmp", "prunefl-fixed",
          "fedselect-neurons", "fedper", "lg-fedavg", "fedbn", "local-training"]  # fmt: skip
# single numbers are left out, or the rest of a whole network is frozen: the steps must hold it
REFUSED = {"fedprox", "scaffold", "feddyn", "feddc", "heterofl", "loom", "safari",
           "fedrep", "ditto", "apfl", "pfedme", "fedavg-ft", "fedbabu", "hetlora",
           "fiarse", "prunefl", "fedselect", "fedtiny", "fedmef", "fedrts", "feddst", "depthfl"}  # fmt: skip
# they change the steps, look, train two models, or train once more to be tried
HELD = ["fedspu", "splitfl", "keep-own-frozen", "scattered", "oap", "oap-largest", "ra-fed-period"]


# ---- equality with fedloom's own rounds


@pytest.mark.parametrize("name", PLAIN)
def test_plain_clients_play_the_method(name: str) -> None:
    method = MAKERS[name]()
    assert not needs_mod(method)
    assert close(Played(method, world("mlp")).model, played("mlp", method).model)


@pytest.mark.parametrize("network", ["cnn", "normed"])
def test_running_statistics_and_convolutions_travel(network: str) -> None:
    method = small(fedavg())
    assert close(Played(method, world(network)).model, played(network, method).model)


@pytest.mark.parametrize("name", FREELY)
def test_the_mod_plays_the_client_half_around_plain_steps(name: str) -> None:
    method = MAKERS[name]()
    assert needs_mod(method)
    here = Played(method, world("mlp"))
    assert not here.grid.errors
    assert close(here.model, played("mlp", method).model)


@pytest.mark.parametrize("network", ["cnn", "normed"])
@pytest.mark.parametrize("name", ["feddd", "fjord"])
def test_the_mod_knows_convolutions_and_norms(name: str, network: str) -> None:
    method = MAKERS[name]()
    assert close(Played(method, world(network)).model, played(network, method).model)


@pytest.mark.parametrize("name", HELD)
def test_holding_makes_the_others_equal_too(name: str) -> None:
    method = MAKERS[name]()
    own = played("mlp", method).model
    assert not close(Played(method, world("mlp")).model, own)
    assert close(Played(method, world("mlp"), held=True).model, own)


def test_one_step_is_equal_without_holding() -> None:
    method = small(fedspu(), work=Work(steps=1, batch=6))
    assert close(Played(method, world("mlp")).model, played("mlp", method).model)


@pytest.mark.parametrize(("activation", "sleeps"), [(nn.Tanh, True), (nn.Sigmoid, False)])
def test_left_out_neurons_sleep_where_activations_are_0_at_0(activation: type[nn.Module], sleeps: bool) -> None:
    net = hashed(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), activation(), nn.Linear(8, 3)))
    base = world("mlp")
    here = world_of(net, base.data, base.shards.examples.split(base.shards.sizes))
    method = small(fjord())
    own = play(here, method, here.local(method)).model
    assert close(Played(method, here).model, own) == sleeps
    assert close(Played(method, here, held=True).model, own)


@pytest.mark.parametrize("name", ["fedcs", "oort", "power-of-choice"])
def test_selections_that_learn_work_with_plain_clients(name: str) -> None:
    here = Played(MAKERS[name](), world("mlp"))
    assert here.total("replies") > 0
    assert here.model.isfinite().all()
    assert not torch.equal(here.model, world("mlp").model)


def test_every_method_is_played_or_refused_by_name() -> None:
    net, example = world("mlp").setting.module, world("mlp").data.x[:1]
    for name in BY_NAME:
        if name in REFUSED:
            for make in (strategy, masked):
                with pytest.raises(BadExperiment, match=r"use fedloom\.flower\.client_app\(\)"):
                    make(name, net, example)
        elif not BY_NAME[name]().pace.barrier:
            with pytest.raises(BadExperiment, match="takes replies as they come"):
                strategy(name, net, example)
        else:
            assert not needs_mod(strategy(name, net, example).method) or masked(name, net, example)
    assert set(BY_NAME) > REFUSED


# ---- bytes


def test_feddd_sends_less_up() -> None:
    whole = Played(small(fedavg(), select=feddd().select), world("cnn"), rounds=4)
    less = Played(small(feddd(budget=0.4, class_term=False)), world("cnn"), rounds=4)
    per_round = [int(r["upload-bytes"]) for r in less.result.train_metrics_clientapp.values()]
    assert max(per_round[1:]) < per_round[0]
    assert less.grid.received < whole.grid.received
    assert less.total("upload-bytes") < whole.total("upload-bytes")


def test_a_fresh_node_gets_the_first_model_once() -> None:
    here = Played(small(fedspu()), world("cnn"), rounds=3)
    down = [int(r["download-bytes"]) for r in here.result.train_metrics_clientapp.values()]
    assert down[2] < down[0]
