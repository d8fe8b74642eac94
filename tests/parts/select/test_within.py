"""FedCS in both variants, and Bernoulli, by hand and against plain Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.chance import Chance
from fedloom.core.clock import Seconds, full_seconds
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.methods.fedcs import fedcs
from fedloom.methods.oort import oort
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.within import FastestWithinBudget, WithinDeadline, in_sequence, part_of, within_budget
from world.made import FLEET, equipped, made, with_devices
from worlds import play, small, world

BITS = 32 * (36 * 8 + 8 + 8 * 3 + 3)


def chosen(part, devices, number: int = 1, seed: int = 0) -> list[int]:
    """The cohort of a round."""
    here = equipped(devices)
    cohort, _ = part(part.init(here.setting, here.model), here.setting, Chance(seed, number))
    assert cohort.authorised.all()
    assert cohort.ids.dtype == torch.int64
    return cohort.ids.tolist()


# ---- budget


def test_the_fastest_by_hand():
    up = [1e3, 5e3, 2e3, 4e3] + [900.0] * 8
    devices = made(up=up, down=1e5, cycles=1e9, cycles_per_example=1e6)
    assert chosen(FastestWithinBudget(3 / 12), devices) == [1, 2, 3]
    assert chosen(FastestWithinBudget(0.2), devices) == [1, 3], "2.4 models pay for two"
    assert chosen(FastestWithinBudget(0.01), devices) == [1], "at least one"
    assert chosen(FastestWithinBudget(1.0), devices) == list(range(12))
    slow = made(up=up, down=[1e5, 1e5, 1e5, 1e3] + [1e5] * 8, cycles=1e9, cycles_per_example=1e6)
    assert chosen(FastestWithinBudget(3 / 12), slow) == [0, 1, 2], "a slow download counts"
    busy = made(up=up, down=1e5, cycles=[1e9, 1e5] + [1e9] * 10, cycles_per_example=1e6)
    assert chosen(FastestWithinBudget(3 / 12), busy) == [0, 2, 3], "so does slow computing"


def test_the_work_counts():
    devices = made(up=1e6, down=1e6, cycles=[1e9] * 11 + [2e8], cycles_per_example=[1e6] * 11 + [1e7])
    for epochs in (1, 5):
        setting, work = equipped(devices).setting, Work(epochs=epochs)
        seconds = full_seconds(setting, devices, work).total
        fastest = seconds.argsort()[:6].sort().values.tolist()
        assert chosen(FastestWithinBudget(0.5, work), devices) == fastest


def test_static_rates_always_leave_the_same_out_and_fading_ones_do_not():
    part = FastestWithinBudget(0.6)
    still = [chosen(part, made(), number) for number in range(1, 6)]
    assert all(cohort == still[0] for cohort in still)
    assert len(still[0]) == 7
    moving = [chosen(part, made(fading=0.8), number) for number in range(1, 6)]
    assert len({tuple(cohort) for cohort in moving}) > 1
    assert chosen(part, made(fading=0.8), 2) == moving[1]


@pytest.mark.parametrize(("size", "budget", "count"), [(100, 0.6, 60), (100, 0.29, 29), (10, 0.55, 5), (3, 0.2, 1)])
def test_a_budget_pays_for_so_many(size, budget, count):
    order = torch.arange(size).flip(0)
    assert within_budget(budget, order, torch.ones(size, dtype=torch.float64)) == count


def test_a_budget_is_of_the_models_that_clients_have():
    part = torch.tensor([1.0, 0.1, 0.1, 0.8], dtype=torch.float64)  # 2.0 in all
    assert within_budget(0.5, torch.tensor([3, 1, 2, 0]), part) == 3
    assert within_budget(0.5, torch.tensor([0, 3, 1, 2]), part) == 1
    assert within_budget(0.3, torch.tensor([0, 3, 1, 2]), part) == 1  # the first one always


@pytest.mark.parametrize("made", [fedcs, oort])
def test_a_budget_pays_for_small_models_and_large_ones(made):
    here, unequal = equipped(), small(made(models=(0.3, 1.0)))
    ours = play(here, unequal, here.local(unequal))
    part = part_of(here.setting, unequal.select.models)
    assert len(part.unique()) == 2
    for task in ours.tasks:
        paid = part[task.ids].sum() / part.sum()
        assert 0.6 - part.max() / part.sum() < paid <= 0.6 + 1e-9  # nobody else would fit
    assert {len(task.ids) for task in ours.tasks} != {7}  # which whole models would be
    looped = play(here, unequal, here.loop(unequal))
    assert torch.allclose(looped.model, ours.model, atol=1e-5)
    with pytest.raises(BadExperiment, match="models"):
        replace(unequal, select=made().select)  # a choice by the whole network's seconds


def test_oorts_draw_knows_one_size_of_models():
    with pytest.raises(BadExperiment, match="sampling"):
        oort(sampling=True, models=(0.3, 1.0))


# ---- deadline


def greedy(down: list[float], compute: list[float], up: list[float], deadline: float) -> list[int]:
    """FedCS's algorithm 3, one candidate at a time."""
    left, taken, elapsed = list(range(len(up))), [], 0.0

    def spread(clients: list[int]) -> float:
        return max((down[c] for c in clients), default=0.0)

    while left:
        best = min(
            left, key=lambda c: (spread([*taken, c]) - spread(taken) + up[c] + max(0.0, compute[c] - elapsed), c)
        )
        left.remove(best)
        later = elapsed + up[best] + max(0.0, compute[best] - elapsed)
        if spread([*taken, best]) + later <= deadline:
            taken, elapsed = [*taken, best], later
    total = [d + c + u for d, c, u in zip(down, compute, up)]
    return sorted(taken) or [total.index(min(total))]


@settings(max_examples=60)
@given(st.data())
def test_the_greedy_choice_against_plain_python(data):
    count = data.draw(st.integers(1, 8))
    columns = [data.draw(st.lists(st.integers(1, 30), min_size=count, max_size=count)) for _ in range(3)]
    down, compute, up = ([float(n) for n in column] for column in columns)
    deadline = float(data.draw(st.integers(1, 90)))
    seconds = Seconds(*(torch.tensor(column, dtype=torch.float64) for column in (down, compute, up)))
    assert in_sequence(seconds, deadline).tolist() == greedy(down, compute, up, deadline)


def test_uploads_come_one_after_the_other():
    devices = made(up=[BITS / 3.0] * 12, down=1e30, cycles=1e30)  # 3 s each
    for deadline, count in ((9.5, 3), (3.0, 1), (1.0, 1), (100.0, 12)):
        assert len(chosen(WithinDeadline(deadline, 12), devices)) == count


def test_candidates_are_asked_at_random():
    part = WithinDeadline(1e9, 4)
    cohorts = [chosen(part, made(), number) for number in range(1, 30)]
    assert {len(cohort) for cohort in cohorts} == {4}
    assert {client for cohort in cohorts for client in cohort} == set(range(12))
    assert len(chosen(WithinDeadline(1e9, 50), made())) == 12


# ---- the method


def test_fedcs_is_either():
    assert fedcs(0.5).select == FastestWithinBudget(0.5)
    assert fedcs(deadline=60.0, candidates=20).select == WithinDeadline(60.0, 20)
    here = equipped()
    method = small(fedcs())
    run = play(here, method, here.local(method))
    assert all(task.share.shape == (7,) for task in run.tasks)


@pytest.mark.parametrize("part", [FastestWithinBudget(), WithinDeadline()])
def test_devices_must_be_known(part):
    here = world("mlp")
    for call in (part.init, lambda setting, _: part({}, setting, Chance(0, 1))):
        with pytest.raises(BadExperiment, match=f"{type(part).__name__} needs a fleet with devices"):
            call(with_devices(here.setting, None), here.model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FastestWithinBudget(0),
        lambda: FastestWithinBudget(1.1),
        lambda: WithinDeadline(0),
        lambda: WithinDeadline(1, 0),
        lambda: Bernoulli(0),
        lambda: Bernoulli(1.5),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(BadExperiment):
        make()


# ---- the coin


def test_a_coin_for_everyone():
    here = world("mlp")
    part = Bernoulli(0.3)
    cohorts = [part({}, here.setting, Chance(0, number))[0].ids.tolist() for number in range(1, 1001)]
    assert all(cohort == sorted(cohort) and cohort for cohort in cohorts)
    counts = torch.tensor([cohort.count(client) for client in range(FLEET) for cohort in cohorts]).view(FLEET, -1)
    assert counts.double().mean(1).tolist() == pytest.approx([0.3] * FLEET, abs=0.06)
    assert len({len(cohort) for cohort in cohorts}) > 5
    rare = [Bernoulli(1e-6)({}, here.setting, Chance(0, number))[0].ids.tolist() for number in range(1, 50)]
    assert {len(cohort) for cohort in rare} == {1}
    assert len({cohort[0] for cohort in rare}) > 5
    assert Bernoulli(1.0)({}, here.setting, Chance(0, 1))[0].ids.tolist() == list(range(FLEET))


def test_a_method_may_toss_coins():
    here = world("mlp")
    method = replace(small(fedcs()), select=Bernoulli(0.5))
    assert len({len(task.share) for task in play(here, method, here.local(method), rounds=4).tasks}) > 1
