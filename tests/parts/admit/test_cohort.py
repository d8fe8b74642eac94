"""Each client of the cohort counts once, whatever other or repeated replies arrive."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.refused import REASONS, counted
from fedloom.core.types import Reply
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.mifa import mifa
from fedloom.parts.select.everyone import SomeSend
from fedloom.parts.select.unheard_first import UnheardFirst
from worlds import assert_identical, changed, every_method, everything, play, played, reply_rows, small, world

HERE = world("normed")


def thrice(reply: Reply, chance: Chance) -> Reply:
    """Everything is delivered three times."""
    return reply_rows(reply, torch.arange(len(reply.ids)).repeat(3))


@every_method
def test_delivered_three_times_is_delivered_once(method: Method) -> None:
    again = play(HERE, method, changed(HERE.local(method), thrice), rounds=2)
    assert_identical(everything(again), everything(played("normed", method, 2)))
    first = again.replies[0]
    sent = int((first.arrived | first.report.get("spare", torch.tensor(False))).sum())
    assert counted(first.rejected, first.strays)["rejected.repeated"] == 2 * sent


def test_the_first_valid_one_counts() -> None:
    method = small(fedavg())

    def change(reply: Reply, chance: Chance) -> Reply:
        first, last = torch.full_like(reply.params, torch.nan), reply.params + 1
        many = thrice(reply, chance)
        return many._replace(params=torch.cat([first, reply.params, last]))

    found = play(HERE, method, changed(HERE.local(method), change), rounds=2)
    assert_identical(everything(found), everything(played("normed", method, 2)))
    assert found.replies[0].arrived.all()
    assert found.replies[0].rejected is not None
    assert not found.replies[0].rejected.any()


@pytest.mark.parametrize("stranger", [-7, 12, 10**12])
def test_strangers_are_refused(stranger: int) -> None:
    method = small(mifa(), select=UnheardFirst(8))

    def change(reply: Reply, chance: Chance) -> Reply:
        more = reply_rows(reply, torch.cat([torch.arange(len(reply.ids)), torch.tensor([0, 1])]))
        ids = more.ids.clone()
        ids[-2:] = stranger
        return more._replace(ids=ids, params=more.params + (ids == stranger)[:, None] * 5)

    found = play(HERE, method, changed(HERE.local(method), change), rounds=2)
    assert_identical(everything(found), everything(play(HERE, method, HERE.local(method), rounds=2)))
    assert counted(found.replies[0].rejected, found.replies[0].strays) == {"rejected.client": 2}


def test_those_who_may_not_send_are_refused() -> None:
    method = small(fedavg(), select=SomeSend(4))
    found = play(HERE, method, changed(HERE.local(method), lambda r, c: r._replace(arrived=torch.ones_like(r.arrived))))
    assert_identical(everything(found), everything(play(HERE, method, HERE.local(method))))
    for task, reply in zip(found.tasks, found.replies):
        assert reply.rejected is not None
        assert [REASONS[int(code)] for code in reply.rejected] == [
            "admitted" if may else "client" for may in task.authorised
        ]


def test_another_rounds_replies_of_clients_not_asked_now() -> None:
    """A replay of round 1 in round 2: only those asked again could count, and the codec refuses theirs by round."""
    method, seen = small(fedavg()), []

    def change(reply: Reply, chance: Chance) -> Reply:
        seen.append(reply)
        if chance.round == 1:
            return reply
        old = seen[0]
        strangers = ~torch.isin(old.ids, reply.ids)
        assert strangers.any()
        both = {name: torch.cat([reply.report[name], old.report[name][strangers]]) for name in reply.report}
        return Reply(
            torch.cat([reply.ids, old.ids[strangers]]),
            torch.cat([reply.params, old.params[strangers]]),
            None,
            {},
            both,
            torch.cat([reply.arrived, old.arrived[strangers]]),
        )

    found = play(HERE, method, changed(HERE.local(method), change), rounds=2)
    assert torch.equal(found.model, played("normed", method, 2).model)
