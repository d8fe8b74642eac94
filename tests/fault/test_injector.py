"""Rows 3 to 12 in a run: thousands of faults on real bytes, and the model is that of a run with just those losses."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from torch import Tensor

from fault.injector import DEADLINE, FAULTS, HARMLESS, LOSING, Injector
from fedloom.chance import Chance
from fedloom.codec import Expected, Frame, Inbox, Stamp, base_hash, encode
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.method import Method
from worlds import METHODS, Run, assert_identical, changed, everything, play, world

ROUNDS = 16
NAMES = ("fedavg", "scaffold", "feddd", "fjord", "safari", "loom")
LEAST = 100  # injections of each


def method_of(name: str) -> Method:
    """One of the tiny fleet's methods."""
    return dict(METHODS)[name]()


def injected(name: str, seed: int, faults: tuple[str, ...], quorum: int = 1) -> tuple[Run, Injector]:
    """A run through the injector."""
    here, method = world("mlp"), method_of(name)
    injector = Injector(here.local(method), method, here.setting, seed, faults, quorum)
    return play(here, method, injector, ROUNDS), injector


def marked(name: str, injector: Injector) -> Run:
    """The run without bytes in which exactly the same replies were marked lost."""
    here, method = world("mlp"), method_of(name)

    def lose(reply: Reply, chance: Chance) -> Reply:
        there = injector.arrived[chance.round - 1] if injector.counted[chance.round - 1] else set()
        came = torch.tensor([client in there for client in reply.ids.tolist()])
        return reply._replace(arrived=reply.arrived & came)

    return play(here, method, changed(here.local(method), lose), ROUNDS)


def digest(model: Tensor) -> str:
    """A model's hash."""
    return sha256(model.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_any_fault_is_a_loss_or_nothing(name):
    run, injector = injected(name, 1, tuple(FAULTS))
    assert sum(injector.injected.values()) >= LEAST
    plain = marked(name, injector)
    assert digest(run.model) == digest(plain.model)
    assert_identical(everything(run), everything(plain))
    assert all(model.isfinite().all() for model in run.models)


@pytest.mark.parametrize("name", NAMES)
def test_harmless_faults_change_no_bit(name):
    run, injector = injected(name, 2, tuple(HARMLESS))
    assert sum(injector.injected.values()) >= LEAST
    here, method = world("mlp"), method_of(name)
    assert digest(run.model) == digest(play(here, method, here.local(method), ROUNDS).model)


def test_a_thousand_injections_and_every_fault_among_them():
    assert 2 * len(NAMES) * LEAST >= 1000  # what the tests above ask for together
    _, injector = injected("fedavg", 3, tuple(FAULTS))
    assert set(FAULTS) - set(injector.injected) <= {"nothing"}
    reasons = {"size", "header", "checksum", "version", "run", "round", "client", "base", "dtype", "shape", "mask"}
    assert reasons | {"value", "report", "duplicate", "late"} == set(injector.refused)


@pytest.mark.parametrize("quorum", [1, 4, 7])
def test_a_round_counts_where_a_quorum_came_and_only_there(quorum):
    run, injector = injected("fedavg", 4, tuple(FAULTS), quorum)
    assert injector.counted == [len(there) >= quorum for there in injector.arrived]
    before = [world("mlp").model, *run.models[:-1]]
    assert [not torch.equal(old, new) for old, new in zip(before, run.models)] == injector.counted
    assert {True, False} >= set(injector.counted)
    assert quorum == 1 or False in injector.counted
    assert digest(run.model) == digest(marked("fedavg", injector).model)


@pytest.mark.parametrize("fault", LOSING)
def test_where_all_are_lost_the_model_stays_and_nothing_hangs(fault):
    run, injector = injected("scaffold", 5, (fault,))
    assert injector.counted == [False] * ROUNDS
    assert digest(run.model) == digest(world("mlp").model)
    assert sum(injector.injected.values()) == sum(len(reply.ids) for reply in run.replies)


def test_faults_are_repeatable():
    first, second = (injected("fedavg", 6, tuple(FAULTS)) for _ in range(2))
    assert first[1].injected == second[1].injected
    assert digest(first[0].model) == digest(second[0].model)


# ---- the inbox by itself


def inbox_of(count: int = 3, **settings: object) -> tuple[Inbox, dict[int, bytes]]:
    """An inbox that awaits so many clients, and their replies."""
    here = world("mlp")
    frame, base = Frame(here.setting.layout), base_hash(here.model)
    awaited = {client: Expected(frame, Stamp("r", 1, client, base)) for client in range(count)}
    data = {client: encode(frame, one.stamp, here.model) for client, one in awaited.items()}
    return Inbox(awaited, **settings), data  # type: ignore[arg-type]


def test_who_is_awaited_is_accepted_once():
    inbox, data = inbox_of(quorum=2)
    assert [inbox.take(0, data[0]), inbox.enough, inbox.over] == [None, False, False]
    assert inbox.take(0, data[0]) == "duplicate"
    assert inbox.take(1, data[2]) == "client"
    assert inbox.take(9, data[2]) == "client"
    assert inbox.take(1, data[1][:-1]) in ("size", "checksum")
    assert inbox.take(1, data[1]) is None  # after a damaged one
    assert [inbox.enough, inbox.over] == [True, False]
    assert inbox.take(2, data[2]) is None
    assert inbox.over
    assert inbox.refused.total() == 4
    assert set(inbox.why) == {0, 1}  # a stranger leaves no trace but a number


def test_the_deadline_is_by_a_clock_that_does_not_jump():
    now = [50.0]
    inbox, data = inbox_of(seconds=DEADLINE, clock=lambda: now[0])
    now[0] += DEADLINE - 0.1
    assert inbox.take(0, data[0]) is None
    now[0] += 0.1
    assert inbox.over
    assert inbox.take(1, data[1]) == "late"
    assert set(inbox.accepted) == {0}


@pytest.mark.parametrize("settings", [{"quorum": 0}, {"seconds": 0.0}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_impossible_inboxes_are_refused(settings):
    with pytest.raises(BadExperiment):
        inbox_of(**settings)


def test_garbage_without_end_leaves_numbers_only():
    inbox, _ = inbox_of()
    stamp = replace(inbox.awaited[0].stamp, round=2)
    stale = encode(inbox.awaited[0].frame, stamp, world("mlp").model)
    for number in range(1000):
        inbox.take(number % 5, stale if number % 2 else b"x" * number)
    assert inbox.refused.total() == 1000
    assert len(inbox.why) <= 3
    assert not inbox.accepted
