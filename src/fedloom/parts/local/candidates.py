"""Local: sparse training, and now and then an offer of weights that the sparse model should take in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.sparsity import Sparsity, numbered, offered, places_in, smallest
from fedloom.core.types import Setting, State, Task

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class Candidates(LocalRule):
    """Only the part sent exists; in rounds with an exchange a client offers the inactive weights of highest gradient.

    It sends their `places` and, with `values`, the gradients there. `extrude` is the weight of the squared norm of the
    weights that the exchange may drop, which is added to the loss of those rounds.
    """

    sparsity: Sparsity = Sparsity()
    values: bool = True
    extrude: float = 0.0

    @property
    def traits(self) -> Traits:
        """The rest of the model is zero on the client."""
        return Traits(cuts=True, corrects=self.extrude > 0 and self.sparsity.density < 1)

    def clash(self, method: Method) -> str | None:
        """Refuse chains, in which offers would not reach the mask, and rounds that are not everybody's."""
        if method.local != self:
            return "its offers reach the mask only if it stands alone; take it out of the chain."
        if not method.pace.barrier:
            return "clients offer weights in rounds that are the same for all; leave pace out."
        return None

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The tensor of weights of each number [C, P] and of each place in an offer [C, n], which clients know."""
        most = [int(self.sparsity.alpha * count) for count in self.sparsity.counts(setting)]
        slots = _slots(tuple(most), ids.device)
        tensors = numbered(setting.layers, setting.layout.total, ids.device)
        return {"tensors": tensors.expand(len(ids), -1), "slots": slots.expand(len(ids), -1)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The sent part of the model."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """The mask."""
        return task.mask

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """Add the gradient of the squared norm of the smallest weights."""
        if self.extrude == 0 or task.mask is None or not self.sparsity.adjusts(task.round):
            return grads
        part = self.sparsity.part(task.round)
        low = smallest(params, task.mask, places_in(task.extras["tensors"][0]), part)
        return torch.where(low, grads + 2 * self.extrude * params, grads)

    def probes(self, task: Task) -> bool:
        """In rounds with an exchange."""
        return self.sparsity.adjusts(task.round)

    def probed(self, task: Task, state: State, last: Tensor, grads: Tensor) -> State:
        """Keep the gradients for `finish`."""
        return {"gradient": grads}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Offer weights, if it is the round for it."""
        if not self.probes(task):
            return last, {}, {}
        slots, part = task.extras["slots"], self.sparsity.part(task.round)
        places = torch.full(slots.shape, -1, dtype=torch.int64, device=last.device)
        values = torch.zeros(slots.shape, device=last.device)
        if task.mask is not None and len(last):
            every = places_in(task.extras["tensors"][0])
            turn = {id(place) for place in self.sparsity.turn(task.round, every)}
            for number, place in enumerate(every, 1):
                here = (slots[0] == number).nonzero().flatten()
                if id(place) in turn and len(here):
                    found = offered(task.mask, state["gradient"], place, part, len(here))
                    places[:, here], values[:, here] = found[0], found[1].float()
        return last, {"places": places, **({"values": values} if self.values else {})}, {}


@lru_cache(maxsize=8)
def _slots(most: tuple[int, ...], device: torch.device) -> Tensor:
    """The tensor of weights of each place in an offer [n], counted from 1; copied to the device once."""
    return torch.arange(1, len(most) + 1, dtype=torch.int32).repeat_interleave(torch.tensor(most)).to(device)
