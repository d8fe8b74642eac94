"""What uses classes elsewhere: with strata, and without any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from goal_worlds import goal_world
from torch import Tensor

from fedloom import BadExperiment, Experiment, from_torch, run
from fedloom.chance import Chance
from fedloom.core.pruning import TEMPERATURE, grasp, loss_of
from fedloom.core.types import Batch, Reply
from fedloom.data.prepare import from_arrays
from fedloom.engine.clients import Clients
from fedloom.engine.storage.shards import Shards
from fedloom.goals import numbers
from fedloom.methods.safari import safari
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from fedloom.parts.local.prune import Prune
from fedloom.parts.select.power_of_choice import PowerOfChoice
from fedloom.parts.select.utility import Utility
from fedloom.round import ask_cohort
from fedloom.runs.inputs import inputs_of
from fedloom.world.attack import LabelFlip
from worlds import SIZES, small

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 1, 6, 6)).astype(np.float32)
NUMBER, STRATUM = X.mean((1, 2, 3)), np.arange(90) % 3
ARRAYS = {"x_train": X[:60], "y_train": NUMBER[:60], "x_test": X[60:], "y_test": NUMBER[60:]}
SMALL = {"clients": 6, "rounds": 3, "per_round": None, "partition": "iid", "training": {"epochs": 1}}


# ---- what clients look at before they prune


def looked_at(case: str, strata: list[int] | None, per_class: int = 2) -> list[Batch]:
    """What every client of the tiny fleet sees when it chooses, each by itself."""
    here, seen = goal_world(case), []
    method = small(safari("snip", 0.5, per_class=per_class))

    class Noted(Prune):
        """Remember the examples, and prune nothing."""

        def narrow(self, setting: Any, ids: Any, task: Any, state: Any, look: Any, chance: Any) -> Any:
            """Keep everything."""
            seen.extend(look)
            return torch.ones(len(ids), setting.layout.total, dtype=torch.bool), state

    method = replace(method, local=Noted("snip", per_class=per_class))
    own = None if strata is None else Shards([torch.tensor(strata[: len(r)]) for r in lists()], torch.device("cpu"))
    clients = Clients(method, here.setting, here.data, here.shards, strata=own)
    _, task, _ = ask_cohort(method, method.init(here.setting, here.model), here.model, here.setting, Chance(0, 1))
    for place in range(len(SIZES)):
        clients.gather(torch.arange(len(SIZES)), [place], [place], task, Chance(0, 1), ())
    return seen


def lists() -> list[Tensor]:
    """Rows of every client's examples."""
    return list(torch.arange(sum(SIZES)).split(list(SIZES)))


def test_looks_are_at_some_of_each_class() -> None:
    for size, batch, own in zip(SIZES, looked_at("classes", None), lists(), strict=True):
        taken, there = batch.y[0][batch.weight[0] > 0], goal_world("classes").data.y[own]
        assert size == len(there)
        assert taken.bincount(minlength=3).tolist() == there.bincount(minlength=3).clamp(max=2).tolist()


def test_looks_are_at_some_of_each_stratum() -> None:
    strata = [0, 1, 0, 0, 2] * 5
    for size, batch in zip(SIZES, looked_at("numbers", strata), strict=True):
        own = torch.tensor(strata[:size]).bincount(minlength=3).clamp(max=2)
        assert int((batch.weight > 0).sum()) == int(own.sum())


def test_without_strata_looks_are_at_the_first_examples() -> None:
    whole = looked_at("numbers", None, per_class=1)
    for size, batch in zip(SIZES, whole, strict=True):
        assert int((batch.weight > 0).sum()) == min(size, 10)
    again = looked_at("numbers", None, per_class=1)
    assert all(torch.equal(one.x, other.x) for one, other in zip(whole, again))


def test_strata_of_a_file_reach_the_clients() -> None:
    data = from_arrays("mine", {**ARRAYS, "stratum_train": STRATUM[:60]}, goal=numbers())
    inputs = inputs_of(Experiment(**SMALL, goal="numbers"), data=data)
    assert inputs.strata is not None
    own = [STRATUM[rows].tolist() for rows in inputs.shards.examples.split(inputs.shards.sizes)]
    assert [one.tolist() for one in inputs.strata.examples.split(inputs.strata.sizes)] == own


@pytest.mark.parametrize(("case", "temperature"), [("classes", TEMPERATURE), ("binary", TEMPERATURE), ("numbers", 1)])
def test_grasp_softens_scores_alone(case: str, temperature: float) -> None:
    here = goal_world(case, torch.float64)
    weight = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    batch = Batch(here.data.x[None, :6], here.data.y[None, :6], weight, torch.tensor([0]))
    found = grasp(here.setting, here.model[None], [batch])[0]
    loss = loss_of(here.setting, temperature)
    flat = here.model.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(flat, batch.x[0], batch.y[0], weight[0]), flat, create_graph=True)
    (curve,) = torch.autograd.grad(slope @ torch.where(found != 0, slope, 0).detach(), flat)
    expected = torch.where(found != 0, here.model * curve, 0)
    torch.testing.assert_close(found, expected / (expected.sum().abs() + 1e-10), rtol=1e-9, atol=1e-12)


# ---- methods and attacks


def test_feddd_counts_no_classes_and_says_so() -> None:
    with_term, without = LatencyAndLoss(), LatencyAndLoss(class_term=False)
    setting, ids = goal_world("numbers").setting, torch.arange(len(SIZES))
    loss = torch.linspace(0.1, 2, len(SIZES)).double()
    assert torch.equal(with_term.importance(setting, ids, loss)[0], without.importance(setting, ids, loss)[0])
    assert "class term is 1" in str(with_term.note(setting))
    assert without.note(setting) is None
    known = goal_world("classes").setting
    assert with_term.note(known) is None
    assert not torch.equal(with_term.importance(known, ids, loss)[0], without.importance(known, ids, loss)[0])


@pytest.mark.parametrize(("goal", "known"), [("classes", True), ("numbers", False)])
def test_safaris_stand_ins_of_equal_classes(goal: str, known: bool) -> None:
    y = STRATUM if goal == "classes" else NUMBER
    data = {**ARRAYS, "y_train": y[:60], "y_test": y[60:]}
    lost = Experiment(
        **SMALL,
        method="safari",
        goal=goal,
        fleet="equal",
        channel={"name": "bernoulli", "settings": {"up": 0.4}},
        seed=1,
    )
    rows = run(lost, data=data).rounds
    stood_in = [row for row in rows if row["repair.stand_ins"]]
    assert stood_in
    assert all(math.isfinite(row["repair.same_group"]) == known for row in stood_in)  # NaN is null in reports
    assert all(row.get("per_class") is None for row in rows) == (not known)


@pytest.mark.parametrize("loss", [-3.0, 0.0])
def test_losses_below_zero_count_as_zero(loss: float) -> None:
    setting, model = goal_world("numbers").setting, goal_world("numbers").model
    ids = torch.tensor([0, 1])
    report = {"loss": torch.tensor([loss, 1.0]), "examples": torch.tensor([5, 5]), "steps": torch.tensor([1, 1])}
    reply = Reply(ids, model.expand(2, -1), None, {}, report, torch.tensor([True, True]))
    for part, name in ((Utility(), "utility"), (PowerOfChoice(2, 4), "loss")):
        memory = part.observe(part.init(setting, model), setting, model, reply)
        assert float(memory[name][0]) == 0
        assert float(memory[name][1]) > 0


FLIPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "classes": lambda y: 2 - y,
    "binary": lambda y: 1 - y,
    "labels": lambda y: 1 - y,
    "tokens": lambda y: torch.where(y == -100, -100, 2 - y),
    "pixels": lambda y: torch.where(y == 255, 255, 2 - y),
}


@pytest.mark.parametrize("case", FLIPPED)
def test_labels_are_flipped_and_what_is_ignored_stays(case: str) -> None:
    here = goal_world(case)
    outputs = {"labels": 4, "binary": 1}.get(case, 3)
    assert torch.equal(LabelFlip().targets(here.data.y, here.setting.goal, outputs), FLIPPED[case](here.data.y))


def test_numbers_have_no_opposite() -> None:
    with pytest.raises(BadExperiment, match="choose sign-flip, scaling or noise"):
        run(Experiment(**SMALL, goal="numbers", attack="label-flip"), data=ARRAYS)


# ---- what is kept back for testing


def test_a_fifth_of_every_stratum_or_of_all() -> None:
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(NUMBER))
    strata = np.array([0] * 50 + [1] * 40)
    data = from_torch(pairs, stratum=strata)
    assert data.stratum_train is not None
    assert np.bincount(data.stratum_train).tolist() == [40, 32]
    assert len(data.x_test) == 18
    plain = from_torch(pairs)
    assert (len(plain.x_train), len(plain.x_test)) == (72, 18)
