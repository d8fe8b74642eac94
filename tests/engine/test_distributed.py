"""Two ranks give what one process gives: for every method, in any cohort, in a world that loses things."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st

from engine.second_rank import build, meet, method_of
from fedloom.chance import Chance
from fedloom.core.cohort import recognised
from fedloom.core.types import Cohort, Reply, Task
from fedloom.engine.distributed import NO_OWNER, Distributed, assign, stop_ranks
from fedloom.engine.local import Local, local_engine
from fedloom.engine.ranks import Message, Ranks, ranks_here
from fedloom.errors import RunStopped
from fedloom.round import ask_cohort
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.world.channel import Bernoulli
from fedloom.world.simulated import Simulated
from worlds import METHODS, Run, assert_close, everything, play, world

TESTS = Path(__file__).parents[1]
COHORTS = [[3], [3, 5, 8], [5], [0, 8], list(range(12))]  # one client for two ranks, then some that are known

QUICK = (  # one of each kind; the others are marked slow
    *("fedavg", "fedavg-kept-adam", "scaffold", "feddc", "feddd", "scattered", "fjord", "heterofl"),
    "fedselect-neurons",
    *("ram-fed", "fedspu-stopping", "fedumf-feddc", "safari", "loom"),
)

Lead = Callable[..., Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process as rank 0, and another as rank 1."""
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    second = subprocess.Popen([sys.executable, str(TESTS / "engine" / "second_rank.py"), store, str(TESTS)])
    try:
        meet(store, 0)
        yield ranks_here("cpu")
        ranks_here("cpu").send(1, Message({"leave": True}, {}))
        assert second.wait(60) == 0
    finally:
        dist.destroy_process_group()
        second.kill()


@pytest.fixture
def lead(ranks: Ranks) -> Lead:
    """An engine over both ranks; what happens in its company ends with the others dismissed."""

    @contextmanager
    def leading(network: str, name: str, cohorts: Any = None, fault: str = "") -> Iterator[Distributed]:
        ranks.send(1, Message({"network": network, "name": name, "cohorts": cohorts, "fault": fault}, {}))
        try:
            yield Distributed(build(network, name, cohorts), ranks)
        finally:
            stop_ranks(ranks, {})

    return leading


def same(ours: Run, theirs: Run) -> None:
    """Models equal to 1e-6, and who and which part to the bit; what rules divide by rates to 1e-5."""
    for one, other in zip(ours.models, theirs.models):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert_close(everything(ours), everything(theirs), 1e-5)
    for one, other in zip(ours.replies, theirs.replies):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.arrived, other.arrived)
        assert (one.mask is None) == (other.mask is None)
        assert one.mask is None or torch.equal(one.mask, other.mask)
        assert_close(one.extras, other.extras, 1e-5)
        assert_close(one.report, other.report, 1e-5)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name, _ in METHODS]
)
def test_two_ranks_equal_local(name: str, lead: Lead) -> None:
    here, method = world("normed"), method_of(name)
    with lead("normed", name) as engine:
        ours = play(here, method, engine)
    same(ours, play(here, method, here.local(method)))


@pytest.mark.parametrize("name", ["fedavg", "heterofl"])
def test_two_ranks_have_a_base_each(name: str, lead: Lead) -> None:
    here, method = world("frozen"), method_of(name)
    with lead("frozen", name) as engine:
        ours = play(here, method, engine)
    same(ours, play(here, method, here.local(method)))


def test_all_ranks_train_as_rank_0_does(ranks: Ranks) -> None:
    here, method = world("normed"), method_of("scaffold")
    ranks.send(1, Message({"network": "normed", "name": "scaffold", "cohorts": None, "fault": ""}, {}))
    try:  # rank 1 would let clients train together
        ours = play(here, method, Distributed(local_engine(here.clients(method), way="per-core"), ranks))
    finally:
        stop_ranks(ranks, {})
    one = play(here, method, local_engine(here.clients(method), way="per-core"))
    assert torch.equal(ours.model, one.model)
    assert not torch.equal(one.model, play(here, method, here.local(method)).model)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedspu", "feddd"])
def test_any_cohort(name: str, lead: Lead) -> None:
    here, method = world("mlp"), method_of(name, COHORTS)
    with lead("mlp", name, COHORTS) as engine:
        ours = play(here, method, engine, len(COHORTS))
    same(ours, play(here, method, here.local(method), len(COHORTS)))


def test_states_live_on_one_rank_each(lead: Lead) -> None:
    here, method = world("mlp"), method_of("keep-own")
    local = build("mlp", "keep-own")
    alone = play(here, method, local)
    with lead("mlp", "keep-own") as engine:
        model = play(here, method, engine).model
        ours = engine.personal(model)
        mine = engine.local.clients.states.known().tolist()
    known = local.clients.states.known().tolist()
    assert 0 < len(mine) < len(known)
    assert set(mine) < set(known)
    assert torch.equal(ours, local.personal(alone.model))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "loom", "safari"])
def test_in_a_world_that_loses(name: str, lead: Lead) -> None:
    here, method, channel = world("mlp"), method_of(name), Bernoulli(up=0.4, down=0.4)
    with lead("mlp", name) as engine:
        ours = play(here, method, Simulated(engine, method, here.setting, channel=channel))
    theirs = play(here, method, Simulated(here.local(method), method, here.setting, channel=channel))
    assert not all(bool(reply.arrived.all()) for reply in ours.replies)
    same(ours, theirs)


def test_a_rank_that_fails_ends_the_run(lead: Lead) -> None:
    with (
        pytest.raises(RunStopped, match="rank 1 of 2 failed: ZeroDivisionError: more than it can bear"),
        lead("mlp", "fedavg", fault="train") as engine,
    ):
        play(world("mlp"), method_of("fedavg"), engine)


def test_rank_0_that_fails_takes_the_answers_first(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(Local, "_play", fail)
    with pytest.raises(ZeroDivisionError, match="mine"), lead("mlp", "fedavg") as engine:
        play(world("mlp"), method_of("fedavg"), engine)


def test_a_rank_that_cannot_begin(lead: Lead) -> None:
    with pytest.raises(RunStopped, match="FileNotFoundError: no such file here"), lead("mlp", "fedavg", fault="build"):
        pass


def test_ranks_must_agree(ranks: Ranks) -> None:
    ranks.send(1, Message({"network": "cnn", "name": "scaffold"}, {}))
    with pytest.raises(RunStopped, match=r"rank 1 has prepared .*ControlVariates"):
        Distributed(build("mlp", "fedavg"), ranks)
    stop_ranks(ranks, {})


def test_messages_bring_what_was_sent(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []
    post = Ranks.send
    monkeypatch.setattr(Ranks, "send", lambda self, to, message: (sent.append(message), post(self, to, message))[1])
    with lead("mlp", "scaffold") as engine:
        play(world("mlp"), method_of("scaffold"), engine, 1)
    control = next(message.tensors["extras.control"] for message in sent if message.facts.get("do") == "train")
    assert control.stride(0) == 0  # one row for all of them, which travels once


# ---- who plays whom

works = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@given(works, st.integers(1, 5), st.data())
def test_owners_keep_theirs_and_nobody_is_left_out(work: list[int], ranks: int, data: st.DataObject) -> None:
    owner = data.draw(st.lists(st.integers(NO_OWNER, ranks - 1), min_size=len(work), max_size=len(work)))
    places = assign([float(one) for one in work], owner, ranks)
    assert sorted(place for mine in places for place in mine) == list(range(len(work)))
    for rank, mine in enumerate(places):
        assert mine == sorted(mine)
        assert all(owner[place] in (NO_OWNER, rank) for place in mine)


@given(works, st.integers(1, 5))
def test_free_work_is_balanced(work: list[int], ranks: int) -> None:
    loads = [
        sum(work[place] for place in mine) for mine in assign([float(w) for w in work], [NO_OWNER] * len(work), ranks)
    ]
    assert max(loads) - min(loads) <= max(work)


def test_replies_are_of_the_task_wherever_the_cohort_was_listed() -> None:
    """Under a GPU the cohort's ids are on the host, the task's on the device."""
    here = prepare(Experiment(method="fedavg", device="cpu", training={"epochs": 1}))
    (method, setting, _, model, *_), local, chance = here.inputs, here.trainer, Chance(0, 1)
    assert isinstance(local, Local)
    ids, task, _ = ask_cohort(method, method.init(setting, model), model, setting, chance)
    reply = Distributed(local, Ranks(0, 1, torch.device("cpu"))).train(ids.clone(), task, chance)
    assert reply.ids is task.ids
    assert torch.equal(reply.params, local.train(ids, task, chance).params)


def test_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no numbers, but refuses to be mixed with the host as a GPU does."""
    meta, total = torch.device("meta"), 7
    ids = torch.tensor([1, 4, 6])  # on the host, as selections are

    def train(mine: torch.Tensor, task: Task, chance: Chance) -> Reply:
        assert (mine.device.type, task.ids.device) == ("cpu", meta)  # type: ignore[union-attr]
        sent = {"examples": torch.ones(len(mine), device=meta)}
        params = torch.empty(len(mine), total, device=meta)
        return Reply(task.ids, params, None, {}, sent, task.authorised)  # type: ignore[arg-type]

    monkeypatch.setattr(Distributed, "__init__", lambda self: setattr(self, "local", SimpleNamespace(train=train)))
    monkeypatch.setattr(Distributed, "_assigned", lambda self, ids, task: [[0, 1, 2]])
    monkeypatch.setattr(Distributed, "_ask", lambda self, orders, lead: {0: lead()})
    here = ids.to(meta)
    share, authorised = torch.ones(3, device=meta), torch.ones(3, dtype=torch.bool, device=meta)
    task = Task(torch.empty(total, device=meta), None, None, share, authorised, {}, 1, 0.1, 0.1, total, here)
    reply = Distributed().train(ids, task, Chance(0, 1, meta))  # type: ignore[call-arg]
    reply = recognised(Cohort(here, authorised), reply)
    assert reply.ids.device == meta
    assert reply.arrived.device == meta
