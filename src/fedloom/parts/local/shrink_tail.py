"""Local: clients make the last components of their adapters small, and give up those that became smaller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.adapters import adapters_of
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap
from fedloom.parts.local.sub_model import SubModel

PART = SubModel()


class Tails(NamedTuple):
    """The tails of every client's adapters; L adapters of W components."""

    rank: Tensor  # [C] components that the client has
    first: Tensor  # [C] the first component of the tail
    norms: Tensor  # [C, L, 2] of A's rows and B's columns in the tail
    code: Tensor  # [C, P] 1 + the place of each number's component among [L, 2, W]; 0: not of an adapter
    within: Tensor  # [C, L, 2, W] which components are in the tail

    @property
    def total(self) -> Tensor:
        """`sum ||B[:, q:]|| ||A[q:, :]||` [C]."""
        return self.norms.prod(2).sum(1)


@dataclass(frozen=True)
class ShrinkTail(LocalRule):
    """Adds `penalty * sum ||B[:, q:]|| ||A[q:, :]||` to the loss, `q = max(least, floor(gamma * rank))`.

    Clients train only the part they were sent, as with `SubModel`. With `prune`, a client whose sum is smaller after
    training than before has rank q from then on.
    """

    penalty: float = 1e-3
    gamma: float = 0.99
    least: int = 1
    prune: bool = True

    def __post_init__(self) -> None:
        if not self.penalty >= 0:
            raise BadExperiment(f"penalty (of the last components) is {self.penalty}; it must not be negative.")
        if not 0 <= self.gamma <= 1:
            raise BadExperiment(f"gamma (share of components that are not shrunk) is {self.gamma}; it lies in [0, 1].")
        if self.least < 1:
            raise BadExperiment(f"least (components that a client keeps) is {self.least}; it must be 1 or more.")

    @property
    def traits(self) -> Traits:
        """The rest of the network is not on the client; a penalty of 0 changes no gradient."""
        return Traits(corrects=self.penalty > 0, cuts=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The neurons that the client was sent last, and the components that it has left, at most all."""
        rank = adapters_of(setting, type(self).__name__)[0].rank
        left = {"rank": torch.tensor(rank, device=model.device)} if self.prune else {}
        return {**PART.client_state(setting, model), **left}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The sent part of the model."""
        return PART.start(task, state, params)

    def trains(self, task: Task) -> Tensor | None:
        """The mask."""
        return PART.trains(task)

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The global model cut to the neurons that the client was sent last."""
        return PART.personal(setting, model, state)

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The component of each number [C, P], one row for all, and a tensor of the adapters' sizes [C, L, W]."""
        code, adapters = _codes(setting.neurons)
        return {"components": code.expand(len(ids), -1), "adapters": adapters.expand(len(ids), -1, -1)}

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The penalty's gradient: each factor times the other's norm over its own; 0 where its own is 0."""
        found = self._tails(task, params)
        own = found.norms
        rate = torch.where(own > 0, own.flip(2) / own.clamp(min=torch.finfo(own.dtype).tiny), 0) * self.penalty
        each = torch.where(found.within, rate[..., None], 0).flatten(1)
        each = torch.nn.functional.pad(each, (1, 0))  # 0 for numbers of no adapter
        width = grads.shape[1]
        return grads + each.gather(1, found.code[:, :width]) * params[:, :width]

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Compare the tails before and after, and say what rank is left."""
        _, _, kept = PART.finish(task, state, first, last, steps)
        if not self.prune:
            return last, {}, kept
        before, after = (self._tails(task, params) for params in (first, last))
        left = torch.where(after.total < before.total, before.first, before.rank)
        rank = torch.minimum(left, before.rank)
        return last, {"rank": rank}, {**kept, "rank": rank}

    def _tails(self, task: Task, params: Tensor) -> Tails:
        """The tails in these parameters."""
        code, (adapters, width) = task.extras["components"].long(), task.extras["adapters"].shape[1:]
        count, shape = 2 * adapters * width, (len(params), adapters, 2, width)
        squares = params.square() if task.mask is None else torch.where(task.mask, params.square(), 0)
        there = torch.ones_like(params) if task.mask is None else task.mask.to(params.dtype)
        empty = params.new_zeros(len(params), 1 + count)
        each, has = (empty.scatter_add(1, code, values)[:, 1:].view(shape) for values in (squares, there))
        rank = (has[:, :, 0] > 0).sum(2).amax(1)  # [C]
        first = (rank * self.gamma + 1e-6).floor().long().clamp(min=self.least)
        within = (torch.arange(width, device=params.device) >= first[:, None])[:, None, None].expand(shape)
        return Tails(rank, first, torch.where(within, each, 0).sum(3).sqrt(), code, within)


@lru_cache(maxsize=8)
def _codes(neurons: NeuronMap) -> tuple[Tensor, Tensor]:
    """`Tails.code` for the whole model [P], and zeros of the adapters' sizes [1, L, W]."""
    width = neurons.pairs[0].rank
    code = torch.zeros(neurons.total, dtype=torch.int32)
    for number, pair in enumerate(neurons.pairs):
        for side, factor in enumerate((pair.a, pair.b)):
            rows = factor.of(code)
            place = 1 + (2 * number + side) * width + torch.arange(width, dtype=torch.int32)
            factor.put(code, place[:, None].expand_as(rows))
    device = neurons.lists[0].device
    return code.to(device), torch.zeros(1, len(neurons.pairs), width, dtype=torch.uint8, device=device)
