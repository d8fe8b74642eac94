"""The wire: every reply passes through the codec, priced to the byte and rounded as on a real network.

One client's reply per round is written in bytes, read back and compared, so that the formula that prices the other
replies cannot drift from the codec; with `exact`, every client's is. On a GPU, where every check waits for the device,
one reply is checked in each of the first rounds, and then one every few seconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.accel.time_slots import time_slot
from fedloom.chance import Chance
from fedloom.codec import Expected, Stamp, base_hash
from fedloom.core.costs import Bytes, Costs
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.engine.protocol import Engine
from fedloom.engine.storage.client_states import ClientStates
from fedloom.errors import RunStopped
from fedloom.world.message_parts import MessageParts, ranges_of

CHECK_EVERY = 5.0  # seconds between checked messages on a GPU
RESIDUALS = "residuals."


class Wire:
    """An engine whose replies arrive as the codec reads them; tasks carry plain float32 numbers."""

    def __init__(self, engine: Engine, parts: MessageParts, setting: Setting, exact: bool = False) -> None:
        self.engine, self.parts, self.codec, self.setting, self.exact = engine, parts, parts.codec, setting, exact
        waits = not parts.method.pace.barrier
        self._residuals = ClientStates(setting.fleet.size, torch.device("cpu"), waits=waits)  # rounding errors
        self._last_check = -1  # the time slot of the last checked message on a GPU

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, then price, round and check the replies."""
        reply = self.engine.train(ids, task, chance)
        if reply.params.dtype != torch.float32:  # numbers travel as float32, whatever the network computes in
            reply = reply._replace(params=reply.params.float().to(reply.params.dtype))
        checks = self._checks_now(task)
        self.parts.begin_round(compares=checks)
        prices = self.parts.prices(task, reply)
        priced = Costs(*prices)
        plain = self.codec.values == "float32"
        if plain and not checks:
            return reply._replace(costs=priced)
        keys = chance.key("codec", ids.to(task.model.device, non_blocking=True))
        written, received = reply.params, reply
        if not plain:
            written, brought = self._rounded(reply, reply.params - task.model, keys)
            received = reply._replace(params=task.model + brought)
        if checks:
            self._check(task, reply, received, written, keys, prices[1])
        return received._replace(costs=priced)

    def personal(self, model: Tensor) -> Tensor | None:
        """The engine's personal accuracies; clients' own models are never sent."""
        return self.engine.personal(model)

    def settle(self, ids: list[int]) -> None:
        """The engine's states, and rounding errors."""
        self._residuals.settle(ids)
        self.engine.settle(ids)

    def save(self) -> State:
        """The engine's state, and the rounding errors of each client."""
        own = {RESIDUALS + name: value for name, value in self._residuals.save().items()}
        return {**self.engine.save(), **own}

    def load(self, state: State) -> None:
        """Put both back."""
        own = {name.removeprefix(RESIDUALS): v for name, v in state.items() if name.startswith(RESIDUALS)}
        self._residuals.load(own)
        self.engine.load(state)

    def describe(self) -> dict[str, Any]:
        """The engine's description; the codec is in the experiment."""
        return self.engine.describe()

    def _checks_now(self, task: Task) -> bool:
        """Whether a reply of this round is written and read back."""
        if self.exact or task.model.device.type == "cpu" or task.round <= 2:
            return True
        due, self._last_check = time_slot(CHECK_EVERY) != self._last_check, time_slot(CHECK_EVERY)
        return due

    def _rounded(self, reply: Reply, change: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What is written and what is read [C, P]: changes, which are smaller than weights and lose less by rounding.

        Computed on the host, where the bytes are written too. A client's rounding error is updated when it sends,
        whether the reply arrives or not.
        """
        mask, sends = None if reply.mask is None else reply.mask.cpu(), reply.arrived.cpu().nonzero().flatten()
        wanted, ids = change.float().cpu(), reply.ids.cpu()[sends].tolist()
        residual = torch.zeros_like(wanted)
        if self.codec.feedback:
            residual[sends] = self._residuals.get(ids, {"residual": residual.new_zeros(residual.shape[1])})["residual"]
        wanted, brought, left = self.codec.correct(wanted, residual, keys.cpu(), mask, self.setting.layout)
        if self.codec.feedback:
            self._residuals.put(ids, {"residual": left[sends]})
        return wanted.to(change.device), brought.to(change.device)

    def _check(self, task: Task, reply: Reply, received: Reply, written: Tensor, keys: Tensor, up: Bytes) -> None:
        """Write and read one reply, or all; it must be read as simulated, in as many bytes as priced.

        `written` [C, P]: the weights or, if they are rounded, the changes.
        """
        part = self.parts.sent(task, reply)
        frame = self.parts.frame(reply.extras, ranges_of(reply), part)
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
