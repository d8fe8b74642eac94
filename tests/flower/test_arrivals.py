"""Replies on their way: a reply that does not come whole holds up no other, nor does one that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

import flwr.superlink.grid.http_grid as http_grid
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedloom.flower.protocol.records import NodeMessage, Payload, pack, unpack
from fedloom.flower.server import arrivals
from fedloom.flower.server.arrivals import pull_as_they_come

RUN = 5


class Link:
    """Flower's client of a link in memory: announced replies, and objects that have come."""

    def __init__(self) -> None:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = RUN, 1, 1
        self.announced: dict[str, tuple[Any, Any]] = {}
        self.objects: dict[str, bytes] = {}  # empty: not there yet
        self.given = set[str]()
        self.asked: list[str] = []
        self.confirmed: list[str] = []

    def question(self) -> Message:
        """A message to a node."""
        message = Message(RecordDict(), dst_node_id=7, message_type="train", ttl=60.0)
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def announce(self, question: Message, text: str = "", to: Message | None = None) -> dict[str, bytes]:
        """A node announces a reply; its objects, by their names. `to`: the message that its content answers."""
        reply = Message(pack(NodeMessage({"text": text}, [Payload({}, text.encode())])), reply_to=to or question)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {name: thing.deflate() for name, thing in get_all_nested_objects(reply).items()}
        tree, reply = get_object_tree(reply), remove_content_from_message(reply)
        proto = message_to_proto(reply)
        proto.metadata.reply_to_message_id = question.metadata.message_id
        self.announced[question.metadata.message_id] = proto, tree
        self.objects |= dict.fromkeys(objects, b"")
        return objects

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """Every reply is given out once, as by a link, which takes a second question for it as a mistake."""
        assert not self.given & set(request.message_ids)
        self.given |= self.announced.keys() & set(request.message_ids)
        found = [self.announced.pop(name) for name in request.message_ids if name in self.announced]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """An object, if it is there."""
        self.asked.append(request.object_id)
        content = self.objects.get(request.object_id)
        if content is None:
            return PullObjectResponse(object_found=False, object_available=False)
        return PullObjectResponse(object_found=True, object_available=content != b"", object_content=content)

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:
        """A reply was pulled."""
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def grid(link: Link, monkeypatch: pytest.MonkeyPatch) -> http_grid.HttpGrid:
    """Flower's own grid, with our way to pull."""
    monkeypatch.setattr(http_grid.HttpGrid, "pull_messages", http_grid.HttpGrid.pull_messages)
    pull_as_they_come()
    found = http_grid.HttpGrid(token="t")
    found._client = link  # type: ignore[assignment]
    found.set_run(Run.create_empty(RUN))
    return found


def texts(grid: http_grid.HttpGrid, names: list[str]) -> list[str]:
    """The texts of the replies that are whole, and the errors of the others."""
    return sorted(
        one.error.reason if one.has_error() else unpack(one.content).facts["text"] for one in grid.pull_messages(names)
    )


def test_a_slow_reply_holds_up_no_other(grid: http_grid.HttpGrid, link: Link) -> None:
    """Whatever the order; each of its objects is pulled once, and one look asks for one that is missing."""
    questions = [link.question() for _ in range(3)]
    names = [question.metadata.message_id for question in questions]
    pieces = [link.announce(question, str(number)) for number, question in enumerate(questions)]
    assert texts(grid, names) == []
    link.objects |= pieces[2]
    assert texts(grid, names) == ["2"]
    for name, content in pieces[0].items():
        link.asked.clear()
        assert texts(grid, names[:2]) == []
        assert len(link.asked) <= len(pieces[0]) + 1
        link.objects[name] = content
    assert texts(grid, names[:2]) == ["0"]
    link.objects |= pieces[1]
    assert texts(grid, [link.question().metadata.message_id]) == []  # it was not asked for
    assert texts(grid, names[1:2]) == ["1"]
    assert len(link.confirmed) == len(set(link.confirmed)) == 3


def test_objects_of_a_reply_that_nobody_asks_for_are_kept_for_a_while(
    grid: http_grid.HttpGrid, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = link.question(), link.question()
    link.announce(late, "late")
    assert texts(grid, [late.metadata.message_id]) == []
    kept = arrivals._coming[grid]
    texts(grid, [other.metadata.message_id])
    assert list(kept) == [late.metadata.message_id]
    monkeypatch.setattr(arrivals, "KEPT", -1.0)
    texts(grid, [late.metadata.message_id])  # somebody asks
    assert list(kept) == [late.metadata.message_id]
    texts(grid, [other.metadata.message_id])
    assert not kept


def test_a_reply_that_never_comes_is_an_error_once(grid: http_grid.HttpGrid, link: Link) -> None:
    """When the link has given it up."""
    question, other = link.question(), link.question()
    names = [question.metadata.message_id, other.metadata.message_id]
    lost = link.announce(question, "lost")
    assert texts(grid, names) == []
    for name in lost:
        del link.objects[name]
    link.objects |= link.announce(other, "other")
    [error, text] = texts(grid, names)
    assert (text, "could not be found" in error) == ("other", True)


def test_a_reply_that_cannot_be_read_loses_no_other(grid: http_grid.HttpGrid, link: Link) -> None:
    questions = [link.question() for _ in range(3)]
    names = [question.metadata.message_id for question in questions]
    for number, question in enumerate(questions):
        pieces = link.announce(question, str(number))
        link.objects |= dict.fromkeys(pieces, b"noise") if number == 0 else pieces
    [one, two, error] = texts(grid, names)
    assert (one, two) == ("1", "2")
    assert "cannot be read" in error


def test_a_reply_cannot_pass_for_one_to_another_message(grid: http_grid.HttpGrid, link: Link) -> None:
    """The link compares the announcement with whom the message was for, and not what is in the reply."""
    mine, theirs = link.question(), link.question()
    link.objects |= link.announce(mine, "forged", to=theirs)
    [answer] = grid.pull_messages([mine.metadata.message_id, theirs.metadata.message_id])
    assert answer.metadata.reply_to_message_id == mine.metadata.message_id
    assert "another message than was announced" in answer.error.reason
