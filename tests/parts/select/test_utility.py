"""Oort's scores and choices equal a reference in plain Python; Power of Choice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import full_seconds
from fedloom.core.part import Select
from fedloom.core.types import Fleet, Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.methods.oort import oort
from fedloom.methods.power_of_choice import power_of_choice
from fedloom.parts.select.power_of_choice import PowerOfChoice, draw_by_weight
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.select.utility import Utility
from world.made import FLEET, equipped, made, with_devices
from worlds import SIZES, play, small, world


def reply(ids: Tensor, losses: list[float], examples: Tensor, arrived: list[bool] | None = None) -> Reply:
    """Replies with a loss and nothing else."""
    there = torch.tensor(arrived) if arrived is not None else torch.ones(len(ids), dtype=torch.bool)
    report = {"loss": torch.tensor(losses), "examples": examples[ids], "steps": torch.ones_like(ids)}
    return Reply(ids, torch.zeros(len(ids), 1), None, {}, report, there)


def losses_of(number: int, ids: Tensor) -> list[float]:
    """Some loss for every client and round."""
    return (0.1 + 2 * Chance(9, number).uniform("loss", ids)).tolist()


class Book:
    """Oort as FedDD uses it, in plain Python."""

    def __init__(self, part: Utility, seconds: list[float]) -> None:
        self.part, self.seconds = part, seconds
        self.utility: dict[int, float] = {}
        self.last: dict[int, int] = {}

    def preferred(self, percentile: float) -> float:
        """The duration at a percentile."""
        ordered = sorted(self.seconds)
        return ordered[min(int(percentile / 100 * len(ordered)), len(ordered) - 1)]

    def scores(self, number: int, percentile: float) -> dict[int, float]:
        """The score of every client."""
        known = sorted(self.utility.values())
        low, high = (0.999 * known[0], known[-1]) if known else (0.0, 0.0)  # as in the published code
        ceiling = known[min(int(self.part.clip * len(known)), len(known) - 1)] if known else 0.0
        found = {}
        for client, seconds in enumerate(self.seconds):
            score = math.sqrt(self.part.bonus * math.log(number) / max(1, self.last.get(client, 0)))
            if client in self.utility:
                score += (min(self.utility[client], ceiling) - low) / max(high - low, 1e-4)
            if seconds > self.preferred(percentile):
                score *= (self.preferred(percentile) / seconds) ** self.part.alpha
            found[client] = score
        return found


def stretch(part: Select, setting: Setting, model: Tensor, rounds: int) -> list[tuple[list[int], State, State]]:
    """Some rounds of selection and replies: cohort, memory when selected, memory after."""
    memory, history = part.init(setting, model), []
    for number in range(1, rounds + 1):
        before = memory
        cohort, memory = part(memory, setting, Chance(4, number))
        ids = cohort.ids
        assert ids.tolist() == sorted(set(ids.tolist()))
        arrived = [(client + number) % 5 != 0 for client in ids.tolist()]
        memory = part.observe(
            memory, setting, model, reply(ids, losses_of(number, ids), setting.fleet.examples, arrived)
        )
        history.append((ids.tolist(), before, memory))
    return history


@pytest.mark.parametrize("clip", [0.98, 0.5])
def test_scores_against_plain_python(clip):
    here = equipped(made())
    part = Utility(0.4, clip=clip)
    seconds = full_seconds(here.setting, here.setting.fleet.devices, part.work).total
    book = Book(part, seconds.tolist())
    untried = set(range(FLEET))
    for number, (ids, before, _) in enumerate(stretch(part, here.setting, here.model, 12), 1):
        now = {**before, "round": torch.tensor(number)}
        scores = book.scores(number, 60)
        found = part.score(now) * part.slowness(now, seconds)
        assert found.tolist() == pytest.approx(list(scores.values()))
        assert len(ids) == 4
        new = untried & set(ids)
        assert len(new) == min(4, len(untried)), "strangers first"
        others = sorted((c for c in range(FLEET) if c not in untried), key=lambda c: (-scores[c], c))
        assert set(ids) - new == set(others[: 4 - len(new)]), "then the highest scores"
        untried -= set(ids)
        for client, loss in zip(ids, losses_of(number, torch.tensor(ids))):
            if (client + number) % 5:
                book.utility[client], book.last[client] = SIZES[client] * loss, number
    assert not untried


def test_the_penalty_by_hand():
    devices = made(up=[1e3, 2e3, 4e3] * 4, down=1e30, cycles=1e30)
    here = equipped(devices)
    part = Utility(percentile=34.0)
    seconds = full_seconds(here.setting, devices, part.work).total
    slow = part.slowness(part.init(here.setting, here.model), seconds)
    assert slow.tolist() == pytest.approx([0.25, 1.0, 1.0] * 4)  # twice the preferred time, squared


def test_strangers_come_in_another_order_under_another_seed():
    here = equipped()
    part = Utility(0.3)
    memory = part.init(here.setting, here.model)
    cohorts = {tuple(part(memory, here.setting, Chance(seed, 1))[0].ids.tolist()) for seed in range(9)}
    assert len(cohorts) > 5


def test_a_loss_that_is_no_number_is_not_learnt():
    here = equipped()
    for part, name in ((Utility(1.0), "utility"), (PowerOfChoice(), "loss")):
        memory = part.init(here.setting, here.model)
        ids = torch.arange(3)
        heard = reply(ids, [math.nan, math.inf, 1.0], here.setting.fleet.examples)
        after = part.observe(memory, here.setting, here.model, heard)[name]
        assert torch.equal(after[:2], memory[name][:2])
        assert after[2] != memory[name][2]


# ---- Oort's own way


def fleet_of(size: int) -> Setting:
    """A larger fleet than the tiny world's."""
    here = world("mlp")
    examples = torch.arange(size) % 7 + 1
    return replace(here.setting, fleet=Fleet(examples, examples[:, None], made(size)))


def test_exploration_shrinks_and_ends():
    setting, model = fleet_of(200), world("mlp").model
    part = Utility(count=20, sampling=True)
    tried: set[int] = set()
    shares = []
    for ids, _, memory in stretch(part, setting, model, 30):
        assert len(ids) == 20
        shares.append(len(set(ids) - tried) / 20)
        tried |= set(ids)
        assert memory["tried"].sum() == len(tried)
    assert shares[0] == 1, "nobody is known yet"
    expected = [1 - int(20 * (1 - max(0.2, 0.9 * 0.95**number))) / 20 for number in range(2, 10)]
    assert shares[1:9] == pytest.approx(expected)
    assert shares[-1] == 0
    assert len(tried) == 200


def test_sampling_prefers_high_scores_and_stays_above_the_cut_off():
    setting, model = fleet_of(60), world("mlp").model
    part = Utility(count=10, sampling=True, cut_off=0.95)
    memory = part.init(setting, model)
    ids = torch.arange(60)
    memory = {**memory, "tried": torch.ones(60, dtype=torch.bool), "round": torch.tensor(1)}
    memory = part.observe(memory, setting, model, reply(ids, losses_of(1, ids), setting.fleet.examples))
    seconds = full_seconds(setting, setting.fleet.devices, part.work).total
    now = {**memory, "round": torch.tensor(50)}
    score = part.score(now) * part.slowness(now, seconds)
    limit = 0.95 * score.sort(descending=True).values[10]
    counts = torch.zeros(60)
    for seed in range(300):
        chosen = part(memory, setting, Chance(seed, 50))[0].ids
        assert (score[chosen] >= limit).all()
        counts[chosen] += 1
    able = score >= limit
    assert (counts > 0).equal(able)
    assert able.sum() > 10
    assert torch.corrcoef(torch.stack((counts[able].double(), score[able])))[0, 1] > 0.5


@pytest.mark.parametrize(
    ("gains", "percentiles"),
    [
        ([1.0] * 8, [10, 10, 10, 15, 15, 20, 20, 25]),  # flat: slower clients are let in
        ([1.0, 1.0, 2.0, 2.0, 4.0, 4.0], [10] * 6),  # growing
        ([1.0, 1.0, 9.0, 9.0, 9.0, 9.0], [10, 10, 10, 5, 5, 10]),  # a jump, then flat
    ],
)
def test_the_pacer(gains, percentiles):
    here = equipped()
    part = Utility(1.0, percentile=10.0, pacer=2)
    memory, ids, found = part.init(here.setting, here.model), torch.arange(FLEET), []
    for number, gain in enumerate(gains, 1):
        memory = part(memory, here.setting, Chance(0, number))[1]
        heard = reply(ids, [gain] * FLEET, here.setting.fleet.examples)
        memory = part.observe(memory, here.setting, here.model, heard)
        found.append(float(memory["percentile"]))
    assert found == percentiles


def test_oort_plays():
    here = equipped()
    for method in (oort(0.5), oort(0.5, sampling=True)):
        ours = small(method)
        run = play(here, ours, here.local(ours), rounds=4)
        assert [len(task.share) for task in run.tasks] == [6] * 4
        heard = run.memory["select"]["last"]
        assert heard.max() == 4
        assert (run.memory["select"]["utility"][heard > 0] > 0).all()
        assert (heard > 0).equal(run.memory["select"]["tried"])


# ---- Power of Choice


def test_the_worst_of_the_candidates():
    here = world("mlp")
    part = PowerOfChoice(3, FLEET)
    memory = part.init(here.setting, here.model)
    ids = torch.arange(FLEET)
    losses = [float(client % 7) for client in range(FLEET)]
    arrived = [client != 2 for client in range(FLEET)]
    memory = part.observe(memory, here.setting, here.model, reply(ids, losses, here.setting.fleet.examples, arrived))
    cohort = part(memory, here.setting, Chance(0, 2))[0]
    assert cohort.ids.tolist() == [2, 5, 6], "who was never heard of comes first"


def test_with_no_more_candidates_than_places_it_is_a_draw():
    here = world("mlp")
    part = PowerOfChoice(4, 4)
    memory = {"loss": torch.arange(FLEET).float()}
    for number in range(1, 6):
        chance = Chance(3, number)
        drawn = draw_by_weight(here.setting.fleet.examples.double(), 4, chance).sort().values
        assert torch.equal(part(memory, here.setting, chance)[0].ids, drawn)


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 30))
def test_cohorts_have_their_size(count, candidates):
    here = world("mlp")
    part = PowerOfChoice(count, candidates)
    for ids, _, _ in stretch(part, here.setting, here.model, 3):
        assert len(ids) == min(count, FLEET)


def test_drawing_by_weight():
    weight = torch.tensor([1.0, 2.0, 5.0, 0.0], dtype=torch.float64)
    draws = torch.stack([draw_by_weight(weight, 2, Chance(seed, 1)) for seed in range(4000)])
    first = torch.bincount(draws[:, 0], minlength=4) / 4000
    assert first.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8, 0], abs=0.03)
    second = torch.bincount(draws[draws[:, 0] == 2, 1], minlength=4) / (draws[:, 0] == 2).sum()
    assert second.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0], abs=0.04)


def test_power_of_choice_plays_and_remembers():
    here = world("mlp")
    method = small(power_of_choice(8), select=PowerOfChoice(5, 8))
    run = play(here, method, here.local(method), rounds=4)
    loss = run.memory["select"]["loss"]
    last = run.replies[-1]
    assert torch.equal(loss[last.ids], last.report["loss"])
    assert loss.isfinite().sum() > 5
    assert small(power_of_choice()).select != Uniform()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Utility(0),
        lambda: Utility(count=0),
        lambda: Utility(percentile=101),
        lambda: Utility(clip=-1),
        lambda: Utility(cut_off=1.5),
        lambda: Utility(alpha=-1),
        lambda: PowerOfChoice(0),
        lambda: PowerOfChoice(10, 0),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(BadExperiment):
        make()


def test_devices_must_be_known():
    here = world("mlp")
    with pytest.raises(BadExperiment, match="Utility needs a fleet with devices"):
        Utility().init(with_devices(here.setting, None), here.model)
