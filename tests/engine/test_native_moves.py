"""The C code with every optimiser and with local rules that shift gradients: the loop's steps, states and moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.rule import LocalRule, Shift, Traits
from fedloom.core.types import Examples, State, Task
from fedloom.core.work import Work
from fedloom.data.augment import Flip
from fedloom.engine import steps
from fedloom.engine.cpu import blocks, native_steps
from fedloom.engine.cpu.native.move import Moves
from fedloom.engine.local import Local
from fedloom.engine.loop import Loop
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.feddyn import feddyn
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedumf import fedumf
from fedloom.methods.safari import safari
from fedloom.methods.scaffold import ControlVariates, scaffold
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked
from fedloom.round import play_round
from native_worlds import NETWORKS, convs, here, needs_compiler
from worlds import SEED, Run, World, assert_close, assert_identical, everything, play, states_of, world_of

pytestmark = needs_compiler

WORK = Work(epochs=2, batch=4)  # ten examples each: last batches are short
OPTIMISERS: dict[str, Optimiser] = {
    "plain": Sgd(rate=0.1),
    "decay": Sgd(rate=0.1, weight_decay=0.05),
    "heavy": Sgd(rate=0.05, momentum=0.9, weight_decay=0.01),
    "kept": Sgd(rate=0.05, momentum=0.9, decay=0.9, fresh=False),
    # a control variate is what came of steps divided by their rate, and a small eps makes the most of rounding errors
    "adam": Adam(rate=0.1, weight_decay=0.01, eps=1.0),
    "kept adam": Adam(rate=0.1, decay=0.9, eps=1.0, fresh=False),
}
RULES: dict[str, Method] = {
    "fedavg": Method(),
    "fedprox": fedprox(0.5),
    "scaffold": scaffold(),
    "feddyn": feddyn(0.3),
    "feddc": feddc(0.3),
    "two at once": replace(scaffold(), local=Chain((Prox(0.2), ControlVariates(), LocalRule()))),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@cache
def place_of(name: str) -> World:
    """A network of `NETWORKS`, with clients of unlike sizes."""
    place = here(NETWORKS[name]())
    return world_of(place.setting.module, place.data, torch.arange(40).split([10, 3, 9, 10, 1, 7]))


def played_natively(
    place: World, method: Method, monkeypatch: pytest.MonkeyPatch, rounds: int = 3, sliced: bool = True
) -> tuple[Run, Local]:
    """A run of which the C code takes every step."""
    engine = place.local(method, sliced=sliced)
    assert engine.plan.steps[0] == "native", engine.plan.reasons
    monkeypatch.setitem(steps.WAYS, "autograd", None)
    monkeypatch.setitem(steps.WAYS, "fused", None)
    found = play(place, method, engine, rounds)
    monkeypatch.undo()
    return found, engine


def same(place: World, runs: tuple[Run, Run], engines: tuple[Local | Loop, Local | Loop], tolerance: float) -> None:
    """Models of every round, what came up last, and all that clients and server remember."""
    for ours, theirs in zip(*(run.models for run in runs)):
        assert_close({"model": ours}, {"model": theirs}, tolerance)
    mine, other = (run.replies[-1] for run in runs)
    assert_close(
        {"loss": mine.report["loss"], **mine.extras}, {"loss": other.report["loss"], **other.extras}, tolerance
    )
    assert_close(everything(runs[0]), everything(runs[1]), tolerance)
    ids = sorted({int(i) for reply in runs[0].replies for i in reply.ids})
    assert_close(*(states_of(engine, ids, place.model) for engine in engines), tolerance)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("network", ["pooled", "dense", "no bias"])
def test_a_run_is_the_loops(network: str, rule: str, optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = replace(RULES[rule], optimiser=OPTIMISERS[optimiser], work=WORK)
    place = place_of(network)
    ours, engine = played_natively(place, method, monkeypatch)
    oracle = place.loop(method)
    theirs = play(place, method, oracle, 3)
    same(place, (ours, theirs), (engine, oracle), 5e-6)
    assert not torch.equal(ours.model, place.model)


@pytest.mark.parametrize("network", ["pooled", "dense"])
@pytest.mark.parametrize("rule", ["fedavg", "fedprox", "feddyn"])
def test_adam_as_it_comes(network: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of neurons that no example reaches have no gradient at all, and Adam makes much of anything else."""
    place = place_of(network)
    place = place._replace(data=Examples(place.data.x.clamp(min=0.9), place.data.y))
    method = replace(RULES[rule], optimiser=Adam(), work=WORK)
    ours, engine = played_natively(place, method, monkeypatch, 2)
    oracle = place.loop(method)
    same(place, (ours, play(place, method, oracle, 2)), (engine, oracle), 5e-6)


TIERS = {"allocate": Tiers((0.3, 0.6, 1.0)), "mask": Ranked("random")}


def part_of(kind: str, rule: str, optimiser: str) -> Method:
    """A rule on sub-models: cut ones, or whole networks of which a part is frozen."""
    method, rest = RULES[rule], SubModel() if kind == "sliced" else KeepOwn(freeze=True)
    return replace(method, **TIERS, local=Chain((rest, method.local)), optimiser=OPTIMISERS[optimiser], work=WORK)


@pytest.mark.parametrize("optimiser", ["plain", "heavy", "kept", "adam", "kept adam"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["sliced", "frozen"])
def test_sub_models_are_the_masked_loops(kind: str, rule: str, optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, method = place_of("pooled"), part_of(kind, rule, optimiser)
    ours, engine = played_natively(place, method, monkeypatch)
    assert engine.plan.parts == kind
    oracle = place.loop(method)
    same(place, (ours, play(place, method, oracle, 3)), (engine, oracle), 5e-6)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("rule", ["fedavg", "scaffold"])
@pytest.mark.parametrize("network", ["pooled", "dense"])
def test_masks_of_single_numbers_are_held(
    network: str, rule: str, optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mask holds moves in no step, and its kept moments do not either."""
    place, method = place_of(network), part_of("sliced", rule, optimiser)
    ours, engine = played_natively(place, method, monkeypatch, sliced=False)
    oracle = place.loop(method)
    same(place, (ours, play(place, method, oracle, 3)), (engine, oracle), 5e-6)


def test_every_client_prunes_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    place, method = place_of("dense"), replace(safari(pruner="rand"), work=Work(steps=5, batch=64))
    ours, engine = played_natively(place, method, monkeypatch)
    oracle = place.loop(method)
    same(place, (ours, play(place, method, oracle, 3)), (engine, oracle), 5e-6)


@pytest.mark.parametrize("reference", ["global", "fused"])
def test_a_missed_update_is_fused_below_a_shift(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fedumf(base="feddc", drift=0.3, reference=reference, probability=0.5)
    method = replace(method, optimiser=OPTIMISERS["heavy"], work=WORK)
    place = place_of("pooled")
    ours, engine = played_natively(place, method, monkeypatch, 4)
    oracle = place.loop(method)
    same(place, (ours, play(place, method, oracle, 4)), (engine, oracle), 5e-6)


@pytest.mark.parametrize("optimiser", ["kept", "kept adam"])
@pytest.mark.parametrize("kind", ["whole", "sliced", "frozen"])
def test_transformed_examples_block_by_block(kind: str, optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block has its own rows of shifts and moments."""
    place = place_of("pooled")
    place = place._replace(setting=replace(place.setting, transform=Flip()))
    whole = replace(RULES["feddc"], optimiser=OPTIMISERS[optimiser], work=WORK)
    method = whole if kind == "whole" else part_of(kind, "feddc", optimiser)
    oracle = place.loop(method)
    monkeypatch.setattr(blocks, "SMALL", 1)  # one client each
    engine = place.local(method)
    assert engine.plan.steps[0] == "native"
    same(place, (play(place, method, engine, 3), play(place, method, oracle, 3)), (engine, oracle), 5e-6)


@pytest.mark.parametrize("optimiser", ["heavy", "kept", "adam", "kept adam"])
@pytest.mark.parametrize("rule", ["fedavg", "feddc"])
@pytest.mark.parametrize("kind", ["whole", "sliced", "frozen"])
def test_threads_and_chunks_change_no_bit(kind: str, rule: str, optimiser: str) -> None:
    place = place_of("pooled")
    whole = replace(RULES[rule], optimiser=OPTIMISERS[optimiser], work=WORK)
    method = whole if kind == "whole" else part_of(kind, rule, optimiser)
    torch.set_num_threads(1)
    engine = place.local(method)
    alone = play(place, method, engine, 2)
    for threads, chunk in ((4, None), (3, 2), (4, 1)):
        torch.set_num_threads(threads)
        again = place.local(method, chunk)
        assert_identical(everything(play(place, method, again, 2)), everything(alone))
        assert_identical(*(states_of(one, [0, 1, 5], place.model) for one in (again, engine)))


@pytest.mark.parametrize("optimiser", ["kept", "kept adam"])
@pytest.mark.parametrize("rule", ["fedavg", "scaffold", "feddc"])
@pytest.mark.parametrize("kind", ["whole", "sliced", "frozen"])
def test_resumed_is_straight(kind: str, rule: str, optimiser: str) -> None:
    place = place_of("pooled")
    whole = replace(RULES[rule], optimiser=OPTIMISERS[optimiser], work=WORK)
    method = whole if kind == "whole" else part_of(kind, rule, optimiser)
    straight = play(place, method, place.local(method), 4)
    half = place.local(method)
    run = play(place, method, half, 2)
    resumed = place.local(method)
    resumed.load({name: value.clone() for name, value in half.save().items()})
    model, memory = run.model, run.memory
    for number in (3, 4):
        model, memory, *_ = play_round(method, memory, model, place.setting, resumed, Chance(SEED, number))
    assert_identical({"model": model}, {"model": straight.model})


@pytest.mark.parametrize("optimiser", ["plain", "kept", "kept adam"])
@pytest.mark.parametrize("kind", ["sliced", "frozen"])
def test_what_was_not_sent_is_not_read(kind: str, optimiser: str) -> None:
    """NaN in a client's state or start outside what it trains reaches nothing that is trained, sent or kept."""
    place, method = place_of("pooled"), part_of(kind, "feddc", optimiser)
    engine, spoilt = place.local(method), place.local(method)
    run = play(place, method, engine, 1)
    spoilt.load({name: value.clone() for name, value in engine.save().items()})
    task = run.tasks[0]
    assert task.mask is not None
    ids = torch.arange(len(task.mask))
    state = states_of(spoilt, ids.tolist(), place.model)
    for name, value in state.items():
        if value.shape == task.mask.shape and not name.endswith("own"):
            value[~task.mask] = float("nan")
    spoilt.clients.states.put(ids.tolist(), state)
    replies = [one.train(ids, task._replace(round=2), Chance(SEED, 2)) for one in (engine, spoilt)]
    sent = [torch.where(task.mask, reply.params, 0) for reply in replies]
    assert torch.equal(*sent)
    after = [states_of(one, ids.tolist(), place.model) for one in (engine, spoilt)]
    for name, value in after[0].items():
        if value.shape == task.mask.shape:
            assert torch.equal(*(torch.where(task.mask, own[name], 0) for own in after)), name
            if not name.endswith("own") and kind == "sliced":
                assert after[1][name][~task.mask].isnan().all(), name


def test_company_that_is_nan_changes_no_bit() -> None:
    place = place_of("pooled")
    method = replace(feddc(0.3), optimiser=OPTIMISERS["kept adam"], work=WORK)
    engine, spoilt = place.local(method), place.local(method)
    model, memory = place.model, method.init(place.setting, place.model)
    first = play(place, method, engine, 1)
    spoilt.load({name: value.clone() for name, value in engine.save().items()})
    ids = torch.arange(6)
    state = states_of(spoilt, [2], model)
    spoilt.clients.states.put([2], {**state, "drift": torch.full_like(state["drift"], torch.nan)})
    task = first.tasks[0]._replace(round=2)
    ours, theirs = (one.train(ids, task, Chance(SEED, 2)) for one in (engine, spoilt))
    assert theirs.params[2].isnan().all()
    others = ids != 2
    assert torch.equal(ours.params[others], theirs.params[others])
    assert memory.keys()


@dataclass(frozen=True)
class Misled(Prox):
    """A rule whose gradients become more than its shift says."""

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        return super().correct(task, state, first, params, grads) * 0.5


def test_a_correct_of_ones_own_is_never_passed_by() -> None:
    place, method = place_of("dense"), Method(local=Misled(0.5), optimiser=Sgd(rate=0.1), work=WORK)
    assert Misled(0.5).traits.shifts
    assert not Misled(0.5).only_shifts
    assert not Chain((SubModel(), Misled(0.5))).only_shifts
    engine = place.local(method)
    assert engine.plan.steps == ("autograd",)
    assert "otherwise than by a pull to the start" in dict(engine.plan.reasons)["native"]
    assert_close(
        everything(play(place, method, engine, 2)), everything(play(place, method, place.loop(method), 2)), 5e-6
    )


@dataclass(frozen=True, kw_only=True)
class Lazy(Sgd):
    """A heavy ball of one's own, with steps of half the length."""

    def move(self, moments: State, grads: Tensor, rate: float) -> Tensor:
        return super().move(moments, grads, rate) * 0.5


@pytest.mark.parametrize("network", ["pooled", "dense"])
def test_an_optimiser_that_steps_otherwise_is_found_out(network: str) -> None:
    place = place_of(network)
    for optimiser in (Lazy(rate=0.1), Lazy(rate=0.1, momentum=0.5)):
        assert native_steps.why_not_native(place.setting, place.data, optimiser).startswith("it differs from plain Py")
        method = Method(optimiser=optimiser, work=WORK)
        engine = place.local(method)
        assert "native" not in engine.plan.steps
        assert "differs from plain PyTorch" in dict(engine.plan.reasons)["native"]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("what", ["pull", "push", "rate"])
def test_steps_that_go_wrong_are_found_out(what: str, optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of this network's own steps has a shift and moments in it."""
    place = here(convs(5, 9, dense=(13,)))
    facts = Moves.facts

    def wrong(self: Moves, clients: int, steps: Tensor, most: int) -> object:
        if not self.shift.pulls:
            return facts(self, clients, steps, most)
        shift = self.shift
        changes = {
            "pull": {"shift": Shift(shift.pull * 1.1, shift.push)},
            "push": {"shift": Shift(shift.pull, -shift.push)},  # type: ignore[operator]
            "rate": {"rate": self.rate * 1.1},
        }
        return facts(replace(self, **changes[what]), clients, steps, most)

    chosen = OPTIMISERS[optimiser]
    monkeypatch.setattr(Moves, "facts", wrong)
    assert native_steps.why_not_native(place.setting, place.data, chosen, shifts=True).startswith("it differs from pl")
    monkeypatch.undo()
    place = here(convs(5, 9, dense=(13,)))
    assert native_steps.why_not_native(place.setting, place.data, chosen, shifts=True) == ""


def test_a_shift_adds_up() -> None:
    draw = torch.Generator().manual_seed(5)
    first, now, grads, push = (torch.randn(3, 4, generator=draw, dtype=torch.float64) for _ in range(4))
    pull = torch.rand(3, 1, generator=draw, dtype=torch.float64)
    both = Shift(0.5) + Shift(pull, push) + Shift() + Shift(push=push)
    torch.testing.assert_close(both.added(first, now, grads), grads + (pull + 0.5) * (now - first) + 2 * push)
    assert torch.equal(both.rows(slice(1, 3)).added(first[1:], now[1:], grads[1:]), both.added(first, now, grads)[1:])
    assert Shift().added(first, now, grads) is grads
    assert torch.equal(Shift(0.7).added(first, first, grads), grads), "exactly nothing at the start"


def test_traits_of_shifts() -> None:
    assert DriftCorrection().only_shifts
    assert Chain((SubModel(), Prox(0.1), ControlVariates())).only_shifts
    assert not Prox(0).only_shifts
    assert not Method().local.only_shifts
    with pytest.raises(BadExperiment, match="shifts=True but corrects=False"):
        Traits(shifts=True)
