"""Methods that make a model for each client: their limits, their penalties, and what never leaves a client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.rule import LocalRule
from fedloom.core.types import State, Task
from fedloom.core.work import Work
from fedloom.engine.clients import Clients
from fedloom.engine.local import local_engine
from fedloom.engine.loop import Loop
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.apfl import Mixed, apfl
from fedloom.methods.ditto import Pulled, ditto
from fedloom.methods.fedavg_ft import fedavg_ft
from fedloom.methods.fedbabu import fedbabu
from fedloom.methods.fedbn import fedbn
from fedloom.methods.fedper import fedper
from fedloom.methods.fedrep import fedrep
from fedloom.methods.lg_fedavg import lg_fedavg
from fedloom.methods.local_training import local_training
from fedloom.methods.pfedme import Moreau, pfedme
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.in_turn import InTurn
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.local.tune import Tune
from fedloom.parts.mask.share_layers import ShareLayers
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from pieces import Forced
from worlds import World, assert_close, assert_identical, play, played, small, states_of, world

COHORTS = ((0, 1, 2, 3, 4), (2, 4, 6, 8, 9), (0, 2, 5, 9, 11))
UNIFORM = Method(aggregate=CoverageMean("uniform"))


def tiny(method: Method, **changes: object) -> Method:
    """The method with the same clients in every comparison."""
    return small(replace(method, select=Forced(COHORTS)), **changes)


def states(here: World, method: Method, loop: bool = True) -> tuple[Tensor, State]:
    """The model and the states of all clients after three rounds."""
    engine = here.loop(method) if loop else here.local(method)
    model = play(here, method, engine).model
    return model, states_of(engine, list(range(12)), here.model)


@pytest.mark.parametrize("head", ["none", "norms"])
def test_with_nothing_private_it_is_fedavg_exactly(head: str) -> None:
    network = "normed" if head == "none" else "mlp"  # which has no norms
    ours = played(network, small(fedper(head))).model
    if head == "none":
        assert torch.equal(ours, played(network, small(Method())).model)
    else:
        assert_close({"model": ours}, {"model": played(network, small(Method())).model}, 2e-6)


def test_with_nothing_shared_other_clients_do_not_matter() -> None:
    here = world("normed")
    method = tiny(local_training(everyone=False))
    model, own = states(here, method)
    assert torch.equal(model, here.model)
    y = here.data.y.clone()
    first = here.shards.examples.split(here.shards.sizes)[0]
    y[first] = (y[first] + 1) % 3
    other = here._replace(data=here.data._replace(y=y))
    _, changed = states(other, method)
    same = [torch.equal(a, b) for a, b in zip(own["own"], changed["own"])]
    assert same == [client != 0 for client in range(12)]
    alone, _ = states(here, tiny(fedper("all")))
    assert torch.equal(alone, model)


@pytest.mark.parametrize(
    ("method", "private"),
    [
        (fedper(), "5"),
        (lg_fedavg("last:1"), "all-5"),
        (fedrep("5", 1, 1), "5"),
        (fedbabu(), "5"),
        (fedbn(everyone=False), "1"),
    ],
    ids=["fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn"],
)
def test_private_numbers_do_not_reach_the_server(method: Method, private: str) -> None:
    from fedloom.core.layers import layers_of

    here = world("normed")
    method = tiny(method, work=Work(epochs=2, batch=6))
    own = layers_of(here.setting).numbers(private)
    done = play(here, method, here.local(method))
    assert torch.equal(done.model[own], here.model[own])
    assert not torch.equal(done.model[~own], here.model[~own])
    for reply in done.replies:
        assert reply.mask is not None
        assert not reply.mask[:, own].any()
        assert torch.equal(reply.params[:, own], here.model[own].expand(len(reply.ids), -1))


def test_fedrep_without_head_epochs_is_fedbabu() -> None:
    here, work = world("mlp"), Work(epochs=2, batch=6)
    one, own = states(here, tiny(fedrep(head_epochs=0, body_epochs=2), work=work))
    other, _ = states(here, tiny(fedbabu(), work=work))
    assert_close({"model": one}, {"model": other}, 1e-6)
    assert torch.equal(own["0.own"], own["0.own"][:1].expand(12, -1))  # heads stay initial


def test_in_turn_trains_one_part_after_the_other() -> None:
    here = world("mlp")
    rule = Chain((KeepLayers("none"), InTurn("head", 1, 1)))
    for steps, moved in ((2, [True, True]), (1, [True, False])):  # of one step, half of it rounded down is none
        work = Work(steps=steps, batch=6)
        method = tiny(Method(local=rule, work=work), work=work)
        change = play(here, method, here.local(method), rounds=1).model - here.model
        assert [float(part.abs().max()) > 1e-6 for part in (change[:-27], change[-27:])] == moved


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_the_common_half_of_ditto_is_fedavg_exactly(network: str, loop: bool) -> None:
    here = world(network)
    plain, _ = states(here, tiny(UNIFORM), loop)
    for lam in (0.0, 0.5):
        assert torch.equal(states(here, tiny(ditto(lam)), loop)[0], plain)


@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_the_common_half_of_apfl_is_fedavg_exactly(network: str) -> None:
    here = world(network)
    plain, _ = states(here, tiny(UNIFORM, optimiser=Sgd(rate=0.1, clip=1e9)))  # step by step, not fused
    for adaptive in (None, "paper", "official"):
        assert torch.equal(states(here, tiny(apfl(0.4, adaptive)))[0], plain)


def test_own_models_without_the_common_one_are_local_training() -> None:
    here = world("mlp")
    _, alone = states(here, tiny(local_training(everyone=False)))
    for method in (ditto(0.0), apfl(1.0)):
        _, own = states(here, tiny(method))
        assert_close({"own": own["own"]}, {"own": alone["own"]}, 1e-5)


def test_apfl_without_an_own_part() -> None:
    here = world("mlp")
    _, own = states(here, tiny(apfl(0.0)))
    assert torch.equal(own["own"], here.model.expand(12, -1))
    assert torch.equal(Mixed(0.0).personal(here.setting, here.model, own), own["last"])


@pytest.mark.parametrize("settings", [{"lam": 0.0}, {"beta": 0.0}], ids=str)
def test_the_model_of_pfedme_stays(settings: dict[str, float]) -> None:
    here = world("normed")
    method = tiny(pfedme(repeat=2, **settings), work=Work(steps=3, batch=6, repeat=2))
    model, own = states(here, method)
    trained = here.setting.layout.trained
    assert_close({"model": model[:trained]}, {"model": here.model[:trained]}, 1e-6)  # it is a mean of equal numbers
    assert not torch.equal(own["own"][0], here.model)


def test_without_a_pull_pfedme_is_local_descent_from_the_model() -> None:
    here, work = world("mlp"), Work(steps=3, batch=6, repeat=2)
    _, own = states(here, tiny(pfedme(lam=0.0, repeat=2), work=work))
    engine = here.loop(tiny(Method(), work=work))
    reply = play(here, tiny(Method(), work=work), engine, rounds=1).replies[0]
    assert_close({"own": own["own"][[1, 3]]}, {"own": reply.params[[1, 3]]}, 1e-6)  # asked in the first round alone


def _task(extras: State) -> Task:
    """A task of one client."""
    one = torch.ones(1)
    return Task(torch.zeros(5), None, None, one, one.bool(), extras, 1, 0.1, 0.1, 5)


@pytest.mark.parametrize("rule", [Pulled(0.7), Moreau(0.7)], ids=lambda rule: type(rule).__name__)
def test_penalties_against_autograd(rule: LocalRule) -> None:
    w, sent, start = (torch.linspace(a, b, 5)[None] for a, b in ((-1, 2), (0.5, -0.5), (1, 3)))
    theta = w.clone().requires_grad_()
    (0.7 / 2 * (theta - sent).square().sum()).backward()
    task = _task({"sent": sent, "local": sent})
    ours = rule.correct(task, {"own": start}, start, w, torch.zeros_like(w))
    torch.testing.assert_close(ours, theta.grad)


def test_alpha_moves_by_its_gradient() -> None:
    """The paper's rule is the gradient of the loss of the mixture, here of a quadratic one."""
    w, v, goal = (torch.linspace(a, b, 5)[None] for a, b in ((-1, 2), (0.5, -0.5), (1, 3)))
    alpha = torch.tensor([0.4], requires_grad=True)
    ((alpha * v + (1 - alpha) * w - goal).square().sum() / 2).backward()
    task = _task({"own": v, "alpha": alpha.detach(), "first": torch.tensor([True])})._replace(rate=0.01)
    after = Mixed(0.4, "paper").after(task, {}, w, lambda params: params - goal)
    torch.testing.assert_close(after["alpha"], (alpha - 0.01 * alpha.grad).detach())
    second = task._replace(extras={**task.extras, "first": torch.tensor([False])})
    later = Mixed(0.4, "paper").after(second, {}, w, lambda params: params - goal)
    assert torch.equal(later["alpha"], alpha.detach())
    assert torch.equal(later["own"], after["own"])


@pytest.mark.parametrize("name", ["fedavg-ft", "fedavg-ft-head", "fedbabu", "fedper"])
@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_trying_models_leaves_no_trace(name: str, network: str) -> None:
    from worlds import METHODS

    here, method = world(network), dict(METHODS)[name]()
    own_test = here.data, here.shards

    def engine_of(loop: bool):
        clients = Clients(method, here.setting, here.data, here.shards, own_test=own_test)
        return Loop(clients) if loop else local_engine(clients)

    engine, other = engine_of(False), engine_of(False)
    half = play(here, method, engine, rounds=1)
    first = engine.personal(half.model)
    assert first is not None
    assert torch.equal(first, engine.personal(half.model))
    play(here, method, other, rounds=1)
    assert engine.clients.states.known().tolist() == other.clients.states.known().tolist()
    assert_identical(engine.save(), other.save())
    loop = engine_of(True)
    play(here, method, loop, rounds=1)
    torch.testing.assert_close(loop.personal(half.model), first, rtol=0, atol=0.04)  # one of 25 examples may turn


def test_tuning_is_training() -> None:
    """What is tried is the model after the epochs of a round from it, in the order of no round."""
    here = world("mlp")
    method = small(fedavg_ft(3), work=Work(epochs=1, batch=6))
    clients = Clients(method, here.setting, here.data, here.shards, own_test=(here.data, here.shards))
    engine = local_engine(clients)
    plain = small(Method(), work=Work(epochs=3, batch=6), select=Forced((tuple(range(12)),)))
    trainer = here.local(plain)
    ids = torch.arange(12)
    task = play(here, plain, trainer, rounds=1).tasks[0]
    params = trainer.train(ids, task._replace(ids=ids), Chance(0, 0)).params
    right = []
    for client, rows in enumerate(here.shards.examples.split(here.shards.sizes)):
        output = engine.gradient.outputs(params[client : client + 1], here.data.x[rows][None])[0]
        right.append((output.argmax(1) == here.data.y[rows]).double().mean())
    torch.testing.assert_close(engine.personal(here.model), torch.stack(right), rtol=0, atol=1e-9)
    head = Tune(3, "head").tunes
    assert head is not None
    assert head.rule != LocalRule()


def test_mixes_that_cannot_work_are_refused() -> None:
    with pytest.raises(BadExperiment, match="plain SGD"):
        replace(apfl(), optimiser=Sgd(momentum=0.9))
    with pytest.raises(BadExperiment, match="5 steps on a batch"):
        replace(pfedme(), work=Work(steps=5))
    with pytest.raises(BadExperiment, match="trains two models"):
        Method(local=Chain((ditto().local,)))
    with pytest.raises(BadExperiment, match="trains all of it"):
        replace(ditto(), mask=ShareLayers("body"))
    with pytest.raises(BadExperiment, match="epochs and rest"):
        InTurn("head", 0, 0)


def test_experiments_keep_examples_back_and_give_no_score_of_half_a_model() -> None:
    assert Experiment(method="fedper").split == (0.8, 0.0, 0.2)
    assert Experiment(method="fedper", split=(1.0, 0.0, 0.0)).split == (1.0, 0.0, 0.0)
    assert Experiment(method="fedavg").split == (1.0, 0.0, 0.0)
    assert Experiment(method="fedbn").model.settings == {"norm": "batch"}
    assert Experiment(method="fedbn", model="mlp").model.settings == {}
    settings = {"clients": 5, "rounds": 2, "training": {"epochs": 1}}
    halves, whole = (run(Experiment(method=name, **settings)) for name in ("fedper", "ditto"))
    assert (halves.score, halves.rounds[-1]["loss"]) == (None, None)
    assert halves.summary()["personal_score"] > 0
    assert whole.score is not None
    assert whole.rounds[-1]["personal_score"] > 0
    with pytest.raises(BadExperiment, match=r"names no layer or tensor of this network; its layers are: dense1"):
        run(Experiment(method={"name": "fedper", "settings": {"head": "fc9"}}, **settings))
