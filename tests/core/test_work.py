"""Batches: every epoch is a new order of the client's examples, independent of the rest of the cohort."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from fedloom.chance import Chance
from fedloom.core.work import Batches, Work
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadExperiment

fleets = st.lists(st.integers(1, 12), min_size=1, max_size=5)
works = st.one_of(
    st.builds(Work, epochs=st.integers(1, 3), batch=st.integers(0, 7)),
    st.builds(Work, steps=st.integers(1, 9), batch=st.integers(0, 7)),
)
ROUND = Chance(5, 1)


def shards_of(sizes: list[int]) -> Shards:
    """Examples 100, 101, ... which cannot be confused with places."""
    return Shards(list((torch.arange(sum(sizes)) + 100).split(sizes)), torch.device("cpu"))


def plan(work: Work, sizes: list[int], ids: list[int] | None = None, chance: Chance = ROUND) -> Batches:
    """The batches of some clients of a fleet with these numbers of examples."""
    chosen = torch.tensor(range(len(sizes)) if ids is None else ids)
    own = [sizes[client] for client in chosen.tolist()]
    return work.plan(chosen, shards_of(sizes).rows(chosen, max(own)), own, chance)


def steps_of(batches: Batches, row: int) -> list[list[int]]:
    """The real examples of a client's steps."""
    return [batches.examples[row, step][batches.real[row, step]].tolist() for step in range(int(batches.steps[row]))]


@given(works, fleets)
def test_every_epoch_is_an_order_of_the_clients_own_examples(work: Work, sizes: list[int]) -> None:
    batches = plan(work, sizes)
    first = 100
    for row, size in enumerate(sizes):
        own, width = range(first, first + size), work.batch or size
        first += size
        steps, one = steps_of(batches, row), -(-size // width)
        assert len(steps) == (work.steps or work.epochs * one)
        for number, batch in enumerate(steps):
            last = number % one == one - 1
            assert len(batch) == (size - (one - 1) * width if last else width)
        for epoch in range(0, len(steps), one):
            seen = [example for batch in steps[epoch : epoch + one] for example in batch]
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(own)
            if epoch + one <= len(steps):
                assert sorted(seen) == list(own)


@given(works, fleets)
def test_active_counts_those_with_steps_to_take(work: Work, sizes: list[int]) -> None:
    batches = plan(work, sorted(sizes, reverse=True))  # engines hand clients over in falling order of steps
    taken = batches.steps.tolist()
    assert taken == work.steps_of(sorted(sizes, reverse=True)) == sorted(taken, reverse=True)
    assert batches.active == [sum(step < own for own in taken) for step in range(max(taken))]
    for step, active in enumerate(batches.active):
        assert batches.real[:active, step].any(1).all()  # nobody averages over nothing
        assert batches.real[:active, step, 0].all()  # padding stands behind


@given(works, fleets, st.data())
def test_company_does_not_matter(work: Work, sizes: list[int], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True))
    whole, part = plan(work, sizes), plan(work, sizes, ids)
    for row, client in enumerate(ids):
        assert steps_of(part, row) == steps_of(whole, client)
        taken = int(part.steps[row])
        assert torch.equal(part.keys[row, :taken], whole.keys[client, :taken])


@given(works, fleets)
def test_padding_is_the_clients_own(work: Work, sizes: list[int]) -> None:
    batches, first = plan(work, sizes), 100
    for row, size in enumerate(sizes):
        assert batches.examples[row].min() >= first
        assert batches.examples[row].max() < first + size
        first += size


@given(works, fleets)
def test_few_examples_are_dealt_as_many_are(work: Work, sizes: list[int]) -> None:
    """NumPy gives the same as torch, to the last bit."""
    few = plan(work, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.core.work.FEW", 0)
        many = plan(work, sizes)
    assert few.active == many.active
    for ours, theirs in zip((few.examples, few.real, few.keys), (many.examples, many.real, many.keys)):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_orders_are_fresh() -> None:
    work, sizes = Work(epochs=4, batch=0), [12, 12]
    here, next_round, other_seed = (
        plan(work, sizes, chance=chance) for chance in (Chance(1, 1), Chance(1, 2), Chance(2, 1))
    )
    orders = [tuple(order) for b in (here, next_round, other_seed) for order in steps_of(b, 0)]
    orders += [tuple(example - 12 for example in order) for order in steps_of(here, 1)]
    assert len(set(orders)) == len(orders) == 16


def test_every_example_is_equally_often_first() -> None:
    rounds, size = 1000, 5
    first = torch.zeros(size)
    for number in range(rounds):
        first[plan(Work(epochs=1, batch=1), [size], chance=Chance(3, number)).examples[0, 0, 0] - 100] += 1
    assert (first / rounds - 1 / size).abs().max() < 4 * (0.16 / rounds) ** 0.5


def test_keys_differ_by_client_step_and_round() -> None:
    keys = [plan(Work(steps=6, batch=2), [4, 4], chance=Chance(1, number)).keys for number in (1, 2)]
    assert torch.stack(keys).unique().numel() == 24


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"epochs": 0}, "epochs is 0"), ({"steps": 0}, "steps is 0"), ({"batch": -1}, "batch is -1")],
)
def test_impossible_work_is_refused(arguments: dict[str, int], text: str) -> None:
    with pytest.raises(BadExperiment, match=text):
        Work(**arguments)
