"""The round itself: what was not sent is not read, and every part is asked once, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Aggregate, Allocate, Mask, Repair, Select
from fedloom.core.types import Cohort, Portion, Reply, Setting, State, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.sub_model import SubModel
from fedloom.round import play_round, read_unsent_as_unchanged
from pieces import Scattered
from worlds import SEED, changed, engine_of, everything, play, small, world

MODEL = torch.tensor([10.0, 20.0, 30.0])


def reply(arrived: list[bool], mask: list[list[bool]] | None) -> Reply:
    """Two clients, three numbers."""
    return Reply(
        ids=torch.tensor([3, 5]),
        params=torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        mask=None if mask is None else torch.tensor(mask),
        extras={"change": torch.ones(2, 3)},
        report={
            "examples": torch.tensor([7, 8]),
            "loss": torch.tensor([0.5, 0.6]),
            "stopped": torch.tensor([True, True]),
        },
        arrived=torch.tensor(arrived),
    )


def test_all_arrived_whole_is_left_alone() -> None:
    sent = reply([True, True], None)
    assert read_unsent_as_unchanged(MODEL, sent) is sent


def test_unsent_numbers_are_the_models() -> None:
    read = read_unsent_as_unchanged(MODEL, reply([True, True], [[True, False, True], [False, False, True]]))
    assert read.params.tolist() == [[1.0, 20.0, 3.0], [10.0, 20.0, 6.0]]
    assert read.mask is not None
    assert read.mask.tolist() == [[True, False, True], [False, False, True]]
    assert read.extras["change"].eq(1).all()
    assert read.report["examples"].tolist() == [7, 8]


def test_lost_replies_say_nothing() -> None:
    read = read_unsent_as_unchanged(MODEL, reply([True, False], None))
    assert read.params.tolist() == [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]
    assert read.mask is None
    assert read.extras["change"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert read.report["examples"].tolist() == [7, 0]
    assert read.report["loss"].tolist() == [0.5, 0.0]


def test_lost_replies_cover_nothing() -> None:
    read = read_unsent_as_unchanged(MODEL, reply([False, True], [[True] * 3, [True, True, False]]))
    assert read.params.tolist() == [[10.0, 20.0, 30.0], [4.0, 5.0, 30.0]]
    assert read.mask is not None
    assert read.mask.tolist() == [[False] * 3, [True, True, False]]


@pytest.mark.parametrize("arrived", [[True, True], [True, False]])
def test_kinds_of_numbers_stay(arrived: list[bool]) -> None:
    before = reply(arrived, None)
    after = read_unsent_as_unchanged(MODEL, before)
    for name, value in before.report.items():
        assert after.report[name].dtype == value.dtype, name


ORDER: list[str] = []


@dataclass(frozen=True)
class Who(Select):
    """Two clients, one of whom may not answer."""

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        ORDER.append("select")
        return Cohort(torch.tensor([1, 3]), torch.tensor([True, False])), {"asked": torch.tensor(1)}

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        ORDER.append("observe")
        return {**memory, "seen": reply.arrived}


@dataclass(frozen=True)
class HowMuch(Allocate):
    """Unequal shares."""

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        ORDER.append("allocate")
        return torch.tensor([0.25, 1.0]), memory


@dataclass(frozen=True)
class Which(Mask):
    """The first numbers, as many as the share says."""

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        ORDER.append("mask")
        return Portion(torch.arange(len(model)) < share[:, None] * len(model)), memory


@dataclass(frozen=True)
class StandIn(Repair):
    """Nothing, but noted."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Reply, State]:
        ORDER.append("repair")
        return reply, memory


@dataclass(frozen=True)
class Sum(Aggregate):
    """One more than before."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        ORDER.append("aggregate")
        return model + 1, memory


@dataclass(frozen=True)
class Noted(SubModel):
    """Server half only."""

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        ORDER.append("brief")
        return {"hint": ids.double()}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        ORDER.append("debrief")
        assert torch.equal(new, old + 1)
        return new * 2, {"done": torch.tensor(True)}


def test_the_order_of_a_round() -> None:
    here = world("mlp")
    method = Method(select=Who(), allocate=HowMuch(), mask=Which(), local=Noted(), repair=StandIn(), aggregate=Sum())
    engine, asked = here.local(small(method)), []

    def noting(ids: Tensor, task: Task, chance: Chance) -> Reply:
        ORDER.append("train")
        asked.append(task)
        return engine.train(ids, task, chance)

    ORDER.clear()
    memory = method.init(here.setting, here.model)
    kept = {slot: dict(state) for slot, state in memory.items()}
    noted, chance = engine_of(noting), Chance(SEED, 4)
    new, after, task, reply = play_round(method, memory, here.model, here.setting, noted, chance)
    assert ORDER == ["select", "allocate", "mask", "brief", "train", "observe", "repair", "aggregate", "debrief"]
    assert torch.equal(new, (here.model + 1) * 2)
    assert memory == kept  # the memory that was given is not written to
    assert after["select"].keys() == {"asked", "seen"}
    assert after["select"]["seen"].tolist() == [True, False]  # not authorised: did not arrive
    assert after["local"].keys() == {"done"}
    assert asked[0] is task
    assert task.share.tolist() == [0.25, 1.0]
    assert task.extras["hint"].tolist() == [1.0, 3.0]
    assert torch.equal(reply.params[1], here.model)


def test_a_task_carries_the_rates() -> None:
    here, base = world("mlp"), small(fedavg())
    method = replace(base, optimiser=replace(base.optimiser, decay=0.5))
    run = play(here, method, here.local(method))
    assert [task.rate for task in run.tasks] == pytest.approx([0.1, 0.05, 0.025])
    assert {task.base_rate for task in run.tasks} == {0.1}
    assert [task.round for task in run.tasks] == [1, 2, 3]


def test_rows_of_a_task() -> None:
    here, method = world("mlp"), small(Method(mask=Scattered(), local=SubModel()))
    task = play(here, method, here.local(method), rounds=1).tasks[0]._replace(extras={"a": torch.arange(8.0)})
    some = task.rows(torch.tensor([6, 2]))
    assert task.mask is not None
    assert some.mask is not None
    assert torch.equal(some.mask, task.mask[[6, 2]])
    assert some.extras["a"].tolist() == [6.0, 2.0]
    assert some.model is task.model
    assert len(some.share) == len(some.authorised) == 2


def test_who_is_selected_does_not_depend_on_what_is_masked() -> None:
    here = world("mlp")
    plain, masked = small(fedavg()), small(Method(mask=Scattered(), local=SubModel()))
    runs = [play(here, method, here.local(method)) for method in (plain, masked)]
    for one, other in zip(runs[0].replies, runs[1].replies):
        assert torch.equal(one.ids, other.ids)


def test_the_mean_is_over_those_who_arrived() -> None:
    here, method = world("mlp"), small(fedavg())
    partly = changed(here.local(method), lambda reply, chance: reply._replace(arrived=reply.arrived & (reply.ids > 3)))
    run = play(here, method, partly, rounds=1)
    heard = run.replies[0].arrived
    weights = run.replies[0].report["examples"] * heard
    mean = (weights / weights.sum()) @ run.replies[0].params
    torch.testing.assert_close(everything(run)["model"], mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"mask": Scattered()}, "mask=Scattered does not fit this method: it sends part of the model, but LocalRule"),
        ({"local": Chain((SubModel(), KeepOwn()))}, "of SubModel and KeepOwn one leaves out"),
    ],
)
def test_parts_that_cannot_be_mixed_refuse(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        Method(**parts)
