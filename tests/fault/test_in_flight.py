"""What goes wrong while clients are in flight: each ends with its fate, and nothing hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from asynchronous_worlds import Flown, around, fly
from fedloom.core.flight import ARRIVED, DOWNLOAD_LOST, FATES, UNAVAILABLE, UPLOAD_LOST
from fedloom.core.part import NobodyLeft
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment, RunStopped
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.step import Step, begin_flight, play_step
from fedloom.world.simulated import IDLE
from fedloom.world.virtual_time import VirtualTime
from world.made import FLEET, equipped
from worlds import METHODS, small

LIMIT = 60  # seconds that a test may take


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A test that takes too long fails."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"not over after {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


Script = Callable[
    [int, int], tuple[float, int]
]  # client and version -> seconds until the end of the task, and its fate


class Scripted(VirtualTime):
    """A world in which the seconds and fates of tasks are told."""

    def __init__(self, here: Any, method: Method, script: Script) -> None:
        super().__init__(around(here, method))
        self.script, self.change = script, None

    def foresee(self, ids: Tensor, task: Any, chance: Any, now: float, reply: Reply | None = None) -> Any:
        """As the script has it."""
        told = [self.script(client, chance.round - 1) for client in ids.tolist()]
        end = torch.tensor([seconds for seconds, _ in told], dtype=torch.float64)
        fate = torch.tensor([fate for _, fate in told])
        return super().foresee(ids, task, chance, now, reply)._replace(end=end, fate=fate)


def scripted(pace: Any, script: Script, steps: int = 4, method: Method | None = None, **changes: Any) -> Flown:
    """Some steps of FedAvg in such a world."""
    method = replace(method or small(fedavg()), pace=pace, **changes)
    here = equipped()
    return fly(here, method, Scripted(here, method, script), steps)


def columns(flown: Flown, name: str) -> list[list[Any]]:
    """A column of the tasks that each step closed."""
    found = []
    for step in flown.steps:
        assert step.reply.costs is not None
        assert step.reply.costs.columns is not None
        found.append(step.reply.costs.columns[name].tolist())
    return found


def fates(flown: Flown) -> list[list[str]]:
    """What became of the tasks that each step closed."""
    return [[FATES[fate] for fate in of] for of in columns(flown, "fate")]


def moved(flown: Flown) -> list[bool]:
    """Which steps changed the model."""
    models = [equipped().model, *(step.model for step in flown.steps)]
    return [not torch.equal(before, after) for before, after in pairwise(models)]


# ---- clients that do not answer


def test_a_client_that_never_answers_holds_its_slot_and_the_others_go_on() -> None:
    flown = scripted(Buffered(2, 3), lambda client, version: (inf if client == 5 else 1.0 + client, ARRIVED), 20)
    assert all(of == ["arrived"] * 2 for of in fates(flown))
    (silent,) = [task for task in flown.flight.tasks.values() if task.client == 5]
    assert not silent.ended
    assert silent.holds_slot
    assert flown.flight.in_flight <= 3
    assert 5 not in {client for step in flown.steps for client in step.reply.ids.tolist()}


def test_after_the_time_out_another_one_is_asked_in_its_place() -> None:
    script: Script = lambda client, version: (inf if client == 5 else 1.0 + client, ARRIVED)  # noqa: E731
    held = scripted(Buffered(2, 3), script, 40)
    flown = scripted(Buffered(2, 3, timeout=30.0), script, 40)
    (silent,) = [task for task in flown.flight.tasks.values() if task.client == 5]
    assert (silent.ended, silent.holds_slot) == (False, False)
    assert flown.seconds[-1] < 0.8 * held.seconds[-1]  # three at work instead of two


def test_nobody_ever_answers_and_steps_are_silent() -> None:
    flown = scripted(Buffered(2, 3), lambda client, version: (inf, ARRIVED), 5)
    assert moved(flown) == [False] * 5
    assert flown.seconds == [IDLE * (1 + step) for step in range(5)]
    assert len(flown.flight.tasks) == 3


def test_a_lost_reply_is_noticed_when_it_should_have_come_or_at_the_time_out() -> None:
    lost: Script = lambda client, version: (5.0, UPLOAD_LOST if client % 2 else ARRIVED)  # noqa: E731
    assert scripted(Buffered(4, FLEET, refill="step"), lost).seconds[0] == 5.0
    flown = scripted(Buffered(FLEET, FLEET, refill="step", timeout=20.0), lost)
    assert flown.seconds[0] == 20.0
    assert sorted(fates(flown)[0]) == ["arrived"] * 6 + ["upload lost"] * 6


@pytest.mark.parametrize("fate", [DOWNLOAD_LOST, UPLOAD_LOST])
def test_all_in_flight_are_lost(fate: int) -> None:
    flown = scripted(Buffered(2, 4), lambda client, version: (1.0 + client, fate))
    assert moved(flown) == [False] * 4
    assert [len(of) for of in fates(flown)] == [FLEET] * 4  # one after another, until nobody is left to be asked
    assert flown.seconds[0] >= FLEET  # the last loss is noticed
    flown = scripted(Buffered(2, 4, refill="step"), lambda client, version: (1.0 + client, fate))
    assert [len(of) for of in fates(flown)] == [4] * 4


def test_everyone_is_offline() -> None:
    for pace in (Buffered(2, 4), Buffered(2, 4, refill="step"), ByTier(2, 3)):
        flown = scripted(pace, lambda client, version: (0.0, UNAVAILABLE))
        assert moved(flown) == [False] * 4
        assert flown.seconds == [IDLE * (1 + step) for step in range(4)]
        assert {fate for of in fates(flown) for fate in of} == {"unavailable"}
    windows = scripted(Windowed(7.0, 4), lambda client, version: (0.0, UNAVAILABLE))
    assert windows.seconds == [7.0, 14.0, 21.0, 28.0]


def test_a_buffer_that_cannot_be_full_takes_what_there_is() -> None:
    script: Script = lambda client, version: (1.0 + client, ARRIVED if client < 3 else UNAVAILABLE)  # noqa: E731
    flown = scripted(Buffered(8, 8), script)
    assert [of.count("arrived") for of in fates(flown)] == [3] * 4
    assert flown.seconds == [3.0, 6.0, 9.0, 12.0]


# ---- replies that are too old


def slow(client: int, version: int) -> tuple[float, int]:
    """Client 3 takes as long as ten others."""
    return (10.5 if client == 3 else 1.0 + client / 100), ARRIVED


@pytest.mark.parametrize("pace", [Buffered(2, 4, oldest=2), Windowed(1.2, 4, oldest=2)])
def test_a_reply_that_is_too_old_is_dropped(pace: Any) -> None:
    flown = scripted(pace, slow, 40)
    for step, of, staleness in zip(flown.steps, fates(flown), columns(flown, "staleness")):
        for fate, client, tau in zip(of, step.reply.ids.tolist(), staleness):
            assert (fate == "too old") == (client == 3)
            assert (tau > 2) == (client == 3)
    assert sum(of.count("too old") for of in fates(flown)) >= 1


def test_a_reply_is_awaited_before_it_is_too_old() -> None:
    flown = scripted(Buffered(2, 4, oldest=2, too_old="wait", timeout=50.0), slow, 12)
    assert {fate for of in fates(flown) for fate in of} == {"arrived"}
    assert max(tau for of in columns(flown, "staleness") for tau in of) == 2
    told = zip(flown.steps, flown.seconds, columns(flown, "asked"))
    waited = [second - asked[ids.index(3)] for step, second, asked in told if 3 in (ids := step.reply.ids.tolist())]
    assert waited
    assert all(seconds == pytest.approx(10.5) for seconds in waited)  # the step is made as soon as its reply has come


@pytest.mark.parametrize("timeout", [20.0, 50.0])
def test_a_lost_reply_is_awaited_no_longer_than_the_time_out(timeout: float) -> None:
    def script(client: int, version: int) -> tuple[float, int]:
        return slow(client, version)[0], UPLOAD_LOST if client == 3 else ARRIVED

    flown = scripted(Buffered(2, 4, oldest=2, too_old="wait", timeout=timeout), script, 12)
    assert "upload lost" in {fate for of in fates(flown) for fate in of}
    assert flown.seconds[-1] >= timeout
    assert moved(flown) == [True] * 12


def test_one_that_never_answers_is_not_awaited_for_ever() -> None:
    def script(client: int, version: int) -> tuple[float, int]:
        return (inf if client == 3 else 1.0), ARRIVED

    flown = scripted(Buffered(2, 4, oldest=2, too_old="wait", timeout=20.0), script, 12)
    assert sum(moved(flown)) == 12


# ---- numbers that are none


@pytest.mark.parametrize("stale", [AsChange(), AsModel(0.5)])
def test_nan_in_a_stale_reply_is_refused(stale: Any) -> None:
    method = replace(small(fedavg()), pace=Buffered(2, 6), stale=stale)
    here, script = equipped(), lambda client, version: (1.0 + client, ARRIVED)
    world = Scripted(here, method, script)
    train = world.train_asked

    def poisoned(ids: Tensor, task: Any, chance: Any) -> Reply:
        reply = train(ids, task, chance)
        reply.params[(ids == 9).nonzero().flatten(), 3] = torch.nan
        return reply

    world.train_asked = poisoned  # type: ignore[method-assign]
    flown = fly(here, method, world, 8)
    assert all(step.model.isfinite().all() for step in flown.steps)
    assert refused(flown.steps) == {9}
    assert flown.seconds == fly(here, method, Scripted(here, method, script), 8).seconds


@pytest.mark.parametrize("hold", ["rows", "bases"])
def test_nan_in_the_base_of_a_reply_is_refused(hold: Any) -> None:
    method, here = replace(small(fedavg()), pace=Buffered(2, 6, hold=hold), stale=AsChange()), equipped()
    world = Scripted(here, method, lambda client, version: (1.0 + client, ARRIVED))
    flight, memory, steps = (
        begin_flight(method, here.setting, here.model.clone()),
        method.init(here.setting, here.model),
        [],
    )
    for number in range(10):
        steps.append(play_step(method, memory, flight, here.setting, world, 0))
        memory = steps[-1].memory
        if number == 3:
            hurt = max(task.base for task in flight.tasks.values())
            clients = {task.client for task in flight.tasks.values() if task.base == hurt}
            next(task for task in flight.tasks.values() if task.base == hurt).wave.version.model[5] = torch.nan
    assert all(step.model.isfinite().all() for step in steps[4:])
    assert refused(steps) == clients != set()


def refused(steps: list[Step]) -> set[int]:
    """The clients whose replies were refused."""
    found = [step.reply.ids[step.reply.rejected > 0].tolist() for step in steps if step.reply.rejected is not None]
    return {client for clients in found for client in clients}


# ---- nobody to ask


def test_what_is_in_flight_counts_when_all_have_stopped() -> None:
    method = replace(dict(METHODS)["fedspu-stopping"](), pace=Buffered(2, 6))
    here = equipped()
    world = Scripted(here, method, lambda client, version: (1.0 + client, ARRIVED))
    flight, memory, taken = begin_flight(method, here.setting, here.model), method.init(here.setting, here.model), 0
    step = play_step(method, memory, flight, here.setting, world, 0)
    left = len(flight.tasks)
    while flight.tasks:
        memory = {**step.memory, "select": {"stopped": torch.ones(FLEET, dtype=torch.bool)}}
        step = play_step(method, memory, flight, here.setting, world, 0)
        taken += int(step.reply.arrived.sum())
    assert taken == left == 5
    version, now = flight.version, flight.now
    with pytest.raises(NobodyLeft, match="all clients have stopped"):
        play_step(method, memory, flight, here.setting, world, 0)
    assert (flight.version, flight.now, flight.tasks) == (version, now, {})  # what is saved is a step's end


def test_a_tier_in_which_nobody_can_be_asked_does_not_keep_others_from_being_asked() -> None:
    method = replace(dict(METHODS)["fedspu-stopping"](), pace=ByTier(2, 3))
    here = equipped()
    world = Scripted(here, method, lambda client, version: (1.0 + client, ARRIVED))
    flight, memory = begin_flight(method, here.setting, here.model), method.init(here.setting, here.model)
    fast = memory["pace"]["tier"] == 0
    memory["select"] = {"stopped": fast}
    for _ in range(4):
        step = play_step(method, memory, flight, here.setting, world, 0)
        memory = {**step.memory, "select": {"stopped": fast}}
        assert step.reply.arrived.sum() == 3
        assert not fast[step.reply.ids].any()


def test_more_replies_than_there_are_clients_are_refused() -> None:
    for pace in (Buffered(FLEET + 1, 20), Windowed(5.0, least=FLEET + 1)):
        with pytest.raises(BadExperiment, match=f"is {FLEET + 1}, and the fleet has {FLEET} clients"):
            replace(small(fedavg()), pace=pace).init(equipped().setting, equipped().model)


def test_more_in_flight_than_there_are_clients_is_noted_and_all_are_asked() -> None:
    pace = Buffered(2, 3 * FLEET)
    said = pace.note(equipped().setting)
    assert said is not None
    assert f"in_flight is {3 * FLEET}; the fleet has {FLEET}" in said
    flown = scripted(pace, lambda client, version: (1.0 + client, ARRIVED))
    assert len(flown.flight.tasks) == FLEET - 2


# ---- instants


def test_one_reply_a_step_with_all_in_flight() -> None:
    flown = scripted(Buffered(1, FLEET), lambda client, version: (1.0 + client / 7, ARRIVED), 60)
    assert all(of == ["arrived"] for of in fates(flown))
    assert flown.flight.versions() <= FLEET + 1
    taken = [tau for of in columns(flown, "staleness") for tau in of]
    assert max(taken) <= 2 * FLEET
    assert sum(taken[20:]) / len(taken[20:]) == pytest.approx(FLEET - 1, rel=0.2)


def test_replies_of_one_instant_come_by_serial() -> None:
    flown = scripted(Buffered(3, 6), lambda client, version: (2.0, ARRIVED), 4)
    assert flown.seconds == [2.0, 2.0, 4.0, 4.0]  # two steps at one instant, the second with a reply to an older model
    assert columns(flown, "staleness") == [[0] * 3, [1] * 3, [0] * 3, [1] * 3]
    serials = columns(flown, "serial")
    assert [sorted(of) for of in serials] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_time_outs_come_after_replies_of_the_same_instant() -> None:
    flown = scripted(Buffered(6, 6, timeout=2.0), lambda client, version: (2.0, ARRIVED), 2)
    assert {fate for of in fates(flown) for fate in of} == {"arrived"}
    late = scripted(Buffered(6, 6, timeout=2.0, late=False), lambda client, version: (2.0, ARRIVED), 2)
    assert fates(late) == fates(flown)


def test_a_task_may_take_no_time() -> None:
    for pace in (
        Buffered(2, 4),
        Buffered(2, 4, refill="step"),
        Buffered(1, FLEET, recall=True, refill="step"),
        ByTier(2, 2),
    ):
        flown = scripted(pace, lambda client, version: (0.0, ARRIVED), 6)
        assert flown.seconds == [0.0] * 6
        assert moved(flown) == [True] * 6
    flown = scripted(Windowed(5.0, 4), lambda client, version: (0.0, ARRIVED), 3)
    assert flown.seconds == [5.0, 10.0, 15.0]


# ---- whole runs


def free(pace: Any, **changes: Any) -> Experiment:
    """A small run without a barrier."""
    model = {"name": "mlp", "settings": {"widths": [8]}}
    values = {"method": "fedavg", "fleet": "equal", "clients": 8, "rounds": 30, "pace": pace, "model": model}
    return Experiment(**{**values, "training": {"epochs": 1, "batch": 32}, **changes})


OFFLINE = {"name": "equal", "settings": {"availability": 1e-9}}


@pytest.mark.parametrize(
    ("pace", "changes"),
    [
        ({"name": "buffered", "settings": {"buffer": 2, "in_flight": 4}}, {"fleet": OFFLINE}),
        ({"name": "windowed", "settings": {"seconds": 5, "in_flight": 4}}, {"fleet": OFFLINE}),
        ({"name": "by-tier", "settings": {"tiers": 2, "per_tier": 2}}, {"fleet": OFFLINE}),
        (
            {"name": "buffered", "settings": {"buffer": 2, "in_flight": 4}},
            {"channel": {"name": "bernoulli", "settings": {"up": 1.0}}},
        ),
        ({"name": "windowed", "settings": {"seconds": 1e-6, "in_flight": 4}}, {}),
    ],
)
def test_a_run_that_nobody_answers_stops_with_the_reason(pace: Any, changes: Any) -> None:
    with pytest.raises(RunStopped, match=r"nobody answered in 10 rounds in a row, up to round 10"):
        run(free(pace, **changes))
