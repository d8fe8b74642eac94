"""Methods whose rounds have no barrier: by hand, in their limits, and under every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asynchronous_worlds import ASYNCHRONOUS, COHORTS, LOSSY, around, assert_same, both, fly, memory_of
from fedloom.core.clock import full_seconds
from fedloom.core.devices import known_devices
from fedloom.core.flight import ARRIVED
from fedloom.core.tiers import tiers_by_speed
from fedloom.errors import BadExperiment
from fedloom.evaluate.score import evaluate
from fedloom.method import Method
from fedloom.methods.fedasync import fedasync
from fedloom.methods.fedat import fedat
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedbuff import fedbuff
from fedloom.methods.fedprox import fedprox
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerSgd
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Polynomial
from world.made import FLEET, Cut, equipped, made, simulated
from worlds import SIZES, assert_close, assert_identical, play, small

every = pytest.mark.parametrize("method", [pytest.param(make(), id=name) for name, make in ASYNCHRONOUS])


# ---- engines


@every
def test_loop_equals_local_equals_training_when_needed(method: Method) -> None:
    here = equipped(made(availability=0.8))
    local = fly(here, method, around(here, method, channel=LOSSY), 8)
    others = [fly(here, method, around(here, method, loop=True, channel=LOSSY), 8)]
    if method.pace.groups == 1:  # a pace with tiers holds rows
        late = replace(method, pace=replace(method.pace, hold="bases"))
        others.append(fly(here, late, around(here, late, channel=LOSSY), 8))
    for other in others:
        assert_close(memory_of(other), memory_of(local), 2e-6)
        assert other.seconds == local.seconds
    assert max(int(step.reply.costs.columns["staleness"].max()) for step in local.steps) > 0


@every
def test_nan_wherever_nothing_was_sent_changes_nothing(method: Method) -> None:
    here = equipped()
    clean, poisoned = around(here, method, channel=LOSSY), around(here, method, channel=LOSSY)
    plain = poisoned.engine.train

    def train(ids: Tensor, task: Any, chance: Any) -> Any:
        reply = plain(ids, task, chance)
        if reply.mask is None:
            return reply
        return reply._replace(params=torch.where(reply.mask, reply.params, torch.nan))

    poisoned.engine.train = train  # type: ignore[method-assign]
    ours, theirs = memory_of(fly(here, method, poisoned, 8)), memory_of(fly(here, method, clean, 8))
    assert_identical(ours, theirs)
    assert not any(value.isnan().any() for value in ours.values())


@every
def test_it_learns(method: Method) -> None:
    here = equipped()
    learnt = fly(here, method, around(here, method), 60).steps[-1].model
    before, after = (float(evaluate(here.setting, model, here.data, 3).loss) for model in (here.model, learnt))
    assert after < 0.95 * before


# ---- FedAsync and FedBuff


def test_fedasync_mixes_every_reply_by_its_staleness() -> None:
    here, method = equipped(), small(fedasync(0.7, 0.5, 0.005, in_flight=5))
    model, stalest = here.model, 0
    for step in fly(here, method, around(here, method), 20).steps:
        (row,) = step.reply.arrived.nonzero().flatten().tolist()
        tau = int(step.reply.costs.columns["staleness"][row])
        alpha, stalest = 0.7 * (1 + tau) ** -0.5, max(stalest, tau)
        torch.testing.assert_close(step.model, (1 - alpha) * model + alpha * step.reply.params[row], rtol=0, atol=2e-7)
        model = step.model
    assert stalest > 3


def test_fedbuff_divides_by_the_buffer_and_not_by_the_discounts() -> None:
    here, method = equipped(), small(fedbuff(3, 9, 0.5, server_rate=0.8))
    versions, stalest = [here.model], 0
    for step in fly(here, method, around(here, method), 12).steps:
        taken, change = step.reply.arrived.nonzero().flatten().tolist(), torch.zeros_like(here.model)
        assert len(taken) == 3
        for row in taken:  # params are on the model as it is, so that their change is the client's
            tau = len(versions) - 1 - int(step.reply.base[row])
            change += (1 + tau) ** -0.5 * (step.reply.params[row] - versions[-1])
            stalest = max(stalest, tau)
        torch.testing.assert_close(step.model, versions[-1] + 0.8 * change / 3, rtol=0, atol=5e-7)
        versions.append(step.model)
    assert stalest > 2


@pytest.mark.parametrize("alpha", [0.6, 0.25, 1.0])
def test_a_fresh_reply_as_a_model_is_a_server_rate(alpha: float) -> None:
    one = small(fedavg(), select=Uniform(1), aggregate=CoverageMean("uniform"))
    free = replace(one, pace=Buffered(1, 1), stale=AsModel(alpha, Polynomial(0.5)))
    barrier = replace(one, aggregate=Stepped(CoverageMean("uniform"), ServerSgd(alpha)))
    assert_same(*both(barrier, free, 6, made(availability=1.0)))


def test_their_neutral_settings_are_fedavg() -> None:
    plain = small(fedavg(), aggregate=CoverageMean("uniform"))
    ours = small(fedbuff(8, 8, exponent=0.0), pace=Buffered(8, 8, refill="step"))
    assert_same(*both(plain, ours, 4, channel=LOSSY))
    near = replace(small(fedasync(1.0, 0.0, rho=0.0)), pace=Buffered(8, 8, refill="step"))
    assert_same(*both(plain, near, 4, channel=LOSSY))


# ---- tiers


@pytest.mark.parametrize(("name", "method"), COHORTS, ids=[name for name, _ in COHORTS])
def test_one_tier_is_a_round(name: str, method: Method) -> None:
    free = replace(method, pace=ByTier(1, method.select.cohort_size(FLEET)))
    assert_same(*both(method, free, 3, channel=LOSSY))


def test_fedat_with_one_tier_is_fedprox() -> None:
    prox = small(fedprox(0.4))
    assert_same_model(small(fedat(1, 8)), prox)


def assert_same_model(free: Method, method: Method) -> None:
    """To the bit after every round, with lost replies and clients that are away."""
    here = equipped(made(availability=0.8))
    run = play(here, method, simulated(here, method, channel=LOSSY), 5)
    flown = fly(here, free, around(here, free, channel=LOSSY), 5)
    assert all(torch.equal(model, step.model) for model, step in zip(run.models, flown.steps, strict=True))


def test_tiers_are_by_speed_and_of_equal_size() -> None:
    setting = equipped(made(cycles=[1e9 / (1 + n % 5) for n in range(FLEET)], up=1e6, down=1e6)).setting
    method = small(fedat(5))
    tier = tiers_by_speed(setting, method.work, 5, "a test")
    assert tier.bincount().tolist() == [3, 2, 3, 2, 2]
    seconds = full_seconds(setting, known_devices(setting.fleet.devices, "a test"), method.work).total
    assert all(seconds[tier == t].max() <= seconds[tier == t + 1].min() for t in range(4))


def test_fedat_by_hand() -> None:
    here, method = equipped(made(availability=0.8)), small(fedat(3, 2))
    tier = tiers_by_speed(here.setting, method.pace.work, 3, "a test").tolist()
    counts, models, model, seen = [0, 0, 0], [here.model] * 3, here.model, []
    for step in fly(here, method, around(here, method, channel=LOSSY), 40).steps:
        reply = step.reply
        taken = reply.arrived.nonzero().flatten().tolist()
        whose = {tier[reply.ids[row]] for row in taken}
        assert len(whose) <= 1  # a step is of one tier
        if whose:
            (m,) = whose
            weights = [SIZES[reply.ids[row]] for row in taken]
            models[m] = sum(w * reply.params[row] for w, row in zip(weights, taken)) / sum(weights)
            counts[m] += 1
            seen.append(m)
            reverse = counts[::-1] if all(counts) else counts
            model = sum(c * own for c, own in zip(reverse, models)) / sum(counts)
        torch.testing.assert_close(step.model, model, rtol=0, atol=5e-7)
    assert min(counts) > 0
    assert seen.count(0) > seen.count(2)  # fast clients make more steps


def test_a_tiers_round_waits_for_all_of_it_and_for_nobody_else() -> None:
    here, method = equipped(made(availability=0.9)), small(fedat(3, 2))
    tier = tiers_by_speed(here.setting, method.pace.work, 3, "a test")
    flown = fly(here, method, around(here, method, channel=LOSSY), 30)
    rounds: dict[tuple[int, float], list[tuple[int, int]]] = {}  # steps and fates by tier and second of asking
    between = 0
    for number, step in enumerate(flown.steps):
        columns = step.reply.costs.columns
        for client, asked, fate, base in zip(
            step.reply.ids.tolist(), columns["asked"].tolist(), columns["fate"].tolist(), columns["base"].tolist()
        ):
            rounds.setdefault((int(tier[client]), asked), []).append((number, fate))
            between += number > base
    assert all(len(own) <= 2 for own in rounds.values())
    assert all(len({number for number, fate in own if fate == ARRIVED}) <= 1 for own in rounds.values())
    for own in rounds.values():  # whoever was lost had been given up when the tier's step was made
        assert all(lost <= number for number, fate in own if fate == ARRIVED for lost, _ in own)
    assert between > 10


def test_a_tier_that_nobody_answers_asks_again() -> None:
    """Of six fast clients nobody is ever heard; the others go on, and the run does not hang."""
    here, method = equipped(made(cycles=[1e10] * 6 + [1e9] * 6)), small(fedat(2, 3))
    tier = tiers_by_speed(here.setting, method.pace.work, 2, "a test")
    deaf = [client for client in range(FLEET) if tier[client] == 0]
    channel = Cut(up=tuple((number, client) for number in range(1, 60) for client in deaf))
    flown = fly(here, method, around(here, method, channel=channel), 12)
    asked = [client for step in flown.steps for client in step.reply.ids.tolist()]
    heard = [client for step in flown.steps for client in step.reply.ids[step.reply.arrived].tolist()]
    assert not set(heard) & set(deaf)
    assert len(set(asked) & set(deaf)) > 3  # others of the tier were asked later on
    assert flown.memory["aggregate"]["steps"].tolist() == [0, 12]


def test_nobody_there_is_a_silent_step() -> None:
    here, method = equipped(made(availability=1e-9)), small(fedat(3, 2))
    flown = fly(here, method, around(here, method), 3)
    assert flown.seconds == [60.0, 120.0, 180.0]
    assert all(torch.equal(step.model, here.model) for step in flown.steps)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: replace(fedat(3), pace=ByTier(2)), "it weighs 3 tiers, and ByTier asks 2"),
        (lambda: replace(fedat(3), pace=Buffered()), "it weighs 3 tiers, and Buffered has none"),
        (lambda: ByTier(0), "tiers is 0"),
        (lambda: ByTier(3, 0), "per_tier is 0"),
        (lambda: small(fedat(13)).init(equipped().setting, equipped().model), "tiers is 13, but the fleet has 12"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        make()
