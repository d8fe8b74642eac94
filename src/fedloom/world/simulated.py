"""What does a round cost, and what gets lost on the way? Wraps any engine; the round does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import BYTES, Compute, Seconds, by_cycles, by_flops, forward_flops, processed, transfer
from fedloom.core.devices import Devices, known_devices
from fedloom.core.rows import expanded
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.round import Engine
from fedloom.world.channel import Bernoulli, Channel, Pieces
from fedloom.world.sharing import finish_times
from fedloom.world.trace import Trace

Price = Callable[[Task, Reply], tuple[Tensor, Tensor]]  # bytes down and up of each of the cohort [C each]

MEASURED = ("seconds", "seconds_down", "seconds_compute", "seconds_up", "joules", "bytes_down", "bytes_up")
FATES = ("arrived", "silent", "unavailable", "download lost", "upload lost", "late", "surplus")
ARRIVED, SILENT, UNAVAILABLE, DOWNLOAD_LOST, UPLOAD_LOST, LATE, SURPLUS = range(len(FATES))


@dataclass(frozen=True)
class World:
    """What is simulated beside the devices themselves."""

    channel: Channel = Bernoulli()
    pieces: Pieces | None = None  # replies that arrive in part
    trace: Trace | None = None  # who is there and how fast the links are, by the second at which a round begins
    compute: Compute = "cycles"  # seconds by FedDD's formula, or by the operations that the trained network takes
    deadline: float | None = None  # seconds after which a reply is too late
    first: int | None = None  # only so many replies are waited for: select more
    server_up: float | None = None  # bit/s that all uploads share
    server_down: float | None = None  # and all downloads
    idle: float = 60.0  # seconds until the next round where nobody was there

    def __post_init__(self) -> None:
        for name in ("deadline", "first", "server_up", "server_down", "idle"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadExperiment(f"{name} of the world is {value}; it must be above 0.")
        if self.compute not in ("cycles", "flops"):
            raise BadExperiment(unknown("way to reckon compute seconds", self.compute, ("cycles", "flops")))


class Costs(NamedTuple):
    """What a round took [C each], of those as well whose reply did not arrive."""

    ids: Tensor
    fate: Tensor  # places in `FATES`
    seconds: Seconds
    joules: Tensor
    bytes_down: Tensor
    bytes_up: Tensor
    duration: Tensor  # [] seconds until the server went on

    def columns(self) -> State:
        """One column each, for tables [C each]."""
        return {"fate": self.fate, **_reported(self)}

    @property
    def trained(self) -> Tensor:
        """Who was reached and did the work, whatever became of it [C]."""
        return (self.fate != UNAVAILABLE) & (self.fate != DOWNLOAD_LOST)

    @property
    def device_hours(self) -> Tensor:
        """Hours that all devices together were busy []."""
        return self.seconds.total.sum() / 3600


def plain_bytes(task: Task, reply: Reply) -> tuple[Tensor, Tensor]:
    """Four bytes a number, with what the local rule adds; masks themselves cost nothing."""

    def size(mask: Tensor | None, extras: State) -> Tensor:
        numbers = torch.full_like(reply.ids, task.model.shape[0]) if mask is None else mask.sum(1)
        return BYTES * (numbers + sum(value[0].numel() for value in extras.values()))

    return size(task.mask, task.extras), size(reply.mask, reply.extras)


class Simulated:
    """An engine in a world: some clients miss the task, replies take time and bytes, and some never arrive.

    Without a deadline a lost message is noticed when it should have arrived; with one it is silence, and the server
    waits until then. The server knows who is not there, and waits for nobody who may not send. `now` is the virtual
    time and `costs` the last round's; a resumed run sets `now`.
    """

    def __init__(
        self, engine: Engine, method: Method, setting: Setting, world: World | None = None, price: Price = plain_bytes
    ) -> None:
        self.engine, self.method, self.setting, self.price = engine, method, setting, price
        self.world = world or World()
        self.devices = known_devices(setting.fleet.devices, "a simulated world")
        self.now = torch.zeros((), dtype=torch.float64, device=setting.fleet.examples.device)
        self.costs: Costs | None = None
        self._piece = None if self.world.pieces is None else self.world.pieces.piece_of(setting)  # [P]

    def __call__(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Send, train those who got it, and see what comes back."""
        listed, ids = ids, ids.to(task.model.device, non_blocking=True)
        world, devices = self.world, self.devices.now(chance, ids)
        present = chance.uniform("availability", ids) < devices.availability
        if world.trace is not None:
            link = world.trace(ids, self.now)
            present = present & link.available
            devices = devices._replace(up=devices.up * link.up, down=devices.down * link.down)
        delivered = world.channel(ids, self.devices, chance)
        received = present & delivered.down
        if world.trace is not None:
            received = received & (chance.uniform("trace down", ids) < link.reliability)
        reply = self._train(listed, ids, task, chance, received)
        sends = received & reply.arrived
        down, up = self.price(task, reply)
        down, up = down * present, up * sends
        seconds = self._seconds(ids, task, devices, down, up, present, received, sends)
        end = seconds.total
        through = delivered.up
        if world.trace is not None:
            link = world.trace(ids, self.now + end)
            through = through & link.available & (chance.uniform("trace up", ids) < link.reliability)
        if world.pieces is not None and self._piece is not None:
            survive = world.pieces.survive(ids, chance)
            through = through & survive.any(1)
            pieces = survive[:, self._piece]  # [C, P]
            reply = reply._replace(mask=pieces if reply.mask is None else reply.mask & pieces)
        fate = self._fate(present, received, sends, through, end)
        duration = self._duration(fate == ARRIVED, present & task.authorised, end)
        self.costs = Costs(ids, fate, seconds, seconds.joules(devices), down, up, duration)
        self.now = self.now + duration
        return reply._replace(arrived=fate == ARRIVED, report={**reply.report, **_reported(self.costs)})

    def _train(self, listed: Tensor, ids: Tensor, task: Task, chance: Chance, received: Tensor) -> Reply:
        """Only those who received the task train; rows of the others hold the model."""
        if bool(received.all()):
            return self.engine(listed, task, chance)
        at = received.nonzero().flatten()
        if len(at):
            reply = self.engine(listed[at.to(listed.device)], task.rows(at), chance)
            return reply.scatter(at, ids, task.model)
        return self._nobody(ids, task).scatter(at, ids, task.model)

    def _nobody(self, ids: Tensor, task: Task) -> Reply:
        """A reply of no rows, with all the names that others would have."""
        rule, none = self.method.local, task.model.expand(0, -1)
        state = expanded(rule.client_state(self.setting, task.model), 0)
        _, extras, _ = rule.finish(task.rows(slice(0, 0)), state, none, none, ids[:0])
        report = {"examples": self.setting.fleet.examples[:0], "steps": ids[:0], "loss": none.new_zeros(0)}
        mask = None if task.mask is None else task.mask[:0]
        return Reply(ids[:0], none, mask, extras, report, task.authorised[:0])

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
        """What each takes for its part in the round, as far as it gets."""
        world = self.world
        examples = processed(self.method.work, self.setting.fleet.examples[ids]).double()
        if world.compute == "flops":
            compute = by_flops(devices, examples, forward_flops(self.setting, self.method.local, task.keep, len(ids)))
        else:
            compute = by_cycles(devices, examples)
        compute = compute * received
        fetch = transfer(down, devices.down, devices.latency)
        if world.server_down is not None:
            fetch = finish_times(devices.latency, 8 * down, devices.down, world.server_down)
        fetch = fetch * present
        send = transfer(up, devices.up, devices.latency)
        if world.server_up is not None:
            start = fetch + compute
            send = finish_times(start + devices.latency, 8 * up, devices.up, world.server_up) - start
        return Seconds(fetch, compute, send * sends)

    def _fate(self, present: Tensor, received: Tensor, sends: Tensor, through: Tensor, end: Tensor) -> Tensor:
        """What became of each, as places in `FATES`."""
        deadline = torch.inf if self.world.deadline is None else self.world.deadline
        fate = torch.where(end <= deadline, ARRIVED, LATE)
        for happened, name in (
            (~through, UPLOAD_LOST),
            (~sends, SILENT),
            (~received, DOWNLOAD_LOST),
            (~present, UNAVAILABLE),
        ):
            fate = torch.where(happened, name, fate)
        if self.world.first is not None:
            place = end.masked_fill(fate != ARRIVED, torch.inf).argsort(stable=True).argsort()
            fate = torch.where((fate == ARRIVED) & (place >= self.world.first), SURPLUS, fate)
        return fate

    def _duration(self, arrived: Tensor, waited: Tensor, end: Tensor) -> Tensor:
        """Seconds until the server goes on []."""
        world = self.world
        complete = ~(waited & ~arrived).any()
        if world.first is not None:
            complete = complete | (arrived.sum() >= world.first)
        silence = (end * waited).max() if world.deadline is None else end.new_tensor(world.deadline)
        nobody = end.new_tensor(world.deadline or world.idle)
        return torch.where(waited.any(), torch.where(complete, (end * arrived).max(), silence), nobody)


def _reported(costs: Costs) -> State:
    """The costs as columns of a report [C each], in the order of `MEASURED`."""
    spent = costs.seconds
    columns = (spent.total, spent.down, spent.compute, spent.up, costs.joules, costs.bytes_down, costs.bytes_up)
    return dict(zip(MEASURED, columns))
