"""Properties of the coverage mean for any masks, lost replies and weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedloom.core.types import Reply
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.round import read_unsent_as_unchanged

numbers = st.floats(-100, 100, width=32)
kinds: Any = st.sampled_from(["examples", "uniform"])


@st.composite
def rounds(draw: st.DrawFn, masked: bool | None = None) -> tuple[Tensor, Reply]:
    """A model and replies."""
    clients, size = draw(st.integers(1, 5)), draw(st.integers(1, 6))

    def table(of: st.SearchStrategy[Any], *shape: int) -> Any:
        flat = draw(st.lists(of, min_size=torch.Size(shape).numel(), max_size=torch.Size(shape).numel()))
        return torch.tensor(flat).view(shape)

    model, params = table(numbers, size), table(numbers, clients, size)
    mask = table(st.booleans(), clients, size) if (draw(st.booleans()) if masked is None else masked) else None
    arrived = table(st.booleans(), clients)
    examples = table(st.integers(1, 1000), clients)
    reply = Reply(torch.arange(clients), params, mask, {}, {"examples": examples}, arrived)
    return model, reply


def mean(model: Tensor, reply: Reply, weigh: Literal["examples", "uniform"]) -> Tensor:
    """As the round calls it."""
    new, _ = CoverageMean(weigh)({}, None, model, read_unsent_as_unchanged(model, reply))  # type: ignore[arg-type]
    return new


def sent(reply: Reply) -> Tensor:
    """Which numbers reached the server [C, P]."""
    mask = torch.ones_like(reply.params, dtype=torch.bool) if reply.mask is None else reply.mask
    return mask & reply.arrived[:, None]


def slack(model: Tensor, reply: Reply) -> float:
    """The rounding error of float32 for numbers of this size."""
    return 4e-6 * (1 + float(torch.cat((model[None], reply.params)).abs().max()))


@given(rounds(), kinds)
def test_lies_between_the_least_and_the_greatest_sent(case: tuple[Tensor, Reply], weigh: Any) -> None:
    model, reply = case
    there, new = sent(reply), mean(model, reply, weigh)
    least = torch.where(there, reply.params, torch.inf).amin(0)
    greatest = torch.where(there, reply.params, -torch.inf).amax(0)
    some = there.any(0)
    assert (new[some] >= least[some] - slack(model, reply)).all()
    assert (new[some] <= greatest[some] + slack(model, reply)).all()


@given(rounds(), kinds)
def test_is_the_weighted_mean_of_the_senders(case: tuple[Tensor, Reply], weigh: Any) -> None:
    model, reply = case
    new = mean(model, reply, weigh).tolist()
    for place, there in enumerate(sent(reply).T.tolist()):
        senders = [client for client, is_there in enumerate(there) if is_there]
        weights = [int(reply.report["examples"][c]) if weigh == "examples" else 1 for c in senders]
        values = [float(reply.params[c, place]) for c in senders]
        if senders:
            expected = sum(w * v for w, v in zip(weights, values)) / sum(weights)
            assert abs(new[place] - expected) <= slack(model, reply)


@given(rounds(), kinds)
def test_what_nobody_sent_stays_to_the_bit(case: tuple[Tensor, Reply], weigh: Any) -> None:
    model, reply = case
    none = ~sent(reply).any(0)
    assert torch.equal(mean(model, reply, weigh)[none], model[none])


@given(rounds(), st.sampled_from([2, 7, 1000, 10**6]))
def test_only_the_ratio_of_examples_counts(case: tuple[Tensor, Reply], factor: int) -> None:
    model, reply = case
    more = reply._replace(report={"examples": reply.report["examples"] * factor})
    once, again = mean(model, reply, "examples"), mean(model, more, "examples")
    torch.testing.assert_close(again, once, rtol=0, atol=slack(model, reply))


@given(rounds())
def test_equal_examples_are_uniform(case: tuple[Tensor, Reply]) -> None:
    model, reply = case
    equal = reply._replace(report={"examples": torch.full_like(reply.report["examples"], 17)})
    torch.testing.assert_close(
        mean(model, equal, "examples"), mean(model, reply, "uniform"), rtol=0, atol=slack(model, reply)
    )


@given(rounds(), kinds, st.randoms(use_true_random=False))
def test_order_does_not_matter(case: tuple[Tensor, Reply], weigh: Any, random: Any) -> None:
    model, reply = case
    order = torch.tensor(random.sample(range(len(reply.ids)), len(reply.ids)))
    mixed = Reply(
        reply.ids[order],
        reply.params[order],
        None if reply.mask is None else reply.mask[order],
        {},
        {"examples": reply.report["examples"][order]},
        reply.arrived[order],
    )
    torch.testing.assert_close(mean(model, mixed, weigh), mean(model, reply, weigh), rtol=0, atol=slack(model, reply))
