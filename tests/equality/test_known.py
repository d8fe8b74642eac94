"""What the host knows beforehand spares work and changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from fedloom.chance import Chance
from fedloom.core.types import Reply, senders
from fedloom.engine.storage.shards import Shards
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.repair.most_similar import STRETCH, _products
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.uniform import Uniform
from fedloom.round import ask_cohort
from pieces import Forced
from worlds import SIZES, assert_close, assert_identical, changed, every_method, everything, play, played, small, world


def told_anew(reply: Reply, chance: Chance) -> Reply:
    """The same in tensors of which nothing is known."""
    return reply._replace(ids=reply.ids.clone(), arrived=reply.arrived.clone())


@every_method
def test_replies_of_which_nothing_is_known_count_the_same(method: Method) -> None:
    here = world("normed")
    unknown = play(here, method, changed(here.local(method), told_anew))
    known = everything(played("normed", method))
    if isinstance(method.aggregate, LatestUpdates):  # the sum of all rows is known, to the last digit of a double
        assert_close(everything(unknown), known, 1e-6)
        torch.testing.assert_close(unknown.memory["aggregate"]["mean"], known["aggregate.mean"], rtol=0, atol=1e-13)
    else:
        assert_identical(everything(unknown), known)


@given(st.integers(1, 600), st.integers(0, 1000))
def test_senders_are_counted(rows: int, seed: int) -> None:
    mask = Chance(seed, 1).uniform("mask", torch.arange(rows)[:, None], torch.arange(4)) < 0.9
    assert senders(mask).tolist() == mask.sum(0).tolist()
    assert senders(mask[:, 1:3]).tolist() == mask[:, 1:3].sum(0).tolist()


@pytest.mark.parametrize(
    ("select", "all_send", "everyone"),
    [
        (Everyone(), True, True),
        (Uniform(len(SIZES)), True, True),
        (Uniform(5), True, False),
        (SomeSend(5), False, True),
        (Forced((tuple(reversed(range(len(SIZES)))),)), True, False),
    ],
    ids=repr,
)
def test_only_what_is_so_is_known(select: Everyone, all_send: bool, everyone: bool) -> None:
    here, method = world("mlp"), small(fedavg(), select=select)
    _, task, _ = ask_cohort(method, method.init(here.setting, here.model), here.model, here.setting, Chance(0, 1))
    assert (task.all_send, task.everyone) == (all_send, everyone)


def test_rows_of_examples_are_those_of_who_is_asked() -> None:
    shards, data = world("mlp").shards, world("mlp").data
    for listed in ([2, 0], [2, 0], [0, 2], [1], [2, 0]):
        ids = torch.tensor(listed)
        _, rows = shards.examples_of(data, ids, listed)
        assert torch.equal(rows, Shards.rows(shards, ids, max(SIZES[client] for client in listed)))


@pytest.mark.parametrize("length", [3, STRETCH, 3 * STRETCH + 5])
def test_products_in_stretches_are_products(length: int) -> None:
    rows = Chance(1, 1).uniform("rows", torch.arange(4)[:, None], torch.arange(length)).double()
    torch.testing.assert_close(_products(rows), rows @ rows.T, rtol=1e-14, atol=0)
