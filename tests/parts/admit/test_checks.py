"""Checks refuse what they should: rows 4 to 7 of the table of faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Admit
from fedloom.core.refused import REASONS, counted, refuse
from fedloom.core.types import Reply, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddd import feddd
from fedloom.methods.fjord import fjord
from fedloom.methods.safari import safari
from fedloom.methods.scaffold import scaffold
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.norm import Norm
from fedloom.parts.admit.part_asked import PartAsked, WithinShare
from fedloom.parts.admit.weight import Weight
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.sub_model import SubModel
from pieces import Scattered
from worlds import assert_identical, changed, everything, play, played, small, world

HERE = world("normed")
TENSORS = HERE.setting.layout.names
SMALLEST = 1e-45  # a subnormal


def spoilt(value: float, place: int, row: int = 2) -> Any:
    """Replace one number of one client."""

    def change(reply: Reply, chance: Chance) -> Reply:
        params = reply.params.clone()
        params[row, place] = value
        mask = None if reply.mask is None else reply.mask.clone()
        if mask is not None:
            mask[row, place] = True
        return reply._replace(params=params, mask=mask)

    return change


def left_out(row: int = 2) -> Any:
    """Lose the reply of one client."""

    def change(reply: Reply, chance: Chance) -> Reply:
        arrived = reply.arrived.clone()
        arrived[row] = False
        return reply._replace(arrived=arrived)

    return change


def one_round(method: Method, change: Any) -> Any:
    """A round of the tiny fleet with replies that `change` alters."""
    return play(HERE, method, changed(HERE.local(method), change), rounds=1)


def reasons(reply: Reply) -> list[str]:
    """The reason of each refusal."""
    return ["admitted"] * len(reply.ids) if reply.rejected is None else [REASONS[int(c)] for c in reply.rejected]


# ---- row 5: NaN and infinity


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", TENSORS)
def test_one_such_number_in_any_tensor_loses_that_reply_alone(name: str, value: float) -> None:
    method = small(fedavg())
    place = sum(
        size for other, size in zip(TENSORS, HERE.setting.layout.sizes) if TENSORS.index(other) < TENSORS.index(name)
    )
    found, expected = one_round(method, spoilt(value, place)), one_round(method, left_out())
    assert_identical(everything(found), everything(expected))
    assert reasons(found.replies[0]) == ["admitted"] * 2 + ["value"] + ["admitted"] * 5
    assert found.replies[0].arrived.tolist() == [True, True, False, *[True] * 5]
    assert counted(found.replies[0].rejected, found.replies[0].strays) == {"rejected.value": 1}


@pytest.mark.parametrize("value", [-0.0, SMALLEST, -SMALLEST, 3e38])
def test_zeros_subnormals_and_large_numbers_pass(value: float) -> None:
    found = one_round(small(fedavg()), spoilt(value, 0))
    assert found.replies[0].rejected is None
    assert found.replies[0].arrived.all()


def test_many_large_numbers_do_not_look_infinite() -> None:
    large = one_round(small(fedavg()), lambda r, c: r._replace(params=torch.full_like(r.params, 3e38)))
    assert large.replies[0].arrived.all()


def test_extras_and_the_reported_loss_are_looked_at() -> None:
    method = small(scaffold())
    for place in ("extras", "report"):
        name = {"extras": "change", "report": "loss"}[place]

        def change(reply: Reply, chance: Chance, place: str = place, name: str = name) -> Reply:
            value = getattr(reply, place)[name].clone()
            value[2] = torch.nan
            return reply._replace(**{place: {**getattr(reply, place), name: value}})

        found = one_round(method, change)
        assert reasons(found.replies[0])[2] == "value"
        assert_identical(everything(found), everything(one_round(method, left_out())))


def test_a_clean_round_is_left_alone() -> None:
    reply = played("normed", small(fedavg()), 1).replies[0]
    task = played("normed", small(fedavg()), 1).tasks[0]
    assert Finite()({}, HERE.setting, HERE.model, task, reply)[0] is reply


def test_nobody_left_leaves_the_model() -> None:
    run = one_round(small(fedavg()), lambda r, c: r._replace(params=r.params * torch.nan))
    assert torch.equal(run.model, HERE.model)
    assert reasons(run.replies[0]) == ["value"] * 8


# ---- row 6: norms


def naive_norm(params: Tensor, model: Tensor, bound: float, beyond: float) -> tuple[list[list[float]], list[bool]]:
    """Client by client."""
    rows, bad = [], []
    for row in params:
        change = [float(a) - float(b) for a, b in zip(row, model)]
        norm = sum(x * x for x in change) ** 0.5
        rows.append([float(b) + x * min(1, bound / norm if norm else 1) for x, b in zip(change, model)])
        bad.append(norm > bound * beyond)
    return rows, bad


def test_updates_are_cut_and_refused_as_by_hand() -> None:
    model = torch.tensor([1.0, -1.0, 0.5])
    params = model + torch.tensor([[0.0, 0, 0], [0.1, 0, 0.1], [3.0, 4.0, 0.0], [30.0, -40.0, 0.0], [0, 0, -1.0]])
    reply = reply_of(params)
    got, _ = Norm(1.0, 20.0)({}, HERE.setting, model, task_of(model), reply)
    rows, bad = naive_norm(params, model, 1.0, 20.0)
    assert got.arrived.tolist() == [not one for one in bad] == [True, True, True, False, True]
    for row in (0, 1, 2, 4):
        assert got.params[row].tolist() == pytest.approx(rows[row], abs=1e-6)
    assert torch.equal(got.params[3], model)
    assert torch.equal(got.params[1], params[1])  # within the bound: not one bit


@pytest.mark.parametrize("size", [1e30, 3e38, 1e3])
@pytest.mark.parametrize("beyond", [10.0, 1e35])
def test_one_client_moves_the_model_by_at_most_the_bound_over_n(size: float, beyond: float) -> None:
    bound, method = 0.5, small(fedavg(), aggregate=CoverageMean("uniform"), admit=Norm(0.5, beyond))
    still = one_round(method, lambda r, c: r._replace(params=HERE.model.expand_as(r.params)))

    def attack(reply: Reply, chance: Chance) -> Reply:
        params = HERE.model.repeat(len(reply.ids), 1)
        params[2] += size
        return reply._replace(params=params)

    moved = one_round(method, attack).model - still.model
    assert float(moved.norm()) <= bound / 8 * 1.001 + 1e-6  # the model itself is rounded


@pytest.mark.parametrize("part", [lambda: Norm(0), lambda: Norm(-1.0), lambda: Norm(1.0, 0.5), lambda: Weight(0)])
def test_impossible_bounds_are_refused(part: Any) -> None:
    with pytest.raises(BadExperiment):
        part()


# ---- row 7: weights


def reply_of(params: Tensor, mask: Tensor | None = None, **report: Tensor) -> Reply:
    """Some rows."""
    ids = torch.arange(len(params))
    said = {"examples": torch.ones_like(ids), "steps": torch.ones_like(ids), "loss": torch.zeros(len(ids)), **report}
    return Reply(ids, params, mask, {}, said, torch.ones_like(ids, dtype=torch.bool))


def task_of(model: Tensor, mask: Tensor | None = None, count: int = 5) -> Task:
    """What went down."""
    ids = torch.arange(count)
    return Task(model, mask, None, torch.ones(count), torch.ones(count) > 0, {}, 1, 0.1, 0.1, len(model), ids)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_impossible_weights(kind: torch.dtype) -> None:
    model, params = torch.zeros(3), torch.ones(5, 3)
    said = torch.tensor([0, -4, 10**18, 3, 5]).to(kind)
    reply = reply_of(params, examples=said)
    got, _ = Weight()({}, HERE.setting, model, task_of(model), reply)
    assert got.arrived.tolist() == [False, False, True, True, True]
    assert reasons(got)[:2] == ["report", "report"]
    assert got.report["examples"].tolist() == [0, 0, 7, 3, 3]  # the fleet knows of 1, 30, 7, 12 and 3
    capped, _ = Weight(4)({}, HERE.setting, model, task_of(model), reply)
    assert capped.report["examples"].tolist() == [0, 0, 4, 3, 4]
    new, _ = CoverageMean()({}, HERE.setting, model, got)
    assert torch.equal(new, torch.ones(3))


@pytest.mark.parametrize("said", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers(said: float) -> None:
    reply = reply_of(torch.ones(5, 3), examples=torch.tensor([1.0, said, 2.0, 3.0, 3.0]))
    got, _ = Weight()({}, HERE.setting, torch.zeros(3), task_of(torch.zeros(3)), reply)
    assert got.arrived.tolist() == [True, False, True, True, True]
    assert CoverageMean()({}, HERE.setting, torch.zeros(3), got)[0].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_no_weight_at_all_is_no_division_by_zero(masked: bool) -> None:
    def change(reply: Reply, chance: Chance) -> Reply:
        return reply._replace(report={**reply.report, "examples": torch.zeros_like(reply.ids)})

    method = small(Method(mask=Scattered(), local=SubModel()) if masked else fedavg(), admit=Weight())
    assert torch.equal(one_round(method, change).model, HERE.model)


# ---- row 4: masks


@pytest.mark.parametrize("extra", [True, False])
def test_another_mask_than_was_sent_is_refused(extra: bool) -> None:
    method = small(fjord(), admit=PartAsked())

    def change(reply: Reply, chance: Chance) -> Reply:
        assert reply.mask is not None
        mask = reply.mask.clone()
        row = int((~mask).any(1).nonzero()[0]) if extra else 0
        place = int((mask[row] != extra).nonzero()[0])
        mask[row, place] = extra
        return reply._replace(mask=mask)

    found = one_round(method, change)
    assert sorted(reasons(found.replies[0])) == ["admitted"] * 7 + ["mask"]


def test_everything_instead_of_a_part_is_refused() -> None:
    found = one_round(small(fjord(), admit=PartAsked()), lambda r, c: r._replace(mask=None))
    asked = found.tasks[0].mask
    assert asked is not None
    assert reasons(found.replies[0]) == ["admitted" if row else "mask" for row in asked.all(1).tolist()]
    part = one_round(small(fedavg(), admit=PartAsked()), lambda r, c: r._replace(mask=torch.rand(r.params.shape) < 0.5))
    assert reasons(part.replies[0]) == ["mask"] * 8


def test_the_right_mask_passes_whatever_its_order() -> None:
    method = small(fjord(), admit=PartAsked())

    def change(reply: Reply, chance: Chance) -> Reply:
        assert reply.mask is not None
        back = torch.arange(len(reply.ids)).flip(0)
        report = {name: value[back] for name, value in reply.report.items()}
        return Reply(reply.ids[back], reply.params[back], reply.mask[back], {}, report, reply.arrived[back])

    assert one_round(method, change).replies[0].rejected is None


def test_lost_pieces_pass_where_they_are_said_to_happen() -> None:
    def change(reply: Reply, chance: Chance) -> Reply:
        assert reply.mask is not None
        return reply._replace(mask=reply.mask & (torch.arange(reply.mask.shape[1]) % 3 > 0))

    method = small(fjord(), admit=PartAsked(pieces=True))
    assert one_round(method, change).replies[0].arrived.all()
    assert not one_round(replace(method, admit=PartAsked()), change).replies[0].arrived.any()


def test_the_server_must_have_chosen() -> None:
    for method in (feddd(), safari()):
        with pytest.raises(BadExperiment, match="clients choose by themselves"):
            replace(method, admit=PartAsked())
        replace(method, admit=WithinShare())


@pytest.mark.parametrize(
    "method", [small(feddd()), small(feddd(outputs=False, select_by="random")), small(safari("snip", 0.5))]
)
def test_clients_that_choose_stay_within_their_share(method: Method) -> None:
    method = replace(method, admit=WithinShare())
    honest = play(HERE, method, HERE.local(method), rounds=2)
    assert all(reply.rejected is None for reply in honest.replies)
    greedy = play(HERE, method, changed(HERE.local(method), lambda r, c: r._replace(mask=None)), rounds=2)
    few = greedy.tasks[1].share < 0.7  # of six neurons 0.85 is all of them, rounded up
    assert few.any()
    assert not greedy.replies[1].arrived[few].any()
    assert {reasons(greedy.replies[1])[int(at)] for at in few.nonzero()} == {"share"}


# ---- several


def test_several_say_the_first_reason_and_none_admits_all() -> None:
    method = small(fedavg(), admit=Several((Finite(), Weight(), Norm(1e6))))

    def change(reply: Reply, chance: Chance) -> Reply:
        params, examples = reply.params.clone(), reply.report["examples"].clone()
        params[1, 0], params[3, 0], params[4, 5] = torch.nan, torch.nan, 1e30
        examples[2], examples[3] = -1, 0
        return reply._replace(params=params, report={**reply.report, "examples": examples})

    found = one_round(method, change).replies[0]
    assert reasons(found) == ["admitted", "value", "report", "value", "norm", "admitted", "admitted", "admitted"]
    numbers = counted(found.rejected, found.strays)
    assert numbers == {"rejected.value": 2, "rejected.report": 1, "rejected.norm": 1}
    every = one_round(small(fedavg(), admit=Several()), change)
    assert every.model.isnan().any()


def test_what_never_arrived_cannot_be_refused() -> None:
    reply = reply_of(torch.ones(2, 3))._replace(arrived=torch.tensor([True, False]))
    assert refuse(torch.zeros(3), reply, torch.tensor([False, True]), "norm") is reply


def test_parts_are_values() -> None:
    assert Several((Finite(), Norm(2.0))) == Several((Finite(), Norm(2.0)))
    assert isinstance(Method().admit, Admit)
    assert len(REASONS) == len(set(REASONS)) < 127
