"""A GPU gives what a CPU gives, captured steps what uncaptured ones give, and nothing waits for it inside a round."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.distributed import Distributed
from fedloom.engine.local import Local, local_engine
from fedloom.engine.protocol import Engine
from fedloom.engine.ranks import Ranks
from fedloom.method import Method
from fedloom.methods import METHODS, fedavg, fedspu, fjord, scaffold
from fedloom.parts import AsChange, Buffered, Polynomial
from fedloom.round import play_round
from fedloom.runs.build import Prepared, prepare, timed
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import clients_of
from fedloom.step import begin_flight, play_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

RANKING = {
    "feddd",
    "hermes",
    "fedmp",
    "prunefl-fixed",
    "fedselect-neurons",
}  # of trained weights: near ties change places
WAITING = {
    "fedcs", "oort", "power-of-choice", "mifa", "adaptivefl",  # who is selected is read back
    "hermes", "fedmp", "prunefl-fixed", "ist",  # widths change from round to round
    "fedmef",  # whether weights are extruded is asked of the round at every step
}  # fmt: skip
ADAPTED = {"hetlora", "flexlora"}  # refuse a network without adapters
ROUNDS = [name for name, make in METHODS.items() if make().pace.barrier and name not in ADAPTED]
VARIANTS: dict[str, Any] = {
    **{name: name for name in ROUNDS},
    "fedspu-stopping": {"name": "fedspu", "settings": {"early_stopping": True}},
    "safari-snip": {"name": "safari", "settings": {"pruner": "snip"}},
    "fedumf-feddc": {"name": "fedumf", "settings": {"base": "feddc"}},
    "ram-fed-element": {"name": "ram-fed", "settings": {"mode": "element"}},
    "feddd-models": {"name": "feddd", "settings": {"models": (0.5, 1.0)}},
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


class Played(NamedTuple):
    model: Tensor
    ids: Tensor
    mask: Tensor | None


def _prepared(name: str, device: str, clients: int = 100, model: str = "mlp") -> Prepared:
    """Digits on a fleet of devices, dealt unequally, so that clients take unequally many steps."""
    epochs = 2 if name == "fedselect" else 1  # whose passes take turns
    values = {
        "training": {"epochs": epochs, "batch": 10},
        "split": (0.7, 0, 0.3),
        "fleet": "table4",
        "clients": clients,
    }
    return prepare(Experiment(method=VARIANTS[name], device=device, model=model, **values))


def _played(here: Prepared, rounds: int = 5, engine: Engine | None = None) -> list[Played]:
    """What each round left, without the world around what trains."""
    engine = engine or here.trainer
    assert engine is not None
    method, setting, model = here.inputs.method, here.inputs.setting, here.inputs.model
    memory, out = method.init(setting, model), []
    for number in range(1, rounds + 1):
        chance = Chance(0, number, model.device)
        model, memory, task, reply = play_round(method, memory, model, setting, engine, chance)
        out.append(Played(model.cpu(), reply.ids.cpu(), None if task.mask is None else task.mask.cpu()))
    return out


def _local(here: Prepared, graphs: Graphs) -> Local:
    """An engine of its own, whose clients have not been met."""
    return local_engine(clients_of(here.inputs), here.inputs.placement.chunk, graphs=graphs)


@every_variant
def test_gpu_equals_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    method = VARIANTS[name] if isinstance(VARIANTS[name], str) else VARIANTS[name]["name"]
    for theirs, ours in zip(_played(_prepared(name, "cpu")), _played(_prepared(name, "cuda"))):
        if method not in RANKING:
            assert torch.equal(theirs.ids, ours.ids)
            torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-5)
        if theirs.mask is not None:
            assert ours.mask is not None
            differing = (theirs.mask != ours.mask).double().mean()
            assert differing <= (0.02 if method in RANKING else 0)


@pytest.mark.parametrize("make", [fedavg, fjord, scaffold, fedspu])
def test_steps_without_a_barrier_equal_those_of_a_cpu(make: Callable[[], Method], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    method = replace(make(), pace=Buffered(8, 40), stale=AsChange(Polynomial(0.5)))
    flown = []
    for device in ("cpu", "cuda"):
        values = {"training": {"epochs": 1, "batch": 10}, "fleet": "iot", "channel": "bernoulli", "device": device}
        here = prepare(Experiment(**values), method)
        setting, model, steps = here.inputs.setting, here.inputs.model, []
        memory, flight = method.init(setting, model), begin_flight(method, setting, model)
        for _ in range(6):  # later a unit at the kink of ReLU turns 1e-7 into 1e-4
            steps.append(play_step(method, memory, flight, setting, timed(here), 0))
            memory = steps[-1].memory
        flown.append(([step.model.cpu() for step in steps], flight.now))
    (theirs, then), (ours, now) = flown
    assert now == pytest.approx(then, rel=1e-12)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_dropout_strikes_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    theirs, ours = (_played(_prepared("fedavg", device, model="ra-mlp"), 3)[-1] for device in ("cpu", "cuda"))
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-5)


@every_variant
def test_captured_steps_equal_uncaptured_ones(name: str) -> None:
    here = _prepared(name, "cuda")
    captured, plain = (_local(here, graphs) for graphs in (Graphs(), Graphs(capture=False)))
    for ours, theirs in zip(_played(here, engine=captured), _played(here, engine=plain)):
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.model, theirs.model)


@pytest.mark.parametrize("name", ["fedavg", "fedrolex", "heterofl", "fedspu"])
def test_attention_is_cut_and_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here = _prepared(name, "cuda", clients=20, model="vit")
    captured, plain = (_local(here, graphs) for graphs in (Graphs(), Graphs(capture=False)))
    ours, theirs = _played(here, 3, captured), _played(here, 3, plain)
    assert all(torch.equal(a.model, b.model) for a, b in zip(ours, theirs))
    assert captured.plan.parts == {"fedavg": "whole", "fedspu": "masked"}.get(name, "sliced")
    rounds = 1 if name == "heterofl" else 3  # whose divided weights blow up rounding a thousand times
    slow = _played(_prepared(name, "cpu", clients=20, model="vit"), rounds)
    torch.testing.assert_close(ours[rounds - 1].model, slow[-1].model, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ROUNDS if name not in WAITING])
def test_nothing_waits_inside_a_round(name: str) -> None:
    here = _prepared(name, "cuda", clients=10)  # of whom every one has been seen soon: the first contact may wait
    method, setting, model = here.inputs.method, here.inputs.setting, here.inputs.model
    engine, memory = _local(here, Graphs()), method.init(setting, model)
    for number in range(1, 15):
        _watch("error" if number > 12 else "default")  # by then everything has been captured
        try:
            chance = Chance(0, number, model.device)
            model, memory, _, _ = play_round(method, memory, model, setting, engine, chance)
        finally:
            _watch("default")
    assert bool(model.isfinite().all())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddd", "fedspu"])
def test_a_lone_rank_equals_local(name: str) -> None:
    here = _prepared(name, "cuda")
    led = Distributed(_local(here, Graphs()), Ranks(0, 1, here.inputs.model.device))
    for ours, theirs in zip(_played(here, engine=_local(here, Graphs())), _played(here, engine=led)):
        assert torch.equal(ours.ids, theirs.ids)
        torch.testing.assert_close(ours.model, theirs.model, rtol=1e-6, atol=1e-6)


GOALS: dict[str, dict[str, Any]] = {
    "numbers": {"data": "diabetes", "goal": "numbers", "partition": "iid"},
    "next-token": {
        "data": {"name": "shakespeare", "settings": {"roles": 6}}, "goal": "next-token", "clients": 6, "per_round": 4,
        "training": {"steps": 3},
    },
    "pixels": {
        "data": {"name": "shapes", "settings": {"clients": 6}}, "goal": "pixels", "clients": 6, "per_round": 4,
        "augment": ["flip", "crop"],
    },
    "classes": {
        "goal": {"name": "classes", "settings": {"smoothing": 0.1}}, "clients": 10, "per_round": 10,
        "augment": ["crop", "noise", "cutout"],
    },
    "mixed": {"augment": ["mixup"], "clients": 10, "per_round": 10},
}  # fmt: skip
ATOMIC = ("next-token", "pixels")  # gradients of embeddings and of pooling are added up in any order on a GPU


def _for_goal(name: str, device: str, method: str = "fedavg") -> Prepared:
    """A few clients that train for a goal."""
    work = {"training": {"epochs": 1, "batch": 10}}
    return prepare(Experiment(**{**work, "method": method, "device": device, "chunk": 4, **GOALS[name]}))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedspu"])
@pytest.mark.parametrize("name", GOALS)
def test_goals_and_transforms_on_a_gpu(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    theirs, here = _played(_for_goal(name, "cpu", method), 3), _for_goal(name, "cuda", method)
    for expected, ours in zip(theirs, _played(here, 3)):
        assert torch.equal(expected.ids, ours.ids)
        torch.testing.assert_close(ours.model, expected.model, rtol=0, atol=2e-5)
    captured, plain = (_local(here, graphs) for graphs in (Graphs(), Graphs(capture=False)))
    for ours, uncaptured in zip(_played(here, 3, captured), _played(here, 3, plain)):
        torch.testing.assert_close(ours.model, uncaptured.model, rtol=0, atol=4e-5 if name in ATOMIC else 0.0)


@pytest.mark.parametrize("name", [name for name in GOALS if name != "mixed"])  # who mixes reads sizes on the host
def test_nothing_waits_for_a_transform(name: str) -> None:
    here = _for_goal(name, "cuda")
    method, setting, model = here.inputs.method, here.inputs.setting, here.inputs.model
    engine, memory = _local(here, Graphs()), method.init(setting, model)
    for number in range(1, 21):
        _watch("error" if number > 18 else "default")
        try:
            chance = Chance(0, number, model.device)
            model, memory, _, _ = play_round(method, memory, model, setting, engine, chance)
        finally:
            _watch("default")
    assert bool(model.isfinite().all())


def _watch(mode: str) -> None:
    """What happens when the host waits for the device; torch says at the first call that it may overlook some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
