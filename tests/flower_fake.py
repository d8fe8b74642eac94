"""A grid in memory: it calls ClientApps directly, with real messages, and may lose or change their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[int, Message, Message], Iterable[Message]]  # (node, message, answer) -> delivered answers


class FakeGrid:
    """Nodes by their ids; a message is answered when it is pushed, and the answer is there at the next pull."""

    def __init__(self, app: ClientApp, run_config: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> None:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = 1, 1, 1
        self.app, self.down = app, set[int]()
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=run_config)
            for node, config in nodes.items()
        }
        self.fault: Fault | None = None
        self.before: Callable[[int, Message], None] | None = None
        self.waiting: dict[str, list[Message]] = {}
        self.sent: list[Message] = []

    def get_node_ids(self) -> list[int]:
        """The nodes that are not down."""
        return [node for node in self.contexts if node not in self.down]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer at once, and keep the answers."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = message.object_id
        name, node = message.metadata.message_id, message.metadata.dst_node_id
        self.sent.append(message)
        self.waiting[name] = []
        if self.before is not None:
            self.before(node, message)
        if node in self.down:
            return name
        try:
            answer = self.app(travelled(message), self.contexts[node])
        except Exception as problem:  # noqa: BLE001  as Flower does
            answer = Message(Error(code=0, reason=repr(problem)), reply_to=message)
        self.waiting[name] = list([answer] if self.fault is None else self.fault(node, message, answer))
        return name

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        """The answers to these messages."""
        found = []
        for name in names:
            found += self.waiting.pop(name, [])
        return [message if message.has_error() else travelled(message) for message in found]


def travelled(message: Message) -> Message:
    """The message after a journey through Flower's objects."""
    with no_object_id_recompute():
        objects = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
        name = message.object_id
    found = inflate_object_from_contents(name, objects)
    assert isinstance(found, Message)
    found.metadata.__dict__["_message_id"] = name
    return found
