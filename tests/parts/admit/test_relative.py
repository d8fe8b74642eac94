"""No reply is far longer than the others: row 6 of the table of faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.refused import REASONS
from fedloom.core.types import Reply, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fjord import fjord
from fedloom.methods.scaffold import scaffold
from fedloom.parts.admit.bounded import Bounded
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.relative import FEWEST, Relative, medians, sizes
from fedloom.parts.aggregate.private_mean import private
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from worlds import assert_identical, changed, every_method, everything, play, played, small, world

HERE = world("normed")
TOTAL, TRAINED = HERE.setting.layout.total, HERE.setting.layout.trained


def reply_of(lengths: list[float], mask: Tensor | None = None, **extras: Tensor) -> Reply:
    """Replies whose sent numbers all differ from a model of zeros by these lengths."""
    params = torch.tensor(lengths)[:, None].repeat(1, TOTAL)
    if mask is not None:
        params = torch.where(mask, params, 0)
    ids = torch.arange(len(lengths))
    said = {"examples": torch.ones_like(ids), "loss": torch.zeros(len(ids))}
    return Reply(ids, params, mask, extras, said, torch.ones_like(ids, dtype=torch.bool))


def task_of(model: Tensor, count: int) -> Task:
    """What went down."""
    everyone = torch.ones(count)
    return Task(model, None, None, everyone, everyone > 0, {}, 1, 0.1, 0.1, TRAINED, torch.arange(count))


def judged(replies: list[Reply], part: Any = None) -> list[list[str]]:
    """The reasons of every reply, round by round."""
    model, found, part = torch.zeros(TOTAL), [], part or Relative(10.0)
    memory = part.init(HERE.setting, model)
    for reply in replies:
        got, memory = part(memory, HERE.setting, model, task_of(model, len(reply.ids)), reply)
        codes = torch.zeros(len(reply.ids)) if got.rejected is None else got.rejected
        found.append([REASONS[int(code)] for code in codes])
    return found


def test_a_size_is_the_root_mean_square_of_what_was_sent() -> None:
    mask = torch.zeros(3, TOTAL, dtype=torch.bool)
    mask[0], mask[1, :7], mask[2, ::2] = True, True, True
    found, floor = sizes(HERE.setting, torch.zeros(TOTAL), reply_of([3.0, 3.0, 3.0], mask))
    torch.testing.assert_close(found[:, 0], torch.full((3,), 3.0))
    assert floor.tolist() == [0.0] * found.shape[1]
    assert found.shape[1] == 1 + (TRAINED < TOTAL)  # running statistics have a size of their own


@pytest.mark.parametrize("length", [1e3, 1e30, 3e38, torch.nan, torch.inf, -1e25])
def test_only_the_long_one_is_refused(length: float) -> None:
    lengths = [1.0, 2.0, 0.5, length, 1.0, 3.0]
    assert judged([reply_of(lengths)])[0] == ["admitted"] * 3 + ["norm"] + ["admitted"] * 2


def test_it_may_hide_in_no_kind_of_number() -> None:
    for place in (0, TRAINED, TOTAL - 1):  # a weight, running statistics
        reply = reply_of([1.0] * 5)
        reply.params[2, place] = 1e9
        assert judged([reply])[0][2] == "norm"
    wide = torch.ones(5, 4, 3)
    wide[1, 2, 2] = 1e7
    assert judged([reply_of([1.0] * 5, change=wide)])[0] == ["admitted", "norm", *["admitted"] * 3]
    wide[1, 2, 2] = 50.0  # within ten times as much
    assert judged([reply_of([1.0] * 5, change=wide)])[0] == ["admitted"] * 5


def test_one_two_and_three_replies_are_judged_by_the_rounds_before() -> None:
    before = [reply_of([1.0] * 6)] * FEWEST
    assert judged([*before, reply_of([1e3])])[-1] == ["norm"]
    assert judged([*before, reply_of([1e3, 1e3])])[-1] == ["norm"] * 2
    assert judged([*before, reply_of([1e3, 1.0, 1e3])])[-1] == ["norm", "admitted", "norm"]
    assert judged([*before, reply_of([1e3, 1e3, 1e3])])[-1] == ["admitted"] * 3  # three that agree decide
    assert judged([*before, reply_of([1e3, 1.0, 1.0])])[-1] == ["norm", "admitted", "admitted"]
    assert judged([*before, reply_of([1e3]), reply_of([1e3])])[-2:] == [["norm"], ["norm"]]  # it is not remembered
    assert judged([*before, reply_of([9.0])])[-1] == ["admitted"]


def test_the_first_replies_of_a_run() -> None:
    assert judged([reply_of([1e3])]) == [["admitted"]]  # nothing to be compared with
    assert judged([reply_of([torch.inf])]) == [["norm"]]
    assert judged([reply_of([1e3, 1.0])]) == [["norm", "admitted"]]
    assert judged([reply_of([1e3]), *[reply_of([1.0] * 3)] * 3, reply_of([1e3])])[-1] == ["norm"]


def test_clients_that_did_not_move_are_no_measure() -> None:
    assert judged([reply_of([0.0, 0.0, 0.0, 1.0, 2.0])])[0] == ["admitted"] * 5
    assert judged([reply_of([0.0] * 4)] * 2)[1] == ["admitted"] * 4


def test_a_change_within_the_size_of_the_model_is_never_refused() -> None:
    model, part = torch.full((TOTAL,), 5.0), Relative(10.0)
    for length, counts in ((4.9, True), (5.1, False)):
        reply = reply_of([0.01] * 4 + [length])
        reply = reply._replace(params=reply.params + model)
        got, _ = part(part.init(HERE.setting, model), HERE.setting, model, task_of(model, 5), reply)
        assert bool(got.arrived[4]) is counts


def test_medians_are_the_lower_ones_and_are_filled_up_to_five() -> None:
    past = torch.tensor([[7.0], [8.0], [9.0], [torch.inf]])
    every = torch.ones(6, dtype=torch.bool)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    assert float(medians(values, every, past)) == 3.0
    assert float(medians(values[:4], every[:4], past)) == 3.0  # 1 2 3 4 7
    assert float(medians(values[:1], every[:1], past)) == 7.0  # 1 7 8 9
    assert float(medians(values[:1], ~every[:1], past)) == 8.0
    assert float(medians(values[:1], ~every[:1], past[3:])) == torch.inf


@pytest.mark.parametrize("make", [fedavg, scaffold, fjord])
def test_an_attacked_round_equals_one_without_the_attacker(make: Any) -> None:
    method = small(make(), admit=Several((Finite(), Relative())))

    def attack(reply: Reply, chance: Chance) -> Reply:
        params = reply.params.clone()
        params[2] = HERE.model + (params[2] - HERE.model) * 1e5
        return reply._replace(params=params)

    def lose(reply: Reply, chance: Chance) -> Reply:
        arrived = reply.arrived.clone()
        arrived[2] = False
        return reply._replace(arrived=arrived)

    ours = play(HERE, method, changed(HERE.local(method), attack), rounds=1)
    theirs = play(HERE, method, changed(HERE.local(method), lose), rounds=1)
    assert_identical(everything(ours), everything(theirs))


@every_method
def test_a_tiny_fleet_loses_nothing_and_changes_by_no_bit(method: Method) -> None:
    strict = replace(method, admit=Several((method.admit, Bounded(), Relative())))
    found = play(HERE, strict, HERE.local(strict), rounds=2)
    plain = played("normed", method, 2)
    torch.testing.assert_close(found.model, plain.model, rtol=0, atol=0)
    for ours, theirs in zip(found.replies, plain.replies):
        assert torch.equal(ours.arrived, theirs.arrived)


HONEST = {
    "data": "digits", "clients": 100, "partition": {"name": "dirichlet", "settings": {"alpha": 0.1}}, "fleet": "iot",
    "rounds": 100, "device": "cpu", "evaluate_every": 100,
}  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "fedspu", "fjord"])
def test_an_honest_fleet_of_unlike_clients_loses_nothing(method: str) -> None:
    found = run(Experiment(**{**HONEST, "method": method, "admit": "careful"}))
    assert found.rejected == {}


def test_a_resumed_run_remembers_the_medians(tmp_path: Path) -> None:
    values = {**HONEST, "rounds": 6, "clients": 10, "per_round": 2, "admit": "careful", "attack": "scaling"}
    whole = run(Experiment(**values))
    run(Experiment(**{**values, "rounds": 3}), out=tmp_path / "run")
    found = run(Experiment(**values), out=tmp_path / "run", resume=True)
    assert found.rejected == whole.rejected
    assert found.rejected["norm"] > 0
    for one, other in zip(whole.model.parameters(), found.model.parameters()):
        assert torch.equal(one, other)


def test_numbers_that_cannot_be_computed_with_are_refused() -> None:
    for number, reason in ((1e14, "admitted"), (1e16, "value"), (-1e30, "value"), (torch.nan, "value")):
        reply = reply_of([1.0] * 3)
        reply.params[1, 5] = number
        assert judged([reply], Bounded())[0] == ["admitted", reason, "admitted"]


@pytest.mark.parametrize("part", [lambda: Relative(0.5), lambda: Relative(torch.nan), lambda: Bounded(torch.inf)])
def test_impossible_bounds_are_refused(part: Any) -> None:
    with pytest.raises(BadExperiment):
        part()


def test_a_private_mean_lets_no_reply_decide_about_another() -> None:
    with pytest.raises(BadExperiment, match="single replies"):
        private(small(fedavg(), admit=Relative()))
