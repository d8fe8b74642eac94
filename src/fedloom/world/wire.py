"""What do messages weigh? Every reply goes through the codec: priced to the byte, rounded as it would be on a wire.

The bytes of one client a round are really written, read back and compared, so that the formula that prices the others
cannot drift from the codec; `exact` does so for everybody. On a GPU, which every look has to wait for, that is one
client of the first rounds and then one in a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.accel.time_slots import time_slot
from fedloom.chance import Chance
from fedloom.codec import Codec, Cost, Expected, Frame, Part, Range, Stamp, base_hash
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.engine.storage.client_states import ClientStates
from fedloom.errors import RunStopped
from fedloom.method import Method
from fedloom.neurons.rows import rows_of
from fedloom.parts.upload.as_sent import AsSent
from fedloom.round import Engine
from fedloom.world.simulated import MEASURED

LOOK_EVERY = 5.0  # seconds between real messages on a GPU
CARRIED = (torch.float32, torch.int64)  # kinds of extras that travel; a client derives others by itself
REPORT = {"examples": Range(0, whole=True), "steps": Range(0, whole=True), "loss": Range()}


@dataclass
class Wire:
    """An engine whose replies arrive as the codec brings them; downloads are whole float32 numbers."""

    engine: Engine
    method: Method
    setting: Setting
    codec: Codec = Codec()
    exact: bool = False
    residuals: ClientStates = field(init=False, repr=False)  # what rounding took from each client, with feedback
    priced: tuple[Cost, Cost] | None = field(default=None, repr=False)  # the round as it was sent, lost replies too
    _seen: tuple[Part, ...] = field(default=(), repr=False)  # the last masks, described
    _whole: dict[tuple[str | int, ...], tuple[Cost, Cost]] = field(default_factory=dict, repr=False)
    _looked: int = field(default=-1, repr=False)  # when a reply was really written last
    _looks: bool = field(default=True, repr=False)  # is one written this round?
    _made: bool = field(default=False, repr=False)  # were masks made of neurons then?

    def __post_init__(self) -> None:
        """Nobody has sent anything yet."""
        self.residuals = ClientStates(self.setting.fleet.size, torch.device("cpu"))

    def __call__(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, then write and read."""
        reply = self.engine(ids, task, chance)
        self._looks = self._may_look(task)
        plain = self.codec.values == "float32"
        if plain and not self._looks:
            self.prices(task, reply)
            return reply
        keys = chance.key("codec", ids.to(task.model.device, non_blocking=True))
        written, received = reply.params, reply
        if not plain:
            written, brought = self._rounded(reply, reply.params - task.model, keys)
            received = reply._replace(params=task.model + brought)
        if self._looks:
            self._check(task, reply, received, written, keys)
        else:
            self.prices(task, reply)
        return received

    def _may_look(self, task: Task) -> bool:
        """Is a reply really written this round?"""
        if self.exact or task.model.device.type == "cpu" or task.round <= 2:
            return True
        due, self._looked = time_slot(LOOK_EVERY) != self._looked, time_slot(LOOK_EVERY)
        return due

    def _rounded(self, reply: Reply, change: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What is written [C, P] and how it is read: changes, which are smaller than weights and round better.

        On the host, where the bytes are written too. A client remembers what it sent, whether it arrives or not; one
        that may not send keeps what it has.
        """
        mask, sends = None if reply.mask is None else reply.mask.cpu(), reply.arrived.cpu().nonzero().flatten()
        wanted, ids = change.cpu(), reply.ids.cpu()[sends].tolist()
        residual = torch.zeros_like(wanted)
        if self.codec.feedback:
            residual[sends] = self.residuals.get(ids, {"residual": residual.new_zeros(residual.shape[1])})["residual"]
        wanted, brought, left = self.codec.correct(wanted, residual, keys.cpu(), mask, self.setting.layout)
        if self.codec.feedback:
            self.residuals.put(ids, {"residual": left[sends]})
        return wanted.to(change.device), brought.to(change.device)

    def prices(self, task: Task, reply: Reply) -> tuple[Cost, Cost]:
        """What the cohort's downloads and uploads weigh [C each], apart by values, indices and overhead."""
        if task.mask is not None or reply.mask is not None:
            return self._priced(task, reply)
        names: tuple[str | int, ...] = (*task.extras, "", *reply.extras, "", *reply.report, len(reply.ids))
        if names not in self._whole:  # whole models weigh the same in every round
            self._whole[names] = self._priced(task, reply)
        self.priced = self._whole[names]
        return self.priced

    def _priced(self, task: Task, reply: Reply) -> tuple[Cost, Cost]:
        """By the formula."""
        asked, sent = self.asked(task), self._sent(task, reply)
        down = Codec().size(self.frame(task.extras, {}, asked), asked)
        up = self.codec.size(self.frame(reply.extras, ranges_of(reply), sent), sent)
        self.priced = _for_each(down, len(reply.ids)), _for_each(up, len(reply.ids))
        return self.priced

    def price(self, task: Task, reply: Reply) -> tuple[Tensor, Tensor]:
        """The same as totals, as a simulated world asks for them."""
        down, up = self.prices(task, reply)
        return down.total.to(reply.ids.device), up.total.to(reply.ids.device)

    def _sent(self, task: Task, reply: Reply) -> Part:
        """What goes up; where the server chose the part, which it is need not travel."""
        if isinstance(self.method.upload, AsSent):
            return self.asked(task)._replace(known=True)
        return self._described(reply.mask, None, self.method.upload.rows)

    def asked(self, task: Task) -> Part:
        """What goes down."""
        return self._described(task.mask, task.keep, self.method.mask.rows)

    def _described(self, mask: Tensor | None, keep: Tensor | None, rows: bool) -> Part:
        """A mask by the neurons that make it up, if some do; some masks are so but for a few numbers."""
        if mask is None or (keep is None and not rows):
            return Part(mask)
        found = next((part for part in self._seen if part.mask is mask), None)
        if found is None:
            neurons = self.setting.neurons
            keep = rows_of(neurons, mask) if keep is None else keep
            rows = keep.shape[1] > neurons.size
            if self._looks:
                made = (neurons.expand(keep, rows) == mask).all(1) | ~mask.any(1)  # nothing is left of a lost reply
                self._made = bool(made.all())
            found = Part(mask, keep, rows) if self._made else Part(mask)
            self._seen = (found, *self._seen[:1])
        return found

    def frame(self, extras: State, report: dict[str, Range], part: Part) -> Frame:
        """What both ends know of such a message before it is written."""
        carried = {name: (v.dtype, tuple(v.shape[1:])) for name, v in extras.items() if v.dtype in CARRIED}
        neurons = None if part.keep is None else self.setting.neurons  # else the network may be one without a map
        return Frame(self.setting.layout, neurons, carried, report)

    def _check(self, task: Task, reply: Reply, received: Reply, written: Tensor, keys: Tensor) -> None:
        """Write and read one reply, or all; it must come back as simulated, in as many bytes as priced.

        `written` [C, P] are the weights or, where they are rounded, the changes.
        """
        part = self._sent(task, reply)
        frame = self.frame(reply.extras, ranges_of(reply), part)
        _, up = self.prices(task, reply)
        base, plain = base_hash(task.model), self.codec.values == "float32"
        for row in range(len(reply.ids)) if self.exact else range(min(1, len(reply.ids))):
            stamp = Stamp("simulation", task.round, int(reply.ids[row]), base)
            mask, keep = (None if given is None else given[row] for given in (part.mask, part.keep))
            own = part._replace(mask=mask, keep=keep)
            values = written[row]
            if not bool(values.isfinite().all()):
                continue  # a diverged client: a real receiver refuses it
            extras = {name: reply.extras[name][row] for name in frame.extras}
            report = {name: float(reply.report[name][row]) for name in frame.report}
            data = self.codec.encode(frame, stamp, values, own, extras, report, keys[row].cpu())
            message = self.codec.decode(data, Expected(frame, stamp, own))
            zero = task.model if plain else torch.zeros_like(task.model)
            brought = message.on(zero.cpu()).to(task.model.device)
            mask = None if own.whole else own.numbers(frame.neurons)
            wanted = received.params[row] if plain else received.params[row] - task.model
            got = brought if plain else (task.model + brought) - task.model
            same = (got == wanted) | (torch.zeros_like(wanted, dtype=torch.bool) if mask is None else ~mask)
            if len(data) != int(up.total[row]) or not bool(same.all()):
                raise RunStopped(
                    f"the codec brought client {int(reply.ids[row])}'s reply of round {task.round} back changed, or in "
                    f"{len(data)} bytes instead of {int(up.total[row])}: please report this."
                )


def ranges_of(reply: Reply) -> dict[str, Range]:
    """What a report may say, the rule's own columns included; those of the world are not the client's."""
    return {name: REPORT.get(name, Range()) for name in reply.report if name not in MEASURED}


def _for_each(cost: Cost, count: int) -> Cost:
    """A price per client, where one price is everybody's."""
    return Cost(*(part.expand(count) if part.dim() == 0 else part for part in cost))
