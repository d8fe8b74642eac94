"""Rounds without a barrier, at their limits: where they are rounds with one, they are so to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asynchronous_worlds import COHORTS, LOSSY, around, assert_same, both, fly, memory_of
from fedloom.chance import Chance
from fedloom.core.flight import ARRIVED, FATES
from fedloom.core.part import Mask, Select
from fedloom.core.types import Portion, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fjord import fjord
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Constant, Cutoff, Hinge, Polynomial
from fedloom.world.channel import Bernoulli
from world.made import FLEET, equipped, made, simulated
from worlds import (
    METHODS,
    assert_close,
    assert_identical,
    everything,
    play,
    scattered_parts,
    small,
)

BY_NAME = dict(METHODS)


@dataclass(frozen=True)
class Apart(Mask):
    """Each client always has the same numbers of the model, which no other client has."""

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Single numbers [C, P]."""
        return Portion(torch.arange(len(model)) % FLEET == ids[:, None]), memory


# ---- a buffer of the cohort


@pytest.mark.parametrize(("name", "method"), COHORTS, ids=[name for name, _ in COHORTS])
def test_a_buffer_of_all_in_flight_is_a_round(name: str, method: Method) -> None:
    count = method.select.cohort_size(FLEET)
    free = replace(method, pace=Buffered(count, count, refill="step"))
    assert_same(*both(method, free, 3, channel=LOSSY))


def test_nothing_of_a_buffer_of_all_in_flight_is_too_old() -> None:
    method = BY_NAME["fedavg"]()
    free = replace(method, pace=Buffered(8, 8, refill="step", oldest=0))
    assert_same(*both(method, free, 4))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddc", "fedavg-kept-adam"])
def test_equal_devices_that_are_asked_on_arrival_are_a_round(name: str) -> None:
    method = BY_NAME[name]()
    here = equipped(made(cycles=1e9, up=1e3, down=4e4, cycles_per_example=0.0))
    free = replace(method, pace=Buffered(8, 8))
    run, flown = play(here, method, simulated(here, method), 4), fly(here, free, around(here, free), 4)
    assert_identical(memory_of(flown), everything(run))
    assert {step.reply.staleness.max().item() for step in flown.steps} == {0}


@pytest.mark.parametrize("name", ["fedavg", "fedspu", "scaffold", "heterofl", "feddd", "mifa"])
def test_recall_is_over_selection(name: str) -> None:
    method = BY_NAME[name]()
    pace = Buffered(3, method.select.cohort_size(FLEET), refill="step", recall=True)
    run, flown, seconds = both(method, replace(method, pace=pace), channel=LOSSY, first=3)
    assert_same(run, flown, seconds)
    assert sum(FATES[f] in ("recalled", "surplus") for s in flown.steps for f in fates(s.reply)) > 0


@pytest.mark.parametrize("name", ["fedavg", "fedspu", "scaffold", "fjord"])
@pytest.mark.parametrize("deadline", [100.0, 30.0])
def test_a_window_with_recall_is_a_deadline(name: str, deadline: float) -> None:
    method = BY_NAME[name]()
    pace = Windowed(deadline, method.select.cohort_size(FLEET), recall=True)
    devices = made(availability=0.8, up=[1e3 * (1 + n) for n in range(FLEET)])
    for channel in (LOSSY, Bernoulli()):
        run, flown, seconds = both(method, replace(method, pace=pace), 6, devices, channel=channel, deadline=deadline)
        assert_same(run, flown, seconds)


@pytest.mark.parametrize("name", ["fedavg", "fjord", "scaffold", "ra-fed"])
def test_one_in_flight_is_a_client_a_round(name: str) -> None:
    method = replace(BY_NAME[name](), select=Uniform(1))
    assert_same(*both(method, replace(method, pace=Buffered(1, 1)), 6, made(availability=1.0)))
    assert_same(*both(method, replace(method, pace=Buffered(1, 1, refill="step")), 6, channel=LOSSY))


# ---- what replies to older models mean

EIGHT = Buffered(2, 8)


@pytest.mark.parametrize("method", [small(fedavg()), small(fjord()), scattered_parts(SubModel())])
def test_a_model_taken_whole_is_the_last_reply(method: Method) -> None:
    free = replace(method, pace=Buffered(1, 8), stale=AsModel(1.0), aggregate=CoverageMean("uniform"))
    here = equipped()
    flown = fly(here, free, around(here, free), 12)
    before = here.model
    for step in flown.steps:
        reply = step.reply
        (row,) = reply.arrived.nonzero().flatten().tolist()
        sent = torch.ones_like(before, dtype=torch.bool) if reply.mask is None else reply.mask[row]
        expected = torch.where(sent, reply.params[row], before)
        torch.testing.assert_close(step.model, expected, rtol=0, atol=0 if reply.mask is None else 1e-7)
        before = step.model
    assert max(most(step.reply) for step in flown.steps) > 2


def test_alpha_of_0_moves_nothing() -> None:
    free = small(fjord(), pace=EIGHT, stale=AsModel(0.0), aggregate=CoverageMean("uniform"))
    here = equipped()
    assert torch.equal(fly(here, free, around(here, free), 5).steps[-1].model, here.model)


@pytest.mark.parametrize("method", [small(fedavg()), small(fjord()), BY_NAME["fedspu"](), scattered_parts(SubModel())])
def test_discounts_that_discount_nothing_are_constant(method: Method) -> None:
    here = equipped()
    plain = replace(method, pace=EIGHT, stale=AsChange())
    models = fly(here, plain, around(here, plain), 6).steps[-1].model
    for none in (Polynomial(0.0), Hinge(bound=1e9), Cutoff(bound=1e9), Constant()):
        for by in ("steps", "numbers"):
            other = replace(plain, stale=AsChange(none, by=by))
            assert torch.equal(fly(here, other, around(here, other), 6).steps[-1].model, models)


def test_whole_models_are_as_stale_by_numbers_as_by_steps() -> None:
    here = equipped()
    steps, numbers = (
        small(fedavg(), pace=EIGHT, stale=AsChange(Polynomial(0.5), by=by)) for by in ("steps", "numbers")
    )
    ours, theirs = (fly(here, method, around(here, method, channel=LOSSY), 8) for method in (steps, numbers))
    assert torch.equal(ours.steps[-1].model, theirs.steps[-1].model)
    for one, other in zip(ours.steps, theirs.steps):
        assert torch.equal(other.reply.staleness, one.reply.staleness[:, None].expand_as(other.reply.staleness))
    assert max(most(step.reply) for step in ours.steps) > 2


def test_numbers_are_no_staler_than_their_replies() -> None:
    here, free = equipped(), replace(BY_NAME["fedrolex"](), pace=EIGHT, stale=AsChange(Polynomial(0.5)))
    fresher = 0
    for step in fly(here, free, around(here, free), 10).steps:
        reply = step.reply
        by_step = reply.costs.columns["staleness"][reply.arrived]
        by_number = reply.staleness[reply.arrived].long()
        assert (by_number >= 0).all()
        assert (by_number <= by_step[:, None]).all()
        fresher += int((by_number < by_step[:, None]).sum())
    assert fresher > 0


def test_clients_with_numbers_of_their_own_are_never_stale() -> None:
    """Nobody else changes what a client trains, however late it comes."""
    here, method = equipped(), replace(scattered_parts(SubModel()), mask=Apart(), pace=EIGHT)
    plain, discounted = (
        fly(here, one, around(here, one), 10).steps
        for one in (method, replace(method, stale=AsChange(Polynomial(2.0))))
    )
    assert torch.equal(plain[-1].model, discounted[-1].model)
    steps = [step.reply.costs.columns["staleness"][step.reply.arrived] for step in discounted]
    assert max(int(some.max()) for some in steps if len(some)) > 1


def test_a_weight_of_1_is_the_update_itself() -> None:
    here = equipped()
    spread = [
        small(fedavg(), pace=EIGHT, stale=AsChange(Hinge(bound=9.0), spread=spread)) for spread in ("update", "weight")
    ]
    ours, theirs = (fly(here, method, around(here, method), 6).steps[-1].model for method in spread)
    assert torch.equal(ours, theirs)
    spread = [replace(method, stale=replace(method.stale, discount=Polynomial(1.0))) for method in spread]
    ours, theirs = (fly(here, method, around(here, method), 6).steps[-1].model for method in spread)
    assert not torch.equal(ours, theirs)


# ---- engines, waves and rows

KINDS = ["fedavg", "scaffold", "fjord", "heterofl", "fedspu", "keep-own", "feddd", "ra-fed", "safari"]


def free_form(name: str, **changes: Any) -> Method:
    """A method of the list with few of many in flight."""
    method = BY_NAME[name]()
    refill = "arrival" if all(getattr(method, slot).alone for slot in ("select", "allocate", "mask")) else "step"
    pace = replace(Buffered(2, 8, refill=refill, timeout=400.0), **changes)
    return replace(method, pace=pace, stale=AsChange(Polynomial(0.5)))


@pytest.mark.parametrize("name", KINDS)
def test_loop_equals_local_equals_training_when_needed(name: str) -> None:
    here, method = equipped(made(availability=0.8)), free_form(name)
    local = fly(here, method, around(here, method, channel=LOSSY), 6)
    for other in (
        fly(here, method, around(here, method, loop=True, channel=LOSSY), 6),
        fly(here, late := free_form(name, hold="bases"), around(here, late, channel=LOSSY), 6),
    ):
        assert_close(memory_of(other), memory_of(local), 2e-5 if name == "safari" else 2e-6)
        assert other.seconds == local.seconds
    assert max(most(step.reply) for step in local.steps) > 0


@pytest.mark.parametrize("name", [name for name in KINDS if name != "feddd"])
def test_nan_wherever_nothing_was_sent_changes_nothing(name: str) -> None:
    here, method = equipped(), free_form(name)
    clean, poisoned = around(here, method), around(here, method)
    plain = poisoned.engine.train

    def train(ids: Tensor, task: Any, chance: Any) -> Any:
        reply = plain(ids, task, chance)
        if reply.mask is None:
            return reply
        return reply._replace(params=torch.where(reply.mask, reply.params, torch.nan))

    poisoned.engine.train = train  # type: ignore[method-assign]
    assert_identical(memory_of(fly(here, method, poisoned, 6)), memory_of(fly(here, method, clean, 6)))


def test_speed_scales_time_and_nothing_else() -> None:
    method = free_form("fedavg", timeout=None)
    slow, fast = (made(availability=0.8, latency=0.0)._replace(fading=torch.zeros(FLEET).double()) for _ in range(2))
    fast = fast._replace(cycles=fast.cycles * 4, up=fast.up * 4, down=fast.down * 4)
    ours, theirs = (fly(equipped(d), method, around(equipped(d), method), 6) for d in (slow, fast))
    assert_identical(memory_of(ours), memory_of(theirs))
    assert ours.seconds == [4 * second for second in theirs.seconds]


def test_rows_are_in_the_order_of_clients() -> None:
    here, method = equipped(), free_form("fedavg")
    for step in fly(here, method, around(here, method, channel=LOSSY), 8).steps:
        assert step.reply.ids.tolist() == sorted(set(step.reply.ids.tolist()))


def test_the_mean_staleness_is_that_of_a_steady_state() -> None:
    method = small(fedavg(), pace=Buffered(1, 3))
    here = equipped(made(up=3e3))
    taken = [tau for step in fly(here, method, around(here, method), 200).steps for tau in counted(step.reply)]
    assert sum(taken) / len(taken) == pytest.approx(3 / 1 - 1, rel=0.15)


# ---- the order of events


def test_five_clients_in_the_order_of_the_worked_example() -> None:
    """They take 3, 5, 4, 2 and 6 seconds; two are in flight, and the buffer is two."""

    orders = {1: [3, 0, 4, 1, 2], 2: [1, 3, 2, 0, 4], 3: [2, 4, 0, 3, 1], 4: [0, 1, 2, 3, 4]}
    seconds = [3.0, 5.0, 4.0, 2.0, 6.0]

    class Ordered(Select):
        def __call__(self, *given: Any) -> Any:
            raise AssertionError

        def next(self, memory: State, setting: Any, chance: Any, free: Tensor, count: int) -> Any:
            return torch.tensor([c for c in orders[chance.round] if c < 5 and free[c]][:count]), memory

    here = equipped()
    method = small(fedavg(), select=Ordered(), pace=Buffered(2, 2))
    world = around(here, method)

    def foresee(ids: Tensor, *given: Any) -> Any:
        end = torch.tensor([seconds[c] for c in ids.tolist()], dtype=torch.float64)
        fate = torch.full_like(ids, ARRIVED)
        return type(world).foresee(world, ids, *given)._replace(end=end, fate=fate)

    world.foresee = foresee  # type: ignore[method-assign]
    flown = fly(here, method, world, 3)
    seen = [
        (second, list(zip(step.reply.ids.tolist(), step.reply.base.tolist(), counted(step.reply))))
        for second, step in zip(flown.seconds, flown.steps)
    ]
    assert seen == [(3.0, [(0, 0, 0), (3, 0, 0)]), (8.0, [(1, 1, 0), (4, 0, 1)]), (14.0, [(2, 2, 0), (4, 2, 0)])]
    assert [(task.client, task.base, task.asked + seconds[task.client]) for task in flown.flight.tasks.values()] == [
        (0, 2, 15.0)
    ]


# ---- refused


def test_what_decides_on_cohorts_is_not_asked_one_by_one() -> None:
    with pytest.raises(BadExperiment, match="mask=ShareOut decides on a whole cohort; set refill='step'"):
        replace(BY_NAME["ist"](), pace=Buffered(2, 4))
    with pytest.raises(BadExperiment, match="select=SomeSend chooses whole cohorts"):
        replace(BY_NAME["fedumf"](), pace=Buffered(2, 4, refill="step"))


def test_a_buffer_that_the_fleet_cannot_fill_is_refused() -> None:
    method = small(fedavg(), pace=Buffered(FLEET + 1, 20))
    with pytest.raises(BadExperiment, match=f"the fleet has {FLEET} clients"):
        method.init(equipped().setting, equipped().model)


# ---- reading steps


def fates(reply: Any) -> list[int]:
    """The fates of the tasks that a step closed."""
    found: list[int] = reply.costs.columns["fate"].tolist()
    return found


def counted(reply: Any) -> list[int]:
    """The staleness of the replies that counted."""
    found: list[int] = reply.costs.columns["staleness"][reply.arrived].tolist()
    return found


def most(reply: Any) -> int:
    """The largest staleness of a reply that counted; -1: none did."""
    return max(counted(reply), default=-1)
