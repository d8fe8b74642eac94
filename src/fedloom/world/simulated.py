"""A simulated world around any engine: which clients are available, what a round costs, and which messages are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import BYTES, Seconds, by_cycles, by_flops, download, forward_flops, processed, upload
from fedloom.core.costs import MEASURED, Bytes, Costs
from fedloom.core.devices import Devices, known_devices
from fedloom.core.flight import ARRIVED, DOWNLOAD_LOST, LATE, SILENT, SURPLUS, UNAVAILABLE, UPLOAD_LOST, Journey
from fedloom.core.nobody import finish_nobody
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.engine.protocol import Engine
from fedloom.method import Method
from fedloom.world.channel import Bernoulli, Channel, Pieces
from fedloom.world.sharing import finish_times
from fedloom.world.trace import Trace
from fedloom.world.world import World

Price = Callable[[Task, Reply], tuple[Bytes, Bytes]]  # sizes of the cohort's tasks and replies [C each]

IDLE = 60.0  # seconds until the next round if no client was available


class _Ready(NamedTuple):
    """Clients before they train."""

    devices: Devices  # at this round's rates
    present: Tensor  # [C]
    received: Tensor  # [C] whether the task arrived
    through: Tensor  # [C] whether the channel would deliver the reply


def plain_bytes(task: Task, reply: Reply) -> tuple[Bytes, Bytes]:
    """Four bytes per number, with what the local rule adds; masks themselves cost nothing."""

    def size(mask: Tensor | None, extras: State) -> Bytes:
        numbers = torch.full_like(reply.ids, task.model.shape[0]) if mask is None else mask.sum(1)
        values = BYTES * (numbers + sum(value[0].numel() for value in extras.values()))
        return Bytes(values, torch.zeros_like(values), torch.zeros_like(values))

    return size(task.mask, task.extras), size(reply.mask, reply.extras)


class Simulated:
    """An engine in a world: some clients miss the task, replies take time and bytes, and some never arrive.

    Without a deadline, a lost message is noticed when it should have arrived; with one, the server waits until the
    deadline. It does not wait for clients that are unavailable or may not send. `now` is the virtual time.

    `channel`, `pieces` (replies that arrive in part) and `trace` are built by the caller: the settings of `world` and
    of the experiment from which they are built are not read here.
    """

    def __init__(
        self,
        engine: Engine,
        method: Method,
        setting: Setting,
        world: World | None = None,
        price: Price = plain_bytes,
        *,
        channel: Channel | None = None,
        pieces: Pieces | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.engine, self.method, self.setting, self.price = engine, method, setting, price
        self.world, self.channel = world or World(), channel or Bernoulli()
        self.pieces, self.trace = pieces, trace
        self.devices = known_devices(setting.fleet.devices, "a simulated world")
        self.now = torch.zeros((), dtype=torch.float64, device=setting.fleet.examples.device)
        self._piece = None if pieces is None else pieces.piece_of(setting)  # [P]

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Send tasks, train the clients that receive theirs, and simulate which replies arrive when."""
        listed, ids = ids, ids.to(task.model.device, non_blocking=True)
        ready = self._ready(ids, chance, self.now)
        reply = self._train(listed, ids, task, chance, ready.received)
        way = self._journey(ids, task, reply, ready, chance, self.now)
        reply = self.in_pieces(reply, way.pieces)
        fate = self._in_time(way)
        duration = self._duration(fate == ARRIVED, way.present & task.authorised, way.end)
        self.now = self.now + duration
        costs = Costs(*way.prices, reached(fate), way.columns["bytes_up"], {"fate": fate, **way.columns}, duration)
        return reply._replace(arrived=fate == ARRIVED, report={**reply.report, **way.columns}, costs=costs)

    def foresee(self, ids: Tensor, task: Task, chance: Chance, now: float, reply: Reply | None = None) -> Journey:
        """What will become of clients `ids` [C] that are asked at the second `now`, with replies of this size.

        None: of the size that is known beforehand, where the server knows what clients send.
        """
        second = self.now.new_tensor(now)
        coming = self._blank(ids, task) if reply is None else reply
        return self._journey(ids, task, coming, self._ready(ids, chance, second), chance, second)

    def unanswered(self, ids: Tensor, task: Task) -> Reply:
        """Replies of clients none of which has trained: all of them hold the model."""
        return self._empty_reply(ids, task).scatter(ids[:0], ids, task.model)

    def in_pieces(self, reply: Reply, survive: Tensor | None) -> Reply:
        """The replies without the pieces that were lost, by `Journey.pieces`."""
        if survive is None or self._piece is None:
            return reply
        arrives = survive[:, self._piece]  # [C, P]
        return reply._replace(mask=arrives if reply.mask is None else reply.mask & arrives)

    def settle(self, ids: list[int]) -> None:
        """As the engine."""
        self.engine.settle(ids)

    def personal(self, model: Tensor) -> Tensor | None:
        """The engine's personal accuracies; they cost no time or bytes."""
        return self.engine.personal(model)

    def save(self) -> State:
        """The engine's state and the virtual time."""
        return {**self.engine.save(), "now": self.now}

    def load(self, state: State) -> None:
        """Put both back."""
        self.now = state["now"].to(self.now.device, copy=True)
        self.engine.load({name: value for name, value in state.items() if name != "now"})

    def describe(self) -> dict[str, Any]:
        """The engine's description; the world is in the experiment."""
        return self.engine.describe()

    def _ready(self, ids: Tensor, chance: Chance, now: Tensor) -> _Ready:
        """Who is there and receives the task, sent at the second `now` []."""
        devices = self.devices.now(chance, ids)
        present = chance.uniform("availability", ids) < devices.availability
        received, through = self.channel(ids, self.devices, chance)
        if self.trace is not None:
            link = self.trace(ids, now)
            present = present & link.available
            devices = devices._replace(up=devices.up * link.up, down=devices.down * link.down)
            received = received & (chance.uniform("trace down", ids) < link.reliability)
        return _Ready(devices, present, present & received, through)

    def _journey(self, ids: Tensor, task: Task, reply: Reply, ready: _Ready, chance: Chance, now: Tensor) -> Journey:
        """What the tasks take, with replies of these sizes, and what becomes of them."""
        devices, present, received, through = ready
        sends = received & reply.arrived
        prices = self.price(task, reply)
        down, up = (size.total.to(ids.device) for size in prices)
        down, up = down * present, up * sends
        seconds = self._seconds(ids, task, devices, down, up, present, received, sends)
        end, survive = seconds.total, None
        if self.trace is not None:
            link = self.trace(ids, now + end)
            through = through & link.available & (chance.uniform("trace up", ids) < link.reliability)
        if self.pieces is not None:
            survive = self.pieces.survive(ids, chance)
            through = through & survive.any(1)
        fate = torch.full_like(ids, ARRIVED)
        for happened, name in (
            (~through, UPLOAD_LOST),
            (~sends, SILENT),
            (~received, DOWNLOAD_LOST),
            (~present, UNAVAILABLE),
        ):
            fate = torch.where(happened, name, fate)
        spent = (seconds.total, seconds.down, seconds.compute, seconds.up, seconds.joules(devices), down, up)
        return Journey(prices, dict(zip(MEASURED, spent)), fate, end, present, survive)

    def _train(self, listed: Tensor, ids: Tensor, task: Task, chance: Chance, received: Tensor) -> Reply:
        """Train the clients that received the task; the rows of the others hold the model."""
        if bool(received.all()):
            return self.engine.train(listed, task, chance)
        at = received.nonzero().flatten()
        if len(at):
            reply = self.engine.train(listed[at.to(listed.device)], task.rows(at), chance)
            return reply.scatter(at, ids, task.model)
        return self.unanswered(ids, task)

    def _empty_reply(self, ids: Tensor, task: Task) -> Reply:
        """A reply without rows, with all names that a reply has."""
        rule, none = self.method.local, task.model.expand(0, -1)
        empty, extras, state = finish_nobody(rule, self.setting, task)
        report = {"examples": self.setting.fleet.examples[:0], "steps": ids[:0], "loss": none.new_zeros(0)}
        if rule.traits.judges:
            report |= rule.judge(empty, state, none.new_zeros(0), none.new_zeros(0))[0]
        if self.method.aggregate.reads_weight:
            report["weight"] = none.new_zeros(0, dtype=torch.float64)
        mask = None if task.mask is None else task.mask[:0]
        return Reply(ids[:0], none, mask, extras, report, task.authorised[:0])

    def _blank(self, ids: Tensor, task: Task) -> Reply:
        """Replies of the size that they will have, where the server knows what clients send; without their numbers."""
        empty, count = self._empty_reply(ids, task), len(ids)

        def blank(state: State) -> State:
            return {name: v.new_zeros(()).expand(count, *v.shape[1:]) for name, v in state.items()}

        whole = task.model.expand(count, -1)
        return Reply(ids, whole, task.mask, blank(empty.extras), blank(empty.report), task.authorised)

    def _seconds(
        self,
        ids: Tensor,
        task: Task,
        devices: Devices,
        down: Tensor,
        up: Tensor,
        present: Tensor,
        received: Tensor,
        sends: Tensor,
    ) -> Seconds:
        """The seconds of each client's part in the round, as far as it gets."""
        world = self.world
        examples = self.method.local.passes * processed(self.method.work, self.setting.fleet.examples[ids]).double()
        if world.compute == "flops":
            compute = by_flops(devices, examples, forward_flops(self.setting, self.method.local, task.keep, len(ids)))
        else:
            compute = by_cycles(devices, examples)
        compute = compute * received
        there, back = download(down, devices), upload(up, devices)
        fetch, send = there.seconds, back.seconds
        if world.server_down is not None:
            fetch = finish_times(*there, world.server_down)
        fetch = fetch * present
        if world.server_up is not None:
            start = fetch + compute
            send = finish_times(start + back.delay, back.bits, back.rate, world.server_up) - start
        return Seconds(fetch, compute, send * sends)

    def _in_time(self, way: Journey) -> Tensor:
        """The fate of each client, with replies that come too late for the server."""
        deadline = torch.inf if self.world.deadline is None else self.world.deadline
        fate = torch.where((way.fate == ARRIVED) & (way.end > deadline), LATE, way.fate)
        if self.world.first is not None:
            place = way.end.masked_fill(fate != ARRIVED, torch.inf).argsort(stable=True).argsort()
            fate = torch.where((fate == ARRIVED) & (place >= self.world.first), SURPLUS, fate)
        return fate

    def _duration(self, arrived: Tensor, waited: Tensor, end: Tensor) -> Tensor:
        """The seconds until the server ends the round []."""
        world = self.world
        complete = ~(waited & ~arrived).any()
        if world.first is not None:
            complete = complete | (arrived.sum() >= world.first)
        silence = (end * waited).max() if world.deadline is None else end.new_tensor(world.deadline)
        idle = end.new_tensor(world.deadline or IDLE)
        return torch.where(waited.any(), torch.where(complete, (end * arrived).max(), silence), idle)


def reached(fate: Tensor) -> Tensor:
    """Whether each client received its task and trained, even if its reply was lost [C]."""
    return (fate != UNAVAILABLE) & (fate != DOWNLOAD_LOST)
