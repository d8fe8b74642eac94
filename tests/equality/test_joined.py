"""Runs that are trained together give the numbers that each gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedloom.core.work import Work
from fedloom.engine.client import Chunk
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.gradient.fastest import Chosen, fastest_gradient
from fedloom.engine.joint import cat_chunks, why_apart
from fedloom.engine.local import Local, local_engine
from fedloom.engine.storage.shards import Shards
from fedloom.method import Method
from fedloom.parts.local.prox import Prox
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.many_runs import in_step
from pieces import NETWORKS
from worlds import (
    METHODS,
    Run,
    World,
    assert_close,
    assert_identical,
    every_method,
    everything,
    fleet_of,
    play,
    small,
    states_of,
    world,
)


def dealt(here: World, by: int) -> World:
    """The same data and network with another partition: clients of other sizes and examples."""
    order = torch.arange(len(here.data.y)).roll(by)
    sizes = [*here.shards.sizes[by % 5 :], *here.shards.sizes[: by % 5]]
    shards = Shards(list(order.split(sizes)), torch.device("cpu"))
    return here._replace(shards=shards, setting=replace(here.setting, fleet=fleet_of(here.data, shards)))


def engine_of(here: World, method: Method, chosen: Chosen, captured: bool, chunk: int | None = None) -> Local:
    """An engine that shares its gradient with others."""
    return local_engine(here.clients(method), chunk, chosen=chosen, graphs=Graphs(capture=False) if captured else None)


def both(
    network: str,
    methods: Sequence[Method],
    rounds: int = 2,
    captured: bool = False,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Run], list[Run], list[Local], list[Local]]:
    """Each method on a partition and with a seed of its own, alone and in company."""
    first = world(network, dtype)
    chosen = fastest_gradient(first.setting, first.data)
    worlds = [dealt(first, 7 * n) if n else first for n in range(len(methods))]

    def engines() -> list[Local]:
        return [engine_of(*each, chosen, captured, chunk) for each in zip(worlds, methods)]

    apart, close = engines(), engines()
    seeds = [7 + n for n in range(len(methods))]
    alone = [play(*each, rounds, seed) for *each, seed in zip(worlds, methods, apart, seeds)]
    calls = [
        (engine, lambda _, w=w, m=m, e=engine, s=seed: play(w, m, e, rounds, s))
        for w, m, engine, seed in zip(worlds, methods, close, seeds)
    ]
    return alone, in_step(calls), apart, close


def assert_equal_runs(
    alone: list[Run], company: list[Run], apart: list[Local], close: list[Local], tolerance: float = 1e-6
) -> None:
    """Models, what the server and the clients remember, and all that was reported."""
    for ours, theirs, one, other in zip(company, alone, close, apart):
        assert_close(everything(ours), everything(theirs), tolerance)
        known = one.clients.states.known().tolist()
        assert known == other.clients.states.known().tolist()
        mine, their = (states_of(engine, known, theirs.model) for engine in (one, other))
        assert_close(mine, their, 10 * tolerance)  # some are divided by rates
        for reply, wanted in zip(ours.replies, theirs.replies):
            assert torch.equal(reply.ids, wanted.ids)
            assert_close(reply.report, wanted.report, tolerance)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks were trained at a time."""
    seen: list[int] = []

    def spy(chunks: Sequence[Chunk]) -> object:
        seen.append(len(chunks))
        return cat_chunks(chunks)

    monkeypatch.setattr("fedloom.engine.joint.cat_chunks", spy)
    return seen


@every_method
def test_seeds_together_equal_each_alone(method: Method, calls: list[int]) -> None:
    assert_equal_runs(*both("normed", [method] * 3, dtype=torch.float64), tolerance=1e-10)
    assert bool(calls) != method.local.traits.reads_model, "rules that read the model, and no others, train apart"


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord", "fedspu"])
def test_single_precision_on_every_network(name: str, network: str) -> None:
    assert_equal_runs(*both(network, [dict(METHODS)[name]()] * 2))


def test_nothing_but_the_products_size_changes_bits() -> None:
    method = small(Method(), work=Work(steps=3, batch=4))  # nobody is ever alone in a step
    alone, company, *_ = both("mlp", [method] * 3)
    for ours, theirs in zip(company, alone):
        assert_identical(everything(ours), everything(theirs))


ALIKE = {
    "selections": ("fedavg", "fedcs", "oort", "power-of-choice"),
    "sub-models": ("fjord", "fedrolex", "federated-dropout"),
    "uploads": ("fedavg", "feddd", "mifa"),
}


@pytest.mark.parametrize("names", ALIKE.values(), ids=list(ALIKE))
def test_methods_together(names: tuple[str, ...], calls: list[int]) -> None:
    assert_equal_runs(*both("normed", [dict(METHODS)[name]() for name in names]))
    assert calls


def test_who_trains_alike(calls: list[int]) -> None:
    plain, prox = small(Method()), small(Method(local=Prox(0.1)))
    assert_equal_runs(*both("mlp", [plain, prox, replace(plain, select=Uniform(3)), prox]))
    assert set(calls) == {2}, "two and two"
    calls.clear()
    slower = replace(plain, optimiser=replace(plain.optimiser, rate=0.05))
    assert_equal_runs(*both("mlp", [plain, slower]))
    assert not calls, "another learning rate is another training"


def test_cohorts_and_work_of_any_size() -> None:
    few = small(Method(select=Bernoulli(0.3)), work=Work(epochs=2, batch=3))
    many = small(Method(select=Uniform(12)), work=Work(steps=4, batch=20))
    assert_equal_runs(*both("normed", [few, many, few], rounds=4, dtype=torch.float64), tolerance=1e-10)


@pytest.mark.parametrize("chunk", [1, 10, 20])
def test_no_more_rows_than_fit(chunk: int, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    learn = Local.learn
    monkeypatch.setattr(Local, "learn", lambda self, one: rows.append(len(one.ids)) or learn(self, one))
    assert_equal_runs(*both("mlp", [small(Method())] * 3, chunk=chunk))
    assert max(rows) <= chunk
    assert bool(calls) == (chunk == 20), "8 clients a round"


@pytest.mark.parametrize("name", ["fedavg", "fedavg-heavy", "scaffold", "fjord", "safari", "fedumf-feddc"])
def test_in_buffers_that_stand_still(name: str) -> None:
    method = dict(METHODS)[name]()
    alone, company, *_ = both("normed", [method] * 3, captured=True)
    for ours, theirs in zip(company, alone):
        assert_close(everything(ours), everything(theirs), 1e-5)


class Odd(Prox):
    """A rule of a user's own, which might read the global model."""


def test_rules_of_ones_own_are_trained_apart(calls: list[int]) -> None:
    method = small(Method(local=Odd(0.1)))
    alone, company, engines, _ = both("mlp", [method] * 2)
    assert_identical(everything(company[1]), everything(alone[1]))
    assert not calls
    assert "Odd may read the global model" in str(why_apart(engines[0]))
