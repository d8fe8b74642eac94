"""Row operations on tasks, replies and states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedloom.core.rows import cat_states, expanded, rows, scattered
from fedloom.core.types import Reply, State, Task

MODEL = torch.arange(3.0)
NUMBERS = len(MODEL)


def reply(ids: list[int], masked: bool = True) -> Reply:
    """A reply whose values depend on the client's id."""
    own = torch.tensor(ids)
    return Reply(
        ids=own,
        params=own[:, None] * 10.0 + MODEL,
        mask=(own[:, None] + torch.arange(NUMBERS)) % 2 == 0 if masked else None,
        extras={"change": own[:, None].double() / 3},
        report={"loss": own / 7},
        arrived=own % 3 > 0,
    )


def task(ids: list[int], masked: bool = True) -> Task:
    """A task whose values depend on the client's id."""
    own = torch.tensor(ids)
    return Task(
        model=MODEL, mask=reply(ids).mask if masked else None, keep=own[:, None] > 2, share=own / 9,
        authorised=own % 2 > 0, extras={"own": own[:, None] * 1.5, "all": MODEL.expand(len(ids), -1)},
        round=4, rate=0.1, base_rate=0.2, trained=2, ids=own, all_send=True, everyone=True,
    )  # fmt: skip


def same(one: object, other: object) -> bool:
    """Whether two values are equal, tensors in states and tuples included."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@pytest.mark.parametrize("masked", [True, False])
def test_rows_of_a_reply_are_those_of_the_same_clients(masked: bool) -> None:
    whole, at = reply([5, 1, 4, 2], masked), torch.tensor([2, 0])
    assert same(whole.rows(at), reply([4, 5], masked))
    assert same(whole.rows(slice(1, 3)), reply([1, 4], masked))
    judged = whole._replace(awaited=whole.arrived, rejected=torch.tensor([0, 3, 0, 1]), everyone=True, rate=0.5)
    found = judged.rows(at)
    assert same(found, reply([4, 5], masked)._replace(awaited=found.arrived, rejected=torch.tensor([0, 0]), rate=0.5))


@pytest.mark.parametrize("masked", [True, False])
def test_replies_are_joined_in_order_or_at_their_places(masked: bool) -> None:
    parts = [reply([5, 1], masked), reply([4], masked), reply([2, 3], masked)]
    assert same(Reply.cat(parts), reply([5, 1, 4, 2, 3], masked))
    at = [torch.tensor([4, 0]), torch.tensor([3]), torch.tensor([1, 2])]
    assert same(Reply.cat(parts, at), reply([1, 2, 3, 4, 5], masked))


def test_who_sends_everything_gets_a_mask_among_those_who_do_not() -> None:
    for at in (None, [torch.tensor([0, 1]), torch.tensor([2])]):
        found = Reply.cat([reply([1, 2]), reply([3], masked=False)], at)
        assert found.mask is not None
        assert torch.equal(found.mask, torch.cat([reply([1, 2]).mask, torch.ones(1, NUMBERS, dtype=torch.bool)]))


@pytest.mark.parametrize("masked", [True, False])
def test_the_rows_around_a_scattered_reply_send_nothing(masked: bool) -> None:
    ids, at = torch.tensor([9, 4, 8, 5]), torch.tensor([1, 3])
    found = reply([4, 5], masked).scatter(at, ids, MODEL)
    assert same(found.rows(at), reply([4, 5], masked))
    others = found.rows(torch.tensor([0, 2]))
    assert torch.equal(others.params, MODEL.expand(2, -1))
    zeros = (others.arrived, *others.extras.values(), *others.report.values(), *([others.mask] if masked else []))
    assert all(value is not None and not value.any() for value in zeros)
    assert same(found.ids, ids)


def test_a_reply_of_no_rows_can_be_scattered() -> None:
    none = reply([1]).rows(slice(0, 0)).scatter(torch.arange(0), torch.tensor([7, 8]), MODEL)
    assert torch.equal(none.params, MODEL.expand(2, -1))
    assert not none.arrived.any()


def test_tasks_are_joined_and_cut() -> None:
    whole = Task.cat([task([5, 1]), task([4])])
    assert same(whole, task([5, 1, 4])._replace(everyone=False))
    assert same(whole.rows(torch.tensor([2, 0])), task([4, 5])._replace(everyone=False))
    mixed = Task.cat([task([1]), task([2], masked=False)._replace(keep=None, ids=None, all_send=False)])
    assert mixed.mask is not None
    assert mixed.mask.tolist() == [[False, True, False], [True] * 3]
    assert (mixed.keep, mixed.ids, mixed.all_send) == (None, None, False)


def test_one_clients_state_becomes_rows_and_back() -> None:
    state: State = {"step": torch.tensor(3), "drift": MODEL}
    assert same(rows(expanded(state, 2), 1), state)
    assert expanded(state, 0)["drift"].shape == (0, NUMBERS)
    both = cat_states([expanded(state, 1), expanded(state, 2)])
    assert same(both, {"step": torch.tensor([3, 3, 3]), "drift": MODEL.expand(3, -1)})
    assert scattered(torch.tensor([2, 7]), torch.tensor([3, 0]), 4).tolist() == [7, 0, 0, 2]
