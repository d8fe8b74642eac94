"""An engine that is a network: tasks go to nodes as bytes, and replies come back as bytes, or not at all.

A reply's bytes are used only after the codec has checked them; whose reply it is follows from the node that Flower
names as its source. C clients in the cohort, P numbers in the model.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Inbox, Rejected, base_hash
from fedloom.core.costs import Bytes
from fedloom.core.flight import ARRIVED, DOWNLOAD_LOST, SILENT, UPLOAD_LOST
from fedloom.core.refused import REASONS, stray
from fedloom.core.types import Reply, State, Task
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.protocol.part_form import with_form
from fedloom.flower.protocol.records import NodeMessage, Payload
from fedloom.flower.protocol.round_id import NO_CLIENT, RoundId
from fedloom.flower.protocol.said import said
from fedloom.flower.server.attempts import Attempts
from fedloom.flower.server.closing import AT_DEADLINE, Bench, Closing
from fedloom.flower.server.costs import CostRecorder
from fedloom.flower.server.mailbox import Mailbox
from fedloom.flower.server.personal import Scores, ask_for_scores
from fedloom.flower.server.roster import Roster
from fedloom.flower.server.told import tell_failed, tell_late, tell_refused, tell_untrained
from fedloom.flower.server.transport import LinkBytes

log = logging.getLogger("fedloom")

UNKNOWN = -1  # the client of a reply that belongs to none of the cohort


class SentMessage(NamedTuple):
    """A message that a node has not answered yet."""

    node: int
    clients: list[int]
    round: int
    sent: float  # seconds by `time.time`, which nodes report in as well
    size: int  # bytes of its clients' tasks


class Network:
    """Trains a cohort on real nodes, in place of the simulated world."""

    def __init__(
        self,
        mailbox: Mailbox,
        roster: Roster,
        packing: Packing,
        attempts: Attempts,
        deadline: float,
        quorum: int = 1,
        own_tests: bool = False,
        closing: Closing = AT_DEADLINE,
        resume: str = "",
    ) -> None:
        """`own_tests`: whether clients have test examples of their own; `resume`: the command that resumes the run."""
        self._mailbox, self._roster, self._packing = mailbox, roster, packing
        self._attempts, self._deadline, self._quorum = attempts, deadline, quorum
        self._open: dict[str, SentMessage] = {}  # by Flower's message id; earlier rounds' messages included
        self.round = 0  # that is played, or the step that was made last
        self._named: set[int] = set()  # clients whose reply of this round the codec refused
        self._own_tests, self._closing, self._bench, self._resume = own_tests, closing, Bench(), resume
        self._seconds = torch.zeros((), dtype=torch.float64)  # that rounds have taken

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Send every client its task, wait for the replies or the deadline, and read the replies."""
        began, self.round = time.monotonic(), task.round
        self._attempts.begin(task.round)
        round_id = self._attempts.round_id(task.round, base_hash(task.model))
        payloads = self._packing.tasks(round_id, task)
        self._wait_for_any(ids)
        manifests, costs = self._packing.manifests(round_id, task), CostRecorder(ids.tolist())
        sent = self._send(round_id, payloads, costs)
        inbox = Inbox(manifests, self._quorum, self._deadline)  # the deadline counts from here
        self._listen(sent, inbox, costs)
        reply = self.read(task, inbox)
        refused = [0] * len(ids) if reply.rejected is None else reply.rejected.tolist()
        self._named = {client for client, code in zip(ids.tolist(), refused) if code}
        duration = torch.tensor(time.monotonic() - began, dtype=torch.float64)
        self._seconds = self._seconds + duration
        return reply._replace(costs=costs.measured(*self.prices(inbox, costs), duration))

    def log_refused(self, reply: Reply) -> None:
        """Write into the log which replies of this round the slot `admit` refused; the codec's refusals are there."""
        if reply.rejected is None:
            return
        hosts = self._roster.present()
        for client, code in zip(reply.ids.tolist(), reply.rejected.tolist()):
            if code and client not in self._named:
                node = hosts.get(client)
                host = "a node that is gone" if node is None else self._roster.name(node)
                tell_refused(client, self.round, REASONS[code], node, host)

    def _wait_for_any(self, ids: Tensor) -> None:
        """Wait until a node that hosts some of these clients is there, for the deadline at most."""
        self._roster.look(at_once=True)
        clients, ends = set(ids.tolist()), time.monotonic() + self._deadline
        if clients.isdisjoint(self._roster.present()):
            log.warning("no client of round %d is there; it begins when one is", self.round)
        while clients.isdisjoint(self._roster.present()) and time.monotonic() < ends:
            time.sleep(self._mailbox.interval)
            self._roster.look()

    def settle(self, ids: list[int]) -> None:
        """Nothing: states lie with the nodes."""

    def save(self) -> State:
        """The seconds that rounds have taken; clients' states are with their nodes."""
        return {"now": self._seconds}

    def load(self, state: State) -> None:
        """Go on counting seconds."""
        self._seconds = state["now"].to("cpu", copy=True)

    def describe(self) -> dict[str, Any]:
        """How long it waits for nodes, for how many replies, and how the run is resumed."""
        terms = {"deadline": self._deadline, "quorum": self._quorum, **self._closing._asdict()}
        return {"engine": "flower", **terms, "resume": self._resume}

    def _send(self, round_id: RoundId, payloads: list[Payload], costs: CostRecorder) -> set[str]:
        """Send one message to every node that hosts some of the cohort; their ids."""
        hosts, by_node = self._roster.present(), dict[int, list[Payload]]()
        for payload in payloads:
            if (node := hosts.get(payload.facts["client"])) is not None:
                by_node.setdefault(node, []).append(payload)
        names, sitting = set(), self._bench.sitting(round_id.round)
        facts = {**round_id._asdict(), **self._attempts.history()}
        if sitting >= by_node.keys():
            sitting = set()  # rather they than nobody
        for node, own in sorted(by_node.items()):
            if node in sitting:
                continue
            size, clients = sum(payload.size for payload in own), [payload.facts["client"] for payload in own]
            message = SentMessage(node, clients, round_id.round, time.time(), size)
            name = self._mailbox.send("train", node, facts, own)
            if name is None:
                log.warning(
                    "Flower did not take the message of round %d to %s", round_id.round, self._roster.name(node)
                )
                continue
            self._open[name] = message
            names.add(name)
            for payload in own:
                costs.record_task(payload.facts["client"], payload.size)
        return names

    def _listen(self, names: set[str], inbox: Inbox, costs: CostRecorder) -> None:
        """Receive until all have answered or the round is closed; count and drop answers to earlier rounds."""
        answered: list[SentMessage] = []
        began, asked, took, replies = time.monotonic(), {name: self._open[name] for name in names}, [], 0
        while True:
            for name, answer in self._mailbox.receive(list(self._open)):
                message = self._open.pop(name)
                if name not in names:
                    self._take_late(message, answer, inbox)
                    continue
                answered.append(message)
                self._bench.forgive(message.node)
                if self.take_answer(message, answer, inbox, costs):
                    took.append(time.monotonic() - began)
                    replies += len(message.clients)
                else:
                    del asked[name]
            waited, clients = time.monotonic() - began, sum(len(message.clients) for message in asked.values())
            early = inbox.enough and self._closing.over(len(asked), took, clients, replies, waited)
            if not names & self._open.keys() or inbox.late or early:
                break
            self._roster.look()  # nodes that come now are there for the next round
            time.sleep(self._mailbox.interval)
        for message in answered:
            costs.record_link(message.clients, self._mailbox.meter.take(message.node, time.monotonic()))
        for name in sorted(names & self._open.keys(), key=lambda name: self._open[name].node):
            node, rounds = self._open[name].node, 0
            if self._closing.slack:
                rounds = self._bench.miss(node, self.round)
            tell_late(node, self._roster.name(node), self.round, waited, rounds)

    def _take_late(self, message: SentMessage, answer: NodeMessage | Rejected | str, inbox: Inbox) -> None:
        """An answer to an earlier round: its replies are counted and not used."""
        self._mailbox.meter.add(message.node, LinkBytes(down=-message.size))  # counted in its own round
        if not isinstance(answer, NodeMessage):
            self._roster.doubt(message.node)
            return
        self._roster.hear(message.node, answer.facts)
        for payload in answer.payloads:
            if payload.data:
                inbox.refuse(UNKNOWN, Rejected("late", f"it answers round {message.round}."))

    def take_answer(
        self, message: SentMessage, answer: NodeMessage | Rejected | str, inbox: Inbox, costs: CostRecorder
    ) -> bool:
        """A node's answer, client by client; whether it is one."""
        came = time.time()
        if isinstance(answer, NodeMessage) and "refused" in answer.facts:
            answer = str(answer.facts["refused"])
        if not isinstance(answer, NodeMessage):
            tell_failed(message.node, self._roster.name(message.node), message.round, said(answer, 500))
            self._roster.doubt(message.node)
            for client in message.clients:
                costs.set_fate(client, DOWNLOAD_LOST if isinstance(answer, str) else ARRIVED)
                if isinstance(answer, Rejected):
                    inbox.refuse(client, answer)
            return False
        self._roster.hear(message.node, answer.facts)
        for client in message.clients:
            costs.set_fate(client, UPLOAD_LOST)  # until its payload is found
        for payload in answer.payloads:
            whose = payload.facts.get("client")
            if type(whose) is not int or whose not in message.clients:
                inbox.refuse(UNKNOWN, Rejected("client", "the node was not asked for this client's reply."))
                continue
            costs.record_reply(whose, payload, answer.facts, message.sent, came)
            self._take_reply(whose, message, payload, inbox, costs)
        return True

    def _take_reply(
        self, client: int, message: SentMessage, payload: Payload, inbox: Inbox, costs: CostRecorder
    ) -> None:
        """One client's reply, checked against its manifest."""
        if "refused" in payload.facts:
            tell_untrained(client, message.round, said(payload.facts["refused"], 500))
            costs.set_fate(client, DOWNLOAD_LOST)
            return
        manifest = inbox.awaited.get(client)
        if manifest is None and not payload.data:
            costs.set_fate(client, SILENT)  # it may not send, and reports that it has trained
            return
        costs.set_fate(client, ARRIVED)
        reason: str | None
        try:
            if manifest is not None and not self._packing.method.masks_known and client not in inbox.accepted:
                inbox.expect(client, with_form(manifest, payload.facts.get("form")))
            reason = inbox.take(client, payload.data)
        except Rejected as why:
            inbox.refuse(client, why)
            reason = why.reason
        if reason is not None:
            tell_refused(client, message.round, reason, message.node, self._roster.name(message.node))

    def read(self, task: Task, inbox: Inbox) -> Reply:
        """The cohort's replies, and the reasons why some were refused."""
        assert task.ids is not None
        changes = self._packing.codec.values != "float32"
        reply = inbox.reply(task.ids, task, changes)
        if changes and task.mask is not None and reply.mask is not None:  # weights, not changes, where nothing was sent
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

    def prices(self, inbox: Inbox, costs: CostRecorder) -> tuple[Bytes, Bytes]:
        """Bytes down and up of each client of the cohort [C], as sent."""
        parts = [
            self._packing.price(inbox.awaited[client], inbox.accepted[client], costs.up[client])
            if client in inbox.accepted
            else (0, 0, costs.up[client])
            for client in costs.clients
        ]
        down = torch.tensor([costs.down[client] for client in costs.clients])
        none = torch.zeros_like(down)
        return Bytes(none, none, down), Bytes(*torch.tensor(parts, dtype=torch.int64).unbind(1))

    def personal(self, model: Tensor) -> Tensor | None:
        """Score of every client's own model [N], as its node reports; NaN where no node answers for a client."""
        if not self._own_tests:
            return None
        round_id = self._attempts.round_id(self.round, base_hash(model))
        payload = Payload({"form": "all"}, self._packing.model(round_id, NO_CLIENT, model))
        self._roster.look(at_once=True)
        sitting, present = self._bench.sitting(self.round + 1), self._roster.present()
        hosts = {client: node for client, node in present.items() if node not in sitting} or present
        setting = self._packing.setting
        scores = Scores(setting.fleet.size, setting.goal.personal.limits)
        facts = {**round_id._asdict(), **self._attempts.history()}
        ask_for_scores(self._mailbox, hosts, facts, payload, scores, self._deadline, self._closing)
        return scores.found.to(model.device)
