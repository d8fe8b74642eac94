"""What becomes of stale replies: limits to the bit, what is not read, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedloom import BadExperiment, Method
from fedloom.core.part import Aggregate
from fedloom.core.stale import Stale
from fedloom.core.staleness import OLDEST, by_numbers, count_step, no_counts
from fedloom.core.types import Reply
from fedloom.core.unsent import read_unsent_as_unchanged
from fedloom.methods import METHODS, fedavg, fedspu, heterofl
from fedloom.parts import (
    AsChange,
    AsModel,
    Constant,
    CoverageMean,
    Cutoff,
    Discount,
    Finite,
    Hinge,
    Krum,
    LatestUpdates,
    Median,
    MostSimilar,
    PlainMean,
    Polynomial,
    TrimmedMean,
)
from worlds import played, small, world

C, P = 6, 23


def numbers(seed: int, *shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def replies(seed: int, part: bool = False) -> tuple[Tensor, Tensor, Reply]:
    """A model, bases [C, P] of which the last is the model itself, and replies to them, whole or of parts."""
    model, bases = numbers(seed, P), numbers(seed + 1, C, P)
    bases[-1] = model
    mask = numbers(seed + 2, C, P) > 0 if part else None
    params, examples = bases + 0.1 * numbers(seed + 3, C, P), torch.arange(1, C + 1)
    staleness = torch.tensor([3, 1, 7, 2, 1, 0])
    arrived = torch.tensor([True] * 4 + [False, True])
    reply = Reply(torch.arange(C), params, mask, {}, {"examples": examples}, arrived, staleness=staleness)
    return model, bases, reply


def step(stale: Stale, model: Tensor, bases: Tensor, reply: Reply, aggregate: Aggregate | None = None) -> Tensor:
    """The model after a step of these replies."""
    whole = read_unsent_as_unchanged(model, stale.rebase(model, bases, reply, reply.mask))
    new, _ = (aggregate or CoverageMean())({}, world().setting, model, stale.lessen(model, whole))
    return new


# ---- discounts


@pytest.mark.parametrize("discount", [Constant(), Polynomial(0.5), Polynomial(3.0), Hinge(), Cutoff(2.0, 0.1)])
def test_fresh_replies_count_fully_and_older_ones_never_more(discount: Discount) -> None:
    factor = discount(torch.arange(50.0).double())
    assert factor[0] == 1
    assert bool((factor.diff() <= 0).all())
    assert bool((factor >= 0).all())


def test_discounts_by_hand() -> None:
    tau = torch.tensor([0.0, 3, 4, 5, 8]).double()
    assert Polynomial(0.5)(tau).tolist() == pytest.approx([1, 0.5, 5**-0.5, 6**-0.5, 1 / 3])
    assert Hinge(10.0, 4.0)(tau).tolist() == pytest.approx([1, 1, 1, 1 / 11, 1 / 41])
    assert Cutoff(4.0, 0.25)(tau).tolist() == [1, 1, 1, 0.25, 0.25]


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("none", [Polynomial(0.0), Hinge(bound=torch.inf), Hinge(0.0, torch.inf), Cutoff(torch.inf)])
@pytest.mark.parametrize("spread", ["update", "weight"])
def test_discounts_that_never_bite_are_none(none: Discount, spread: str, part: bool) -> None:
    case = replies(1, part)
    assert torch.equal(step(AsChange(none, spread), *case), step(AsChange(), *case))  # type: ignore[arg-type]
    assert torch.equal(step(AsModel(0.3, none), *case), step(AsModel(0.3), *case))


# ---- rebase


def test_a_fresh_reply_is_itself_to_the_bit() -> None:
    model, bases, reply = replies(2)
    moved = AsChange().rebase(model, bases, reply).params
    assert torch.equal(moved[-1], reply.params[-1])
    torch.testing.assert_close(moved, model + reply.params - bases, rtol=0, atol=1e-6)
    assert not torch.equal(moved[0], reply.params[0])
    assert torch.equal(reply.params, replies(2)[2].params)  # engines keep rows that wait


@pytest.mark.parametrize("stale", [AsChange(), AsChange(Polynomial()), AsModel(), AsModel(1.0, Polynomial())])
def test_a_fresh_buffer_is_the_mean_of_a_round_to_the_bit(stale: Stale) -> None:
    for part in (False, True):
        model, bases, reply = replies(3, part)
        bases, fresh = model.expand(C, -1), torch.zeros(C, dtype=torch.int64)
        reply = read_unsent_as_unchanged(model, reply._replace(staleness=None))
        plain, _ = CoverageMean()({}, world().setting, model, reply)
        assert torch.equal(step(stale, model, bases, reply._replace(staleness=fresh)), plain)


@pytest.mark.parametrize("tau", [0, 1, 13])
def test_one_reply_as_a_model_with_alpha_1_is_the_reply(tau: int) -> None:
    for part in (False, True):
        model, bases, reply = replies(4, part)
        one = reply.rows(torch.tensor([2]))._replace(staleness=torch.tensor([tau]))
        new = step(AsModel(1.0), model, bases[2:3], one)
        expected = one.params[0] if one.mask is None else torch.where(one.mask[0], one.params[0], model)
        torch.testing.assert_close(new, expected, rtol=0, atol=1e-6 if part else 0)


@pytest.mark.parametrize("discount", [Constant(), Polynomial(0.5)])
def test_with_alpha_0_nothing_moves(discount: Discount) -> None:
    for part in (False, True):
        model, bases, reply = replies(5, part)
        still = AsModel(0.0, discount).lessen(model, read_unsent_as_unchanged(model, reply))
        assert torch.equal(still.params, model.expand(C, -1))
        torch.testing.assert_close(step(AsModel(0.0, discount), model, bases, reply), model, rtol=0, atol=1e-6)


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e38])
@pytest.mark.parametrize(
    "stale",
    [AsChange(Polynomial(), by="numbers"), AsChange(Polynomial(), "weight", "numbers"), AsModel(0.5, Polynomial())],
)
def test_what_was_not_sent_is_not_read(stale: Stale, garbage: float) -> None:
    model, bases, reply = replies(6, part=True)
    assert reply.mask is not None
    sent = reply.mask & reply.arrived[:, None]
    counts = torch.randint(0, 5, (C, P), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    reply = reply._replace(staleness=counts) if stale.by == "numbers" else reply
    poisoned = reply._replace(params=torch.where(sent, reply.params, garbage))
    assert torch.equal(
        step(stale, model, torch.where(sent, bases, garbage), poisoned), step(stale, model, bases, reply)
    )


def test_numbers_that_a_client_was_not_sent_count_as_a_model() -> None:
    model, bases, reply = replies(7)
    given = numbers(8, C, P) > 0
    moved = AsChange().rebase(model, torch.where(given, bases, torch.nan), reply, given).params
    assert torch.equal(moved[~given], reply.params[~given])
    assert torch.equal(moved[given], AsChange().rebase(model, bases, reply).params[given])


@pytest.mark.parametrize("where", ["reply", "base"])
def test_nan_in_a_row_or_its_base_is_refused_by_admission(where: str) -> None:
    model, bases, reply = replies(9)
    (reply.params if where == "reply" else bases)[1, 3] = torch.nan
    whole = AsChange().rebase(model, bases, reply)
    admitted, _ = Finite()({}, world().setting, model, None, whole)  # type: ignore[arg-type]
    assert admitted.arrived.tolist() == [True, False, True, True, False, True]


# ---- staleness by numbers


@given(st.data())
def test_a_number_is_as_old_as_the_steps_that_moved_it(data: st.DataObject) -> None:
    steps, mine = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 2**16 - 1))
    counts = no_counts(torch.zeros(5)) + torch.tensor(mine).to(torch.int16)  # anywhere on their way round
    history, touched = [counts], torch.zeros(steps, 5, dtype=torch.int64)
    for number in range(steps):
        mask = torch.tensor(
            data.draw(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=2, max_size=2))
        )
        arrived = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2, max_size=2)))
        reply = Reply(torch.arange(2), torch.zeros(2, 5), mask, {}, {}, arrived)
        touched[number] = (mask & arrived[:, None]).any(0)
        history.append(count_step(history[-1], reply))
    base = torch.arange(steps + 1)
    tau = by_numbers(history[-1], torch.stack(history), steps - base)
    assert tau.tolist() == [touched[b:].sum(0).tolist() for b in range(steps + 1)]


def test_whole_replies_move_every_number() -> None:
    counts = no_counts(torch.zeros(3))
    reply = Reply(torch.arange(2), torch.zeros(2, 3), None, {}, {}, torch.tensor([False, True]))
    assert count_step(counts, reply).tolist() == [1, 1, 1]
    assert count_step(counts, reply._replace(arrived=torch.zeros(2, dtype=torch.bool))).tolist() == [0, 0, 0]


def test_very_old_replies_are_as_old_as_can_be() -> None:
    now = torch.tensor([-20000, 5], dtype=torch.int16)  # 45,536 steps of which the last number saw 5
    tau = by_numbers(now, torch.zeros(2, 2, dtype=torch.int16), torch.tensor([45536, 30000]))
    assert tau[0].tolist() == [OLDEST, OLDEST]
    assert tau[1, 1] == 5


@pytest.mark.parametrize("spread", ["update", "weight"])
def test_by_numbers_is_by_steps_for_whole_replies(spread: str) -> None:
    model, bases, reply = replies(10)
    assert reply.staleness is not None
    numbers = reply.staleness[:, None].expand(C, P).to(torch.int16)
    steps = step(AsChange(Polynomial(0.7), spread), model, bases, reply)  # type: ignore[arg-type]
    own = step(AsChange(Polynomial(0.7), spread), model, bases, reply._replace(staleness=numbers))  # type: ignore[arg-type]
    if spread == "update":
        assert torch.equal(own, steps)
    torch.testing.assert_close(own, steps, rtol=0, atol=1e-6)


def test_weight_is_update_where_all_are_equally_old_and_undiscounted() -> None:
    for part in (False, True):
        model, bases, reply = replies(11, part)
        old = reply._replace(staleness=torch.full((C,), 2))
        update, weight = (step(AsChange(Cutoff(2.0), spread), model, bases, old) for spread in ("update", "weight"))  # type: ignore[arg-type]
        assert torch.equal(update, weight) or part
        torch.testing.assert_close(update, weight, rtol=0, atol=1e-6)
        pair = [step(AsChange(Polynomial(), spread), model, bases, old) for spread in ("update", "weight")]  # type: ignore[arg-type]
        assert not torch.allclose(*pair, atol=1e-4)


# ---- in a method


def test_which_staleness_a_method_counts() -> None:
    for by, whole, parts in ((None, False, True), ("steps", False, False), ("numbers", True, True)):
        stale = AsChange(by=by)  # type: ignore[arg-type]
        assert stale.counts_numbers(fedavg()) is whole
        for make in (fedspu, heterofl, METHODS["feddd"], METHODS["splitfl"]):
            assert stale.counts_numbers(make()) is parts


@pytest.mark.parametrize("name", [name for name, make in METHODS.items() if make().pace.barrier])
def test_a_round_with_a_barrier_does_not_ask_it(name: str) -> None:
    method = METHODS[name]()
    assert method.stale == AsChange()
    assert "stale" not in repr(method)
    other = replace(method, stale=AsModel(0.1, Cutoff(0.0)))
    assert "stale=AsModel(alpha=0.1" in repr(other)
    assert other != method
    assert "stale" not in method.init(world().setting, world().model) if name == "fedavg" else True


def test_a_round_is_the_same_whatever_it_is() -> None:
    method = small(fedspu())
    assert torch.equal(played("mlp", replace(method, stale=AsModel(0.1))).model, played("mlp", method).model)


@pytest.mark.parametrize("aggregate", [Krum(), Median(), TrimmedMean(), PlainMean(), LatestUpdates()])
def test_weights_need_an_aggregate_that_reads_them(aggregate: Aggregate) -> None:
    Method(aggregate=aggregate, stale=AsChange(Polynomial()))
    with pytest.raises(BadExperiment, match="the discount is a weight of rows, which"):
        Method(aggregate=aggregate, stale=AsChange(Polynomial(), "weight"))
    assert Method(stale=AsChange(Polynomial(), "weight")).aggregate == CoverageMean()


def test_a_stand_in_is_as_old_as_what_it_copies() -> None:
    model, bases, reply = replies(12)
    setting, part = world().setting, MostSimilar()
    memory = part.init(setting, model)
    memory["compared"][4, 2], memory["distance"][4, 2] = True, 1.0
    for other in (0, 1, 3, 5):
        memory["compared"][4, other], memory["distance"][4, other] = True, 9.0
    whole = read_unsent_as_unchanged(model, AsChange().rebase(model, bases, reply))
    mended, _ = part(memory, setting, model, whole)
    assert mended.arrived.all()
    assert mended.staleness is not None
    assert mended.staleness.tolist() == [3, 1, 7, 2, 7, 0]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: AsModel(1.5), "alpha .* is 1.5; it lies between 0 and 1"),
        (lambda: AsModel(by="rounds"), "by .*rounds"),  # type: ignore[arg-type]
        (lambda: AsChange(spread="both"), "spread of a discount.*both"),  # type: ignore[arg-type]
        (lambda: Polynomial(-1.0), "exponent of the polynomial is -1.0; it must not be negative"),
        (lambda: Hinge(bound=torch.nan), "bound of the hinge is nan"),
        (lambda: Cutoff(rest=2.0), "rest .* is 2.0; it lies between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(make, why) -> None:
    with pytest.raises(BadExperiment, match=why):
        make()
