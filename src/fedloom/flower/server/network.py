"""An engine that is a network: tasks go out to nodes as bytes, and replies come back as bytes, or not.

What a node sends is believed only as far as the codec checks it, and whose it is follows from the node that Flower says
it comes from. C clients in the cohort, P numbers in the model.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Cost, Inbox, Rejected, base_hash
from fedloom.core.refused import REASONS, stray
from fedloom.core.types import Examples, Reply, Task
from fedloom.engine.storage.shards import Shards
from fedloom.flower.node.personal import EVERYBODY, accuracies
from fedloom.flower.protocol.asked_part import expected
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.protocol.records import Item, Parcel
from fedloom.flower.protocol.round_id import Order
from fedloom.flower.protocol.transport import Bytes
from fedloom.flower.server.costs import Spent, Table
from fedloom.flower.server.mailbox import Post
from fedloom.flower.server.roster import Roster
from fedloom.world.simulated import ARRIVED, DOWNLOAD_LOST, SILENT, UPLOAD_LOST, World

log = logging.getLogger("fedloom")

NOBODY = -1


class Errand(NamedTuple):
    """A message on its way to a node and back."""

    node: int
    clients: list[int]
    round: int
    sent: float  # by the wall's clock, which nodes have too
    size: int  # bytes of its clients' tasks


class Network:
    """Plays a cohort's part on real nodes; it stands where the simulator has its world."""

    def __init__(
        self, post: Post, roster: Roster, packing: Packing, run: str, attempt: int, deadline: float, quorum: int = 1
    ) -> None:
        self._post, self._roster, self._packing = post, roster, packing
        self._run, self._attempt, self._deadline, self._quorum = run, attempt, deadline, quorum
        self._open: dict[str, Errand] = {}  # messages without an answer, of earlier rounds as well
        self._round = 0
        self.world = World()  # nothing is simulated
        self.now = torch.zeros((), dtype=torch.float64)  # seconds that rounds have taken
        self.costs: Spent | None = None

    def __call__(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Send everybody its part, wait for the replies or the deadline, and read what came."""
        began, self._round = time.monotonic(), task.round
        order = Order(self._run, task.round, self._attempt, base_hash(task.model))
        items = self._packing.items(order, task)
        self._roster.look(at_once=True)
        awaited, table = self._packing.awaited(order, task), Table(ids.tolist())
        mine = self._send(order, items, table)
        inbox = Inbox(awaited, self._quorum, self._deadline)  # the time runs from here
        self._listen(mine, inbox, table)
        reply = self._read(task, inbox)
        self._packing.wire.priced = self._prices(inbox, table)
        duration = torch.tensor(time.monotonic() - began, dtype=torch.float64)
        self.costs, self.now = table.spent(duration), self.now + duration.to(self.now.device)
        return reply

    def _send(self, order: Order, items: list[Item], table: Table) -> set[str]:
        """One message to every node; those that nobody hosts are not there."""
        here, loads = self._roster.present(), dict[int, list[Item]]()
        for item in items:
            if (node := here.get(item.facts["client"])) is not None:
                loads.setdefault(node, []).append(item)
        mine = set()
        for node, load in sorted(loads.items()):
            size, clients = sum(item.size for item in load), [item.facts["client"] for item in load]
            errand = Errand(node, clients, order.round, time.time(), size)
            name = self._post.send("train", node, order._asdict(), load)
            if name is None:
                log.warning("Flower did not take the message of round %d to node %d", order.round, node)
                continue
            self._open[name] = errand
            mine.add(name)
            for item in load:
                table.sent(item.facts["client"], item.size)
        return mine

    def _listen(self, mine: set[str], inbox: Inbox, table: Table) -> None:
        """Until all have answered or it is too late; what comes of earlier rounds is counted and dropped."""
        answered = []
        while True:
            for name, answer in self._post.heard(list(self._open)):
                errand = self._open.pop(name)
                if name in mine:
                    self._hear(errand, answer, inbox, table)
                    answered.append(errand)
                    continue
                self._post.meter.add(errand.node, Bytes(down=-errand.size))  # its own round has that
                if isinstance(answer, Parcel):
                    for item in answer.items:
                        if item.data:
                            inbox.refuse(NOBODY, Rejected("late", f"it answers round {errand.round}."))
            if not mine & self._open.keys() or inbox.late:
                break
            time.sleep(self._post.interval)
        for errand in answered:
            table.carried(errand.clients, self._post.meter.take(errand.node, time.monotonic()))
        for name in mine & self._open.keys():
            log.warning("node %d did not answer round %d in time", self._open[name].node, self._round)

    def _hear(self, errand: Errand, answer: Parcel | Rejected | str, inbox: Inbox, table: Table) -> None:
        """A node's answer, client by client."""
        came = time.time()
        if isinstance(answer, Parcel) and "refused" in answer.facts:
            answer = str(answer.facts["refused"])
        if not isinstance(answer, Parcel):
            log.warning("node %d failed in round %d: %.500s", errand.node, errand.round, answer)
            for client in errand.clients:
                table.fate(client, DOWNLOAD_LOST if isinstance(answer, str) else ARRIVED)
                if isinstance(answer, Rejected):
                    inbox.refuse(client, answer)
            return
        for client in errand.clients:
            table.fate(client, UPLOAD_LOST)  # until it is found in the answer
        for item in answer.items:
            whose = item.facts.get("client")
            if type(whose) is not int or whose not in errand.clients:
                inbox.refuse(NOBODY, Rejected("client", "the node was asked nothing for this client."))
                continue
            table.came(whose, item, answer.facts, errand.sent, came)
            self._take(whose, item, inbox, table)

    def _take(self, client: int, item: Item, inbox: Inbox, table: Table) -> None:
        """One client's reply."""
        if "refused" in item.facts:
            log.warning("client %d did not train in round %d: %.500s", client, self._round, item.facts["refused"])
            table.fate(client, DOWNLOAD_LOST)
            return
        awaited = inbox.awaited.get(client)
        if awaited is None and not item.data:
            table.fate(client, SILENT)  # it may not send, and says that it has trained
            return
        table.fate(client, ARRIVED)
        try:
            if awaited is not None and not self._packing.method.masks_known and client not in inbox.accepted:
                inbox.awaited = {**inbox.awaited, client: expected(awaited, item.facts.get("form"))}
        except Rejected as why:
            inbox.refuse(client, why)
            return
        if (reason := inbox.take(client, item.data)) is not None:
            log.warning("a reply of client %d in round %d was refused: %s", client, self._round, reason)

    def _read(self, task: Task, inbox: Inbox) -> Reply:
        """The cohort's replies, with why some were refused."""
        assert task.ids is not None
        changes = self._packing.codec.values != "float32"
        reply = inbox.reply(task.ids, task, changes)
        if changes and task.mask is not None and reply.mask is not None:  # of what it was not sent it sends all
            reply = reply._replace(params=torch.where(reply.mask & ~task.mask, reply.params - task.model, reply.params))
        codes = [
            0 if client in inbox.accepted or client not in inbox.why else REASONS.index(inbox.why[client].reason)
            for client in task.ids.tolist()
        ]
        others = inbox.refused.copy()
        for code in codes:
            if code:
                others[REASONS[code]] -= 1  # type: ignore[index]
        if any(codes):
            reply = reply._replace(rejected=torch.tensor(codes, dtype=torch.int8, device=task.ids.device))
        if any(others.values()):
            reply = reply._replace(strays=stray({name: torch.tensor(count) for name, count in others.items()}))
        return reply

    def _prices(self, inbox: Inbox, table: Table) -> tuple[Cost, Cost]:
        """Bytes down and up of each of the cohort, as they were sent."""
        parts = [
            self._packing.price(inbox.awaited[client], inbox.accepted[client], table.up[client])
            if client in inbox.accepted
            else (0, 0, table.up[client])
            for client in table.clients
        ]
        down = torch.tensor([table.down[client] for client in table.clients])
        none = torch.zeros_like(down)
        return Cost(none, none, down), Cost(*torch.tensor(parts, dtype=torch.int64).unbind(1))

    def personal_accuracy(self, model: Tensor, data: Examples, shards: Shards) -> Tensor:
        """Accuracy of every client's own model [N], as its node says; NaN for one that is not heard of."""
        order = Order(self._run, self._round, self._attempt, base_hash(model))
        item = Item({"form": "all"}, self._packing.model(order, EVERYBODY, model))
        self._roster.look(at_once=True)
        here, mine = self._roster.present(), dict[str, list[int]]()
        for node in sorted(set(here.values())):
            if (name := self._post.send("evaluate", node, order._asdict(), [item])) is not None:
                mine[name] = [client for client, host in here.items() if host == node]
        found = torch.full((len(shards.sizes),), torch.nan, dtype=torch.float64)
        ends = time.monotonic() + self._deadline
        while mine and time.monotonic() < ends:
            for name, answer in self._post.heard(list(mine)):
                clients = mine.pop(name)
                if isinstance(answer, Parcel):
                    for client, accuracy in accuracies(answer.facts, clients):
                        found[client] = accuracy
            time.sleep(self._post.interval if mine else 0)
        return found.to(model.device)
