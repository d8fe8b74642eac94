"""What the server may not notice: the order of replies, and anything about a reply that was lost."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.types import Reply
from fedloom.method import Method
from fedloom.parts.mask.share_layers import ShareLayers
from fedloom.parts.repair.nothing import Nothing
from worlds import (
    METHODS,
    assert_close,
    assert_identical,
    changed,
    every_method,
    everything,
    play,
    played,
    reply_rows,
    states_of,
    world,
)

NOTHING = ShareLayers("none")  # is shared: the server's model never moves


def shuffle(reply: Reply, chance: Chance) -> Reply:
    """Rows in another order."""
    return reply_rows(reply, chance.uniform("shuffle", reply.ids).argsort())


def lose(reply: Reply, chance: Chance) -> Reply:
    """About a third of the replies never arrive; of those at least the first."""
    arrived = chance.uniform("lose", reply.ids) > 0.3
    arrived[0] = False
    return reply._replace(arrived=arrived)


def leave_out(reply: Reply, chance: Chance) -> Reply:
    """The same replies are not in the table at all."""
    reply = lose(reply, chance)
    return reply_rows(reply, reply.arrived.nonzero().flatten())


def lose_all(reply: Reply, chance: Chance) -> Reply:
    """Nobody is heard of in the second round."""
    return reply if chance.round != 2 else reply._replace(arrived=torch.zeros_like(reply.arrived))


@every_method
def test_order_of_replies_is_irrelevant(method: Method) -> None:
    here = world("normed")
    mixed = play(here, method, changed(here.local(method), shuffle), rounds=2)
    as_is = played("normed", method, 2)
    assert any(not torch.equal(a.ids, b.ids) for a, b in zip(mixed.replies, as_is.replies))
    assert_close(everything(mixed), everything(as_is), 1e-5)


@pytest.mark.parametrize("name", [name for name, make in METHODS if make().repair == Nothing()])
def test_a_lost_reply_counts_for_nothing(name: str) -> None:
    method = dict(METHODS)[name]()
    here = world("normed")
    lost = play(here, method, changed(here.local(method), lose), rounds=2)
    absent = play(here, method, changed(here.local(method), leave_out), rounds=2)
    assert_close(everything(lost), everything(absent), 1e-5)
    assert torch.equal(lost.model, played("normed", method, 2).model) == (method.mask == NOTHING)


@every_method
def test_state_moves_on_when_a_reply_is_lost(method: Method) -> None:
    here = world("normed")
    heard, unheard = here.local(method), here.local(method)
    play(here, method, heard, rounds=1)
    play(here, method, changed(unheard, lose), rounds=1)
    ids = heard.clients.states.known().tolist()
    assert ids == unheard.clients.states.known().tolist()
    assert_identical(states_of(heard, ids, here.model), states_of(unheard, ids, here.model))


@every_method
def test_the_model_stays_if_nobody_arrives(method: Method) -> None:
    here = world("normed")
    run = play(here, method, changed(here.local(method), lose_all))
    assert torch.equal(run.models[1], run.models[0])
    assert torch.equal(run.models[2], run.models[1]) == (method.mask == NOTHING)
    for value in everything(run).values():
        assert value.isfinite().all()
