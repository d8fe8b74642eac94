"""SAFA against its algorithm written out client by client, and in its limits."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
import torch
from torch import Tensor

from fedloom import Experiment, run
from fedloom.chance import Chance
from fedloom.core.flight import FATES, SPARE
from fedloom.core.types import Reply, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.safa import CachedMean, FirstComers, Refresh, safa
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.relative import Relative
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.select.uniform import Uniform
from fedloom.round import ask_cohort
from fedloom.runs.named_parts import careful
from fedloom.world.simulated import Simulated
from world.made import Cut, equipped, made, simulated
from worlds import SIZES, Run, assert_identical, engine_of, everything, play, small, world

FLEET, ROUNDS = len(SIZES), 12


class Oracle:
    """The server of the paper, one client at a time."""

    def __init__(self, model: Tensor, share: float, lag: int, compensate: bool) -> None:
        self.share, self.lag, self.compensate = share, lag, compensate
        self.cache = [model.clone() for _ in SIZES]
        self.version = [-1] * FLEET  # the round of each client's last answer
        self.picked: set[int] = set()
        self.round = -1

    def sent(self) -> list[int]:
        """Who is sent the global model in the round that begins."""
        self.round += 1
        return [k for k in range(FLEET) if self.version[k] == self.round - 1 or self._deprecated(k)]

    def _deprecated(self, k: int) -> bool:
        return self.round - 1 - self.version[k] > self.lag

    def step(self, model: Tensor, came: dict[int, tuple[float, Tensor]]) -> tuple[Tensor, set[int]]:
        """The next model and who was picked, from the seconds and models of all that came."""
        for k in range(FLEET):
            if self._deprecated(k):
                self.cache[k] = model.clone()
        quota = ceil(self.share * FLEET)
        fastest = sorted(came, key=lambda k: (came[k][0], k))
        if len(fastest) > quota and self.compensate:
            fastest = [k for k in fastest if k not in self.picked] + [k for k in fastest if k in self.picked]
        self.picked = set(fastest[:quota])
        for k in self.picked:
            self.cache[k] = came[k][1]
        new = sum((size / sum(SIZES) * own for size, own in zip(SIZES, self.cache)), torch.zeros_like(model))
        for k in came:
            self.version[k] = self.round
            if k not in self.picked:
                self.cache[k] = came[k][1]
        return (new if came else model), self.picked


def come_and_go(method: Method, rounds: int = ROUNDS) -> tuple[Run, list[Task], list[Reply]]:
    """A run in which clients are away for some rounds, seconds are drawn anew, and what was sent is noted."""
    here, tasks, replies = world("mlp"), [], []
    local = here.local(method)

    def send(ids: Tensor, task: Task, chance: Chance) -> Reply:
        away = chance.uniform("away", ids) < torch.linspace(0, 0.9, FLEET)[ids]  # the last one is seldom there
        at = (~away).nonzero().flatten()
        if chance.round == 4 or not len(at):
            at = at[:0]
        if len(at):
            reply = local.train(ids[at], task.rows(at), chance).scatter(at, ids, task.model)
        else:
            reply = local.train(ids[:1], task.rows(slice(0, 1)), Chance(1, chance.round))
            reply = reply.rows(slice(0, 0)).scatter(at, ids, task.model)
        reply = reply._replace(report={**reply.report, "seconds": chance.uniform("seconds", ids).double()})
        tasks.append(task)
        replies.append(reply)
        return reply

    return play(here, method, engine_of(send), rounds), tasks, replies


@pytest.mark.parametrize(
    ("share", "lag", "compensate"), [(0.3, 2, True), (0.3, 2, False), (0.5, 0, True), (1.0, 5, True)]
)
def test_the_server_follows_the_paper(share: float, lag: int, compensate: bool) -> None:
    run, tasks, replies = come_and_go(small(safa(share, lag, compensate)))
    oracle, model, spares = Oracle(world("mlp").model, share, lag, compensate), world("mlp").model, 0
    for number, (task, reply, counted) in enumerate(zip(tasks, replies, run.replies)):
        mask = torch.ones(FLEET, dtype=torch.bool) if task.mask is None else task.mask.all(1)
        assert task.mask is None or torch.equal(mask, task.mask.any(1))  # all or nothing
        assert mask.nonzero().flatten().tolist() == oracle.sent()
        at = reply.arrived.nonzero().flatten().tolist()
        came = {k: (float(reply.report["seconds"][k]), reply.params[k]) for k in at}
        model, picked = oracle.step(model, came)
        torch.testing.assert_close(run.models[number], model, rtol=0, atol=1e-6)
        model = run.models[number]
        assert set(counted.ids[counted.arrived].tolist()) == picked
        spare = counted.report["spare"]
        assert set(counted.ids[spare].tolist()) == set(came) - picked
        spares += int(spare.sum())
    assert (spares > 5) == (share < 1)


def test_clients_that_are_not_sent_the_model_go_on_from_their_own() -> None:
    method, here = small(safa(0.5, lag=3)), world("mlp")
    local = here.local(method)
    memory = method.init(here.setting, here.model)
    _, task, _ = ask_cohort(method, memory, here.model, here.setting, Chance(7, 1))
    ids = torch.arange(FLEET)
    first = local.train(ids, task, Chance(7, 1))
    fresh = torch.arange(FLEET) % 3 == 0
    other = torch.full_like(here.model, 0.01)
    second = task._replace(model=other, round=2, mask=fresh[:, None].repeat(1, len(other)))
    found = local.train(ids, second, Chance(7, 2))
    for k in range(FLEET):
        base = other if fresh[k] else first.params[k]
        alone = (
            world("mlp")
            .local(small(Method()))
            .train(ids[k : k + 1], task.rows(slice(k, k + 1))._replace(model=base, mask=None), Chance(7, 2))
        )
        torch.testing.assert_close(found.params[k], alone.params[0], rtol=0, atol=1e-6)
    assert found.mask is None  # everybody sends the whole model


@pytest.mark.parametrize("network", ["mlp", "normed"])
@pytest.mark.parametrize("lag", [0, 5])
def test_with_everybody_there_and_picked_it_is_fedavg(network: str, lag: int) -> None:
    here, everyone = world(network), small(Method(select=Everyone()))
    method = small(safa(1.0, lag))
    ours, theirs = (play(here, one, here.local(one)) for one in (method, everyone))
    assert all(torch.equal(a, b) for a, b in zip(ours.models, theirs.models))


def test_a_round_ends_with_the_last_reply_that_is_picked() -> None:
    here, method = equipped(), small(safa(0.25, compensate=False))
    engine = simulated(here, method)
    reply = play(here, method, engine, rounds=1).replies[0]
    assert reply.costs is not None
    seconds, columns = reply.report["seconds"], reply.costs.columns
    fastest = seconds.argsort()[:3]
    assert sorted(fastest.tolist()) == reply.ids[reply.arrived].tolist()
    assert float(reply.costs.duration) == float(seconds[fastest].max()) < float(seconds.max())
    assert int((columns["fate"] == SPARE).sum()) == FLEET - 3
    assert FATES[SPARE] == "spare"
    assert bool((reply.costs.sent > 0).all())  # the others sent theirs too


def test_a_round_with_too_few_waits_for_all_that_are_awaited() -> None:
    here, method = equipped(), small(safa(1.0))
    engine = simulated(here, method, channel=Cut(up=((1, 0),)))
    reply = play(here, method, engine, rounds=1).replies[0]
    assert reply.costs is not None
    assert int(reply.arrived.sum()) == FLEET - 1
    assert float(reply.costs.duration) == float(reply.report["seconds"].max())


def test_a_round_whose_replies_are_not_timed_lasts_as_long_as_it_lasted() -> None:
    """As on a real network, where the engine measures rounds alone."""
    here, method = equipped(), small(safa(0.25))
    engine = simulated(here, method)

    def send(ids: Tensor, task: Task, chance: Chance) -> Reply:
        reply = engine.train(ids, task, chance)
        return reply._replace(report={name: value for name, value in reply.report.items() if name != "seconds"})

    reply = play(here, method, engine_of(send), rounds=1).replies[0]
    assert reply.costs is not None
    assert reply.costs.duration == engine.costs.duration > 0
    assert reply.ids[reply.arrived].tolist() == [0, 1, 2]


def test_nobody_who_comes_after_the_deadline_is_picked() -> None:
    here, method = equipped(made(cycles=[1e9] * 6 + [1e3] * 6)), small(safa(1.0, lag=2))
    run = play(here, method, simulated(here, method, deadline=200.0))
    assert all(reply.ids[reply.arrived].tolist() == list(range(6)) for reply in run.replies)


def test_checks_stand_before_the_choice() -> None:
    part = FirstComers(0.3)
    assert part.checking == Finite()
    assert part.checked_by(Several()) == FirstComers(0.3, checks=Several())
    assert Finite().checked_by(Several()) == Several()
    built = Experiment(method="safa", admit="careful").build_method().admit
    assert built == FirstComers(checks=careful(server_chooses=False, pieces=False))
    here, method = (
        world("mlp"),
        small(replace(safa(0.5), admit=FirstComers(0.5, checks=Several((Finite(), Relative()))))),
    )

    def spoiled(ids: Tensor, task: Task, chance: Chance) -> Reply:
        reply = local.train(ids, task, chance)
        return reply._replace(params=reply.params.index_fill(0, torch.tensor([0, 1]), torch.nan))

    local = here.local(method)
    run = play(here, method, engine_of(spoiled))
    assert all(reply.rejected[:2].bool().all() and not reply.report["spare"][:2].any() for reply in run.replies)
    assert bool(run.model.isfinite().all())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: replace(safa(), select=Uniform()), "every client must be asked"),
        (lambda: safa(share=0), "share .* is 0"),
        (lambda: safa(lag=-1), "lag .* is -1"),
        (lambda: CachedMean(-1), "lag .* is -1"),
        (lambda: Refresh(-2), "lag .* is -2"),
    ],
)
def test_what_cannot_work_is_refused(make: object, why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        make()  # type: ignore[operator]


def test_a_run_with_lost_clients_learns_and_resumes(tmp_path: object) -> None:
    whole = {"method": "safa", "fleet": "mobile-4g", "clients": 30, "rounds": 8, "seed": 3}
    straight = run(Experiment(**whole), out=f"{tmp_path}/a")
    run(Experiment(**{**whole, "rounds": 4}), out=f"{tmp_path}/b")
    again = run(Experiment(**whole), out=f"{tmp_path}/b", resume=True)
    assert_identical(straight.model.state_dict(), again.model.state_dict())
    assert straight.rounds[-1]["arrived"] < straight.rounds[-1]["clients"]
    assert straight.rounds[-1]["loss"] < straight.rounds[0]["loss"]


def test_loop_equals_local_with_clients_that_come_and_go() -> None:
    here, method = equipped(made(availability=0.6)), small(safa(0.4, lag=1))
    runs = [play(here, method, simulated(here, method), rounds=5)]
    runs.append(play(here, method, Simulated(here.loop(method), method, here.setting), rounds=5))
    for name, value in everything(runs[0]).items():
        torch.testing.assert_close(value, everything(runs[1])[name], rtol=1e-6, atol=1e-6)
