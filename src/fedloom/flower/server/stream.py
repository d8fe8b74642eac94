"""Clients on real nodes without a barrier: a message for every task, and a step whenever the pace says so.

Whose reply a message is, and to which version of the model, follows from the server's own table of tasks, never from
what the message says. Time is the wall's: seconds since the run began, those of earlier attempts included.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Inbox, Rejected, base_hash
from fedloom.core.costs import MEASURED, Bytes
from fedloom.core.flight import (
    ARRIVED,
    GIVEN_UP,
    UNAVAILABLE,
    UPLOAD_LOST,
    Asked,
    Flight,
    Journey,
    task_of,
)
from fedloom.core.pace import Pace
from fedloom.core.refused import stray
from fedloom.core.rows import cat_rows
from fedloom.core.types import Reply, State, Task
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.protocol.records import NodeMessage
from fedloom.flower.server.attempts import Attempts
from fedloom.flower.server.costs import CostRecorder
from fedloom.flower.server.mailbox import Mailbox
from fedloom.flower.server.network import Network, SentMessage
from fedloom.flower.server.roster import Roster
from fedloom.flower.server.transport import LinkBytes

log = logging.getLogger("fedloom")


@dataclass(eq=False)
class Travelling:
    """A task whose message has been sent."""

    task: Asked
    row: Task  # [1] as it was sent
    message: SentMessage
    inbox: Inbox  # in which its reply is the only one
    costs: CostRecorder


class Stream:
    """The clients of real nodes, asked one after another; `Network` reads what they answer."""

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        roster: Roster,
        packing: Packing,
        attempts: Attempts,
        patience: float,
        per_node: int = 1,
    ) -> None:
        """`patience`: seconds that a step waits when nobody is in flight and nobody can be asked.

        `per_node`: tasks that a node has at a time, at most; it trains them one after another.
        """
        self._network, self._mailbox, self._roster, self._packing = network, mailbox, roster, packing
        self._attempts, self._patience, self._per_node = attempts, patience, per_node
        self._open: dict[str, Travelling] = {}  # by Flower's message id
        self._sent: dict[int, Travelling] = {}  # by serial, of tasks that no step has closed
        self._unsent: list[Asked] = []  # tasks for which there was no node
        self._refused: Counter[str] = Counter()  # messages since the last step, by reason
        self._hashes: dict[int, str] = {}  # of the models of versions
        self._began: float | None = None  # the second 0 of the flight, by the monotonic clock
        self._quiet_since = inf

    @property
    def foresees(self) -> bool:
        """What becomes of a task is known when the reply comes."""
        return False

    @property
    def ahead(self) -> bool:
        """Nodes come and go."""
        return False

    @property
    def idle(self) -> float:
        """Waiting has taken its time already."""
        return 0.0

    def reachable(self, free: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The clients of connected nodes that have fewer tasks than they may."""
        busy = Counter(one.message.node for one in self._open.values())
        here = np.zeros_like(free)
        here[[place for place, node in self._roster.present().items() if busy[node] < self._per_node]] = True
        return free & here

    def foresee(self, ids: Tensor, task: Task, chance: Chance, now: float, reply: Reply | None = None) -> Journey:
        """Nothing is known: no prices, and replies that come some time."""
        none = torch.zeros(len(ids), dtype=torch.int64)
        size, never = Bytes(none, none, none), torch.full((len(ids),), inf, dtype=torch.float64)
        columns = {name: none.double() for name in MEASURED}
        return Journey((size, size), columns, torch.full_like(none, ARRIVED), never, torch.ones_like(none).bool())

    def begin(self, tasks: Sequence[Asked]) -> None:
        """Send every task to the node that hosts its client."""
        hosts = self._roster.present()
        if tasks:
            self._attempts.begin(1 + max(task.wave.version.number for task in tasks))
        for task in tasks:
            node = hosts.get(task.client)
            if node is None or not self._send(task, node):
                self._unsent.append(task)

    def _send(self, task: Asked, node: int) -> bool:
        """Send a task to a node; whether Flower took it."""
        row, base = task_of([task]), task.wave.version
        if base.number not in self._hashes:
            self._hashes[base.number] = base_hash(base.model)
        round_id = self._attempts.round_id(base.number + 1, self._hashes[base.number])
        (payload,) = self._packing.tasks(round_id, row)
        message = SentMessage(node, [task.client], round_id.round, time.time(), payload.size)
        facts = {**round_id._asdict(), **self._attempts.history(), "serial": task.serial}
        if (name := self._mailbox.send("train", node, facts, [payload])) is None:
            log.warning("Flower did not take task %d, to %s", task.serial, self._roster.name(node))
            return False
        costs = CostRecorder([task.client])
        costs.record_task(task.client, payload.size)
        inbox = Inbox(self._packing.manifests(round_id, row))
        self._open[name] = self._sent[task.serial] = Travelling(task, row, message, inbox, costs)
        return True

    def wait(self, flight: Flight, pace: Pace, alarm: float) -> bool:
        """Look for replies until something happens; False: nobody is in flight, and nobody has come for long."""
        if self._began is None:
            self._began = time.monotonic() - flight.now
            self._attempts.begin(1 + flight.version.number)
        sent = {one.task.serial for one in self._open.values()}
        unanswered = [t for t in flight.tasks.values() if not t.ended and t.serial not in sent]
        lost = set(map(id, self._unsent))
        self.begin([task for task in unanswered if id(task) not in lost])  # those of an earlier attempt
        self._roster.look()
        self._pass_time(flight, pace)
        happened = self._end_unsent(flight) | self._listen(flight, pace) | self._end_vanished(flight)
        if happened or flight.now >= alarm:
            self._quiet_since = inf
            return True
        if not flight.in_flight and not self.reachable(flight.free).any():
            self._quiet_since = min(self._quiet_since, flight.now)
            if flight.now >= self._quiet_since + self._patience:
                self._quiet_since = inf
                return False
        time.sleep(self._mailbox.interval)
        return True

    def _pass_time(self, flight: Flight, pace: Pace) -> None:
        """Let the flight know what time it is, and give slots away whose time is over."""
        assert self._began is not None
        flight.advance(max(flight.now, time.monotonic() - self._began))
        flight.happen(pace)

    def _end(self, flight: Flight, task: Asked, fate: int) -> None:
        """A task ends now."""
        task.end = flight.now
        flight.end(task, fate)

    def _end_unsent(self, flight: Flight) -> bool:
        """End tasks that could not be sent."""
        unsent, self._unsent = self._unsent, []
        for task in unsent:
            self._end(flight, task, UNAVAILABLE)
        return bool(unsent)

    def _end_vanished(self, flight: Flight) -> bool:
        """End tasks whose nodes are gone; if they come back, their answers are late."""
        here = self._roster.connected
        gone = [one for one in self._open.values() if not one.task.ended and one.message.node not in here]
        for one in gone:
            log.warning("%s is gone; its task %d is lost", self._roster.name(one.message.node), one.task.serial)
            self._end(flight, one.task, UPLOAD_LOST)
        return bool(gone)

    def _listen(self, flight: Flight, pace: Pace) -> bool:
        """Read the answers that have come; whether there were any."""
        heard = False
        for name, answer in self._mailbox.receive(list(self._open)):
            one, heard = self._open.pop(name), True
            if one.task.ended:
                self._take_late(one, answer)
            else:
                self._take(flight, pace, one, answer)
        return heard

    def _take(self, flight: Flight, pace: Pace, one: Travelling, answer: NodeMessage | Rejected | str) -> None:
        """An answer to a task that is awaited."""
        task, client = one.task, one.task.client
        self._network.take_answer(one.message, answer, one.inbox, one.costs)
        one.costs.record_link([client], self._mailbox.meter.take(one.message.node, time.monotonic()))
        self._refused.update({str(reason): count for reason, count in one.inbox.refused.items()})
        if client not in one.inbox.accepted:
            fate = one.costs.fate(client)
            self._end(flight, task, UPLOAD_LOST if fate == ARRIVED else fate)
            return
        late = pace.timeout is not None and not pace.late and flight.now > task.asked + pace.timeout
        if late:
            self._refused["late"] += 1
        task.trained, task.place = self._network.read(one.row, one.inbox), 0
        self._end(flight, task, GIVEN_UP if late else ARRIVED)

    def _take_late(self, one: Travelling, answer: NodeMessage | Rejected | str) -> None:
        """An answer to a task that was given up or has been closed: it is counted and not used."""
        self._mailbox.meter.add(one.message.node, LinkBytes(down=-one.message.size))
        if not isinstance(answer, NodeMessage):
            self._roster.doubt(one.message.node)
            return
        self._roster.hear(one.message.node, answer.facts)
        self._refused["late"] += sum(bool(payload.data) for payload in answer.payloads)

    def train_asked(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Nothing is trained here."""
        raise NotImplementedError("clients train on nodes")

    def settle(self, ids: list[int]) -> None:
        """Nothing: states lie with the nodes."""

    def unanswered(self, ids: Tensor, task: Task) -> Reply:
        """Replies of clients none of which has answered."""
        round_id = self._attempts.round_id(task.round, "")
        return Inbox(self._packing.manifests(round_id, task._replace(ids=ids))).reply(ids, task)

    def delivered(self, reply: Reply, pieces: Tensor | None) -> Reply:
        """With the number of messages that were refused since the last step."""
        if not self._refused:
            return reply
        refused, self._refused = self._refused, Counter()
        return reply._replace(strays=stray({name: torch.tensor(count) for name, count in refused.items()}))

    def costs_of(self, tasks: Sequence[Asked], device: torch.device) -> tuple[Bytes, Bytes, State]:
        """As they were measured; of tasks that were never sent, nothing."""
        downs, ups, columns = [], [], []
        for task in tasks:
            one = self._sent.pop(task.serial, None)
            costs = CostRecorder([task.client]) if one is None else one.costs
            inbox = Inbox({}) if one is None else one.inbox
            down, up = self._network.prices(inbox, costs)
            measured = costs.measured(down, up, torch.zeros(())).columns
            assert measured is not None
            downs.append(down)
            ups.append(up)
            columns.append(measured)
        if not tasks:
            none = torch.zeros(0, dtype=torch.int64)
            return Bytes(none, none, none), Bytes(none, none, none), {"bytes_up": none, "bytes_down": none}
        whole = {name: cat_rows([own[name] for own in columns]).to(device) for name in columns[0]}
        alive = {one.task.base for one in self._sent.values()}
        self._hashes = {number: text for number, text in self._hashes.items() if number in alive}
        down, up = (Bytes(*(cat_rows(list(part)).to(device) for part in zip(*sizes))) for sizes in (downs, ups))
        return down, up, whole
