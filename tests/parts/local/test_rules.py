"""Local rules: corrections equal the gradient of the paper's penalty, and chains keep members apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import State, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.feddc import DriftCorrection
from fedloom.methods.feddyn import DynamicRegulariser
from fedloom.methods.heterofl import Rescale
from fedloom.methods.scaffold import ControlVariates
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.prune import Prune
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.local.sub_model import SubModel
from pieces import Scattered
from worlds import METHODS, changed, play, played, small, states_of, world

CLIENTS, NUMBERS, ALPHA = 3, 5, 0.3
SIZE = torch.tensor([0.5, 1.0, 1.75], dtype=torch.float64)  # relative numbers of examples


def draw(purpose: str, *shape: int) -> Tensor:
    """Numbers from -1 to 1 in double precision."""
    return Chance(6, 0).uniform(purpose, torch.arange(torch.Size(shape).numel())).double().view(shape) * 2 - 1


STATE = {"drift": draw("drift", CLIENTS, NUMBERS), "control": draw("control", CLIENTS, NUMBERS)}
GLOBAL = draw("global", NUMBERS)
TASK = Task(
    model=GLOBAL,
    mask=None,
    keep=None,
    share=torch.ones(CLIENTS),
    authorised=torch.ones(CLIENTS, dtype=torch.bool),
    extras={"size": SIZE, "control": draw("server", NUMBERS).expand(CLIENTS, -1)},
    round=3,
    rate=0.05,
    base_rate=0.1,
    trained=NUMBERS,
)


# What each paper adds to one client's loss: (weights w, drift h_i, control c_i, server's control c, relative size w_i)
Penalty = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
PENALTIES: dict[str, tuple[LocalRule, Penalty]] = {
    "prox": (Prox(ALPHA), lambda w, h, own, all_, size: ALPHA / 2 * (w - GLOBAL).square().sum()),
    "dyn": (
        DynamicRegulariser(ALPHA),
        lambda w, h, own, all_, size: ALPHA / size * (w @ (h - GLOBAL) + w.square().sum() / 2),
    ),
    "scaffold": (ControlVariates(), lambda w, h, own, all_, size: w @ (all_ / size - own)),
    "dc": (
        DriftCorrection(ALPHA),
        lambda w, h, own, all_, size: ALPHA / size / 2 * (h + w - GLOBAL).square().sum() + w @ (all_ / size - own),
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_correction_is_the_gradient_of_the_penalty(name: str) -> None:
    rule, penalty = PENALTIES[name]
    params, grads = draw("params", CLIENTS, NUMBERS), draw("grads", CLIENTS, NUMBERS)
    first = GLOBAL.expand(CLIENTS, -1)
    found = rule.correct(TASK, STATE, first, params, grads) - grads
    for row in range(CLIENTS):
        w = params[row].clone().requires_grad_()
        own = {key: value[row] for key, value in STATE.items()}
        value = penalty(w, own["drift"], own["control"], TASK.extras["control"][row], float(SIZE[row]))
        (expected,) = torch.autograd.grad(value, w)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-9)
    assert rule.traits.corrects


def test_corrections_of_a_chain_add_up() -> None:
    chain = Chain((Prox(0.2), Prox(0.5), LocalRule()))
    params, zeros, first = draw("params", CLIENTS, NUMBERS), torch.zeros(CLIENTS, NUMBERS), GLOBAL.expand(CLIENTS, -1)
    torch.testing.assert_close(
        chain.correct(TASK, {}, first, params, zeros), Prox(0.7).correct(TASK, {}, first, params, zeros)
    )
    assert chain.traits.corrects
    assert not Chain((LocalRule(), SubModel(), Prox(0))).traits.corrects


def test_a_chain_scales_by_the_product_of_its_members() -> None:
    share, at = torch.tensor([0.25, 0.5, 1.0]), torch.tensor([4, 0, 2])
    kinds, roles = torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32), torch.tensor([[2, 1, 0], [2, 1, 1], [2, 0, 1]])
    for each in (kinds.expand(CLIENTS, -1), kinds.repeat(CLIENTS, 1)):  # as it comes, and cut by an engine
        own = {"kinds": each, "roles": roles.to(torch.int8)}
        task = TASK._replace(extras=own, share=share)
        once = Rescale().scales(task, at, torch.float64)
        assert torch.equal(once, torch.tensor([[4, 4, 0], [2, 2, 1], [1, 1, 1]], dtype=torch.float64))
        assert torch.equal(once, Rescale().view(task, torch.ones(CLIENTS, NUMBERS, dtype=torch.float64))[:, at])
        for rules in ((SubModel(), Rescale()), (Rescale(), SubModel())):
            named = {f"{place}.{name}": value for place in range(len(rules)) for name, value in own.items()}
            assert torch.equal(Chain(rules).scales(task._replace(extras=named), at, torch.float64), once)
            assert Chain(rules).traits.scales
        twice = Chain((Rescale(), Rescale())).scales(task._replace(extras=named), at, torch.float64)
        assert torch.equal(twice, once * once)
    assert not Chain((Rescale(), Prox(0.1))).traits.scales
    assert Chain((SubModel(), Prox(0.1))).scales(TASK, at, torch.float64) is None


def test_members_of_a_chain_do_not_see_each_others_names() -> None:
    chain = Chain((ControlVariates(), DriftCorrection(), KeepOwn()))
    here = world("mlp")
    state, memory = chain.client_state(here.setting, here.model), chain.server_state(here.setting, here.model)
    assert set(state) == {"0.control", "1.drift", "1.control", "2.own"}
    assert set(memory) == {"0.control", "1.drift", "1.control"}
    brief = chain.brief(memory, here.setting, torch.tensor([1, 2]))
    assert set(brief) == {"0.control", "0.size", "1.control", "1.size"}


def test_what_a_chain_lets_move() -> None:
    mask = draw("mask", CLIENTS, NUMBERS) > 0
    task = TASK._replace(mask=mask)
    assert Chain((Prox(0.1), KeepOwn())).trains(task) is None
    assert torch.equal(Chain((SubModel(), KeepOwn(freeze=True), Prox(0.1))).trains(task), mask)


def test_a_chain_merges_the_traits_of_its_members() -> None:
    assert Chain(()).traits == Chain((LocalRule(), Prox(0))).traits == Traits()
    assert Chain((KeepOwn(freeze=True), Prox(0.1))).traits == Traits(
        corrects=True, shifts=True, freezes=True, needs_whole=True
    )
    assert Chain((Prune("snip", per_class=4), Prune("grasp", per_class=7), StopEarly())).traits == Traits(
        chooses=True, looks=7, judges=True
    )
    assert Chain((Rescale(), Chain((Rescale(), SubModel())))).traits == Traits(
        corrects=True, scales=True, cuts=True, masks_classes=True
    )


def test_frozen_are_only_parts_that_one_rule_alone_decides() -> None:
    assert Chain((Prox(0.1), Chain((KeepOwn(freeze=True),)))).traits.freezes
    assert not Chain((KeepOwn(freeze=True), Prune())).traits.freezes
    assert not Chain((KeepOwn(), Prox(0.1))).traits.freezes


@pytest.mark.parametrize("wrong", [{"scales": True}, {"looks": 3}])
def test_traits_that_need_another_are_refused_alone(wrong: dict[str, int]) -> None:
    with pytest.raises(BadExperiment, match=r"set (corrects|chooses)=True too"):
        Traits(**wrong)


def test_a_chain_has_the_personal_models_of_its_members() -> None:
    own = draw("own", CLIENTS, NUMBERS)
    assert torch.equal(Chain((Prox(0.1), KeepOwn())).personal(world("mlp").setting, GLOBAL, {"1.own": own}), own)
    assert Chain((Prox(0.1), LocalRule())).personal(world("mlp").setting, GLOBAL, {}) is None


def test_a_sub_models_client_is_served_by_its_neurons() -> None:
    here, rule = world("mlp"), SubModel()
    neurons = here.setting.neurons
    keep = torch.arange(neurons.size) < torch.tensor([[2], [5]])
    own = rule.personal(here.setting, here.model, {"keep": keep})
    assert own is not None
    assert torch.equal(own, torch.where(neurons.expand(keep), here.model, 0))
    assert torch.equal(rule.personal(here.setting, here.model, rule.client_state(here.setting, here.model)), here.model)


# Numbers outside the mask


@pytest.mark.parametrize("name", ["scattered", "scattered-heavy", "scattered-feddc"])
def test_a_sub_model_is_zero_outside(name: str) -> None:
    here, method = world("normed"), dict(METHODS)[name]()
    sent: list[tuple[Tensor, Tensor]] = []

    def look(reply, chance):  # type: ignore[no-untyped-def]
        sent.append((reply.params, reply.mask))
        return reply

    play(here, method, changed(here.local(method), look))
    for params, mask in sent:
        assert not params[~mask].any()
        assert params[mask].any()


def own_models(local: LocalRule) -> tuple[list[State], list[Task], list[Tensor]]:
    """States, tasks and what the clients began with, of three rounds of the whole fleet."""
    here = world("normed")
    method = small(Method(mask=Scattered(), local=local), select=Everyone)
    engine = here.local(method)
    states, ids = [states_of(engine, list(range(12)), here.model)], list(range(12))
    kept = changed(engine, lambda reply, chance: states.append(states_of(engine, ids, here.model)) or reply)
    run = play(here, method, kept)
    return states, run.tasks, [here.model, *run.models]


Everyone = small(Method()).select.__class__(12)


def test_an_own_model_takes_over_what_is_sent() -> None:
    for freeze in (False, True):
        states, tasks, models = own_models(KeepOwn(freeze))
        for number, task in enumerate(tasks):
            before, after = states[number]["own"], states[number + 1]["own"]
            assert task.mask is not None
            start = torch.where(task.mask, models[number], before)
            moved = after != start
            assert moved[task.mask].float().mean() > 0.9
            if freeze:
                assert not moved[~task.mask].any()
            else:
                assert moved[~task.mask].float().mean() > 0.9


def test_the_personal_model_is_the_own_one() -> None:
    own = draw("own", CLIENTS, NUMBERS)
    assert torch.equal(KeepOwn().personal(world("mlp").setting, GLOBAL, {"own": own}), own)
    assert Prox(0.1).personal(world("mlp").setting, GLOBAL, {}) is None


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
def test_running_statistics_are_not_corrected(name: str) -> None:
    run = played("normed", dict(METHODS)[name]())
    trained = world("normed").setting.layout.trained
    for key, value in run.memory["local"].items():
        assert value[:trained].any(), key
        assert not value[trained:].any(), key


@pytest.mark.parametrize("name", ["scattered-feddc"])
def test_states_do_not_move_outside_the_mask(name: str) -> None:
    here, method = world("mlp"), dict(METHODS)[name]()
    engine = here.local(method)
    run = play(here, method, engine, rounds=1)
    ids, mask = run.replies[0].ids.tolist(), run.tasks[0].mask
    assert mask is not None
    for key in ("1.drift", "1.control"):
        value = states_of(engine, ids, here.model)[key]
        assert not value[~mask].any(), key
        assert value[mask].any(), key


@pytest.mark.parametrize(("make", "text"), [(Prox, "mu"), (DynamicRegulariser, "alpha"), (DriftCorrection, "alpha")])
def test_negative_weights_are_refused(make: Callable[[float], LocalRule], text: str) -> None:
    with pytest.raises(BadExperiment, match=f"{text} .*is -0.5"):
        make(-0.5)
