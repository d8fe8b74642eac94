"""Replies on their way: each is pulled as its objects come, and none waits for another.

A node announces a reply and then sends its objects. Flower's grid pulls what was announced one reply after the other,
each to its last object. So one node that is slow, or that announces what it never sends, would hold up the replies of
all others, and every deadline, for minutes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fedloom.flower.protocol.said import said

if TYPE_CHECKING:
    from flwr.app import Message

log = logging.getLogger("fedloom")

KEPT = 600.0  # seconds for which objects are kept of a reply that nobody asks for any more
USED = {"pull_messages", "_runtime_client", "run"}  # what is used of Flower's grid; the first is replaced


class Arrival:
    """A reply that was announced, and the objects of it that have come."""

    def __init__(self, announced: Any, tree: Any) -> None:
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        self.name, self.asked = announced.metadata.message_id, announced.metadata.reply_to_message_id
        self._missing = deque(one.object_id for one in iterate_object_tree(tree))
        self._contents: dict[str, bytes] = {}
        self.wanted = time.monotonic()  # when it was asked for last

    def complete(self, pull: Callable[[str], bytes]) -> bool:
        """Pull what has come since the last time; whether that was the rest."""
        from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

        while self._missing:
            try:
                self._contents[self._missing[0]] = pull(self._missing[0])
            except ObjectUnavailableError:
                self._missing.rotate(-1)  # others may come before it
                return False
            self._missing.popleft()
        return True

    def message(self) -> Message:
        """The whole reply; raises whatever a node's bytes make Flower's reader raise."""
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        found: Any = inflate_object_from_contents(self.name, self._contents)
        if found.metadata.reply_to_message_id != self.asked:  # the link has looked at the announcement alone
            raise ValueError("it answers another message than was announced")
        found.metadata.__dict__["_message_id"] = self.name
        return found  # type: ignore[no-any-return]

    def lost(self, grid: Any, why: Exception) -> Message:
        """An error in place of the reply, as Flower has it."""
        from flwr.app.error import Error
        from flwr.app.message import make_message
        from flwr.app.metadata import Metadata
        from flwr.common.constant import ErrorCode
        from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
        from flwr.supercore.date import now

        reason = f"its reply did not come whole, or cannot be read: {type(why).__name__}: {said(why)}"
        node = grid.node.node_id
        metadata = Metadata(
            run_id=grid.run.run_id, message_id="", src_node_id=node, dst_node_id=node, reply_to_message_id=self.asked,
            group_id="", created_at=now().timestamp(), ttl=0, message_type=SYSTEM_MESSAGE_TYPE,
        )  # fmt: skip
        return make_message(metadata=metadata, error=Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason))


_coming: WeakKeyDictionary[Any, dict[str, Arrival]] = WeakKeyDictionary()  # of each grid, by the name of the question


def pull_messages(grid: Any, names: Iterable[str]) -> list[Message]:
    """The replies to these messages that are whole by now; does not wait for the others."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    client, run, coming, asked = grid._runtime_client, grid.run.run_id, _coming.setdefault(grid, {}), set(names)
    if unheard := asked - coming.keys():  # a link gives a reply out once, and then says that it does not know it
        new = client.PullMessages(PullAppMessagesRequest(message_ids=unheard))
        for announced, tree in zip(new.messages_list, new.message_object_trees, strict=True):
            arrival = Arrival(announced, tree)
            coming[arrival.asked] = arrival
    pull, whole, found = make_pull_object_fn_protobuf(client.PullObject, grid.node, run), list[Arrival](), list[Any]()
    now = time.monotonic()
    for name in [name for name, arrival in coming.items() if name not in asked and now - arrival.wanted > KEPT]:
        del coming[name]
    for arrival in [arrival for name, arrival in coming.items() if name in asked]:
        arrival.wanted = now
        try:
            if not arrival.complete(pull):
                continue
            whole.append(arrival)
        except ObjectPullError as why:
            found.append(arrival.lost(grid, why))
        del coming[arrival.asked]
    for arrival in whole:
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=arrival.name)
        )
        try:
            found.append(arrival.message())
        except Exception as why:  # noqa: BLE001
            found.append(arrival.lost(grid, why))
    return found


def pull_as_they_come() -> None:
    """Let Flower's grid of this process pull replies as they come."""
    from flwr.superlink.grid.http_grid import HttpGrid

    if vars(HttpGrid).keys() >= USED:
        HttpGrid.pull_messages = pull_messages  # type: ignore[method-assign,assignment]
    else:
        log.warning("this release of Flower pulls replies otherwise; a slow node can hold up the others' replies")
