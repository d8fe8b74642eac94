"""Runs that are trained together give the numbers that each gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedloom.engine.joined import Joint, alike, joined
from fedloom.engine.local import Chunk, Local, Shards
from fedloom.engine.replay import Replays
from fedloom.local.prox import Prox
from fedloom.local.work import Work
from fedloom.method import Method
from fedloom.select.bernoulli import Bernoulli
from fedloom.select.uniform import Uniform
from fedloom.stack import in_step
from pieces import NETWORKS
from worlds import METHODS, Run, World, assert_close, every_method, everything, fleet_of, play, states_of, world


def dealt(here: World, by: int) -> World:
    """The same data and network with another partition: clients of other sizes and examples."""
    order = torch.arange(len(here.data.y)).roll(by)
    sizes = [*here.shards.sizes[by % 5 :], *here.shards.sizes[: by % 5]]
    shards = Shards(list(order.split(sizes)), torch.device("cpu"))
    return here._replace(shards=shards, setting=replace(here.setting, fleet=fleet_of(here.data, shards)))


def engine_of(here: World, method: Method, gradient: object, walk: object = None, chunk: int | None = None) -> Local:
    """An engine that shares its gradient with others."""
    own = here.data, here.shards
    return Local(method, here.setting, here.data, here.shards, chunk, gradient, True, own, walk)  # type: ignore[arg-type]


def both(
    network: str,
    methods: Sequence[Method],
    rounds: int = 2,
    capture: bool = False,
    chunk: int | None = None,
) -> tuple[list[Run], list[Run], list[Local], list[Local]]:
    """Each method on a partition and with a seed of its own, alone and in company."""
    first = world(network)
    gradient = first.local(methods[0]).gradient
    worlds = [dealt(first, 7 * n) if n else first for n in range(len(methods))]

    def engines() -> list[Local]:
        walks = [Replays(capture=False) if capture else None for _ in methods]
        return [engine_of(*each, gradient, walk, chunk) for *each, walk in zip(worlds, methods, walks)]

    apart, close = engines(), engines()
    seeds = [7 + n for n in range(len(methods))]
    alone = [play(*each, rounds, seed) for *each, seed in zip(worlds, methods, apart, seeds)]
    calls = [
        (engine, lambda _, w=w, m=m, e=engine, s=seed: play(w, m, e, rounds, s))
        for w, m, engine, seed in zip(worlds, methods, close, seeds)
    ]
    return alone, in_step(calls), apart, close


def assert_equal_runs(alone: list[Run], company: list[Run], apart: list[Local], close: list[Local]) -> None:
    """Models, what the server and the clients remember, and all that was reported."""
    for ours, theirs, one, other in zip(company, alone, close, apart):
        assert_close(everything(ours), everything(theirs), 1e-6)
        known = one.states.known().tolist()
        assert known == other.states.known().tolist()
        assert_close(states_of(one, known, theirs.model), states_of(other, known, theirs.model), 1e-5)  # some by rates
        for mine, their in zip(ours.replies, theirs.replies):
            assert torch.equal(mine.ids, their.ids)
            assert_close(mine.report, their.report, 1e-5)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks were trained at a time."""
    seen: list[int] = []

    def spy(chunks: Sequence[Chunk]) -> object:
        seen.append(len(chunks))
        return joined(chunks)

    monkeypatch.setattr("fedloom.engine.joined.joined", spy)
    return seen


@every_method
def test_seeds_together_equal_each_alone(method: Method, calls: list[int]) -> None:
    assert_equal_runs(*both("normed", [method] * 3))
    assert calls, "or nothing was trained together"


@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "normed"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord"])
def test_other_networks(name: str, network: str) -> None:
    assert_equal_runs(*both(network, [dict(METHODS)[name]()] * 2))
