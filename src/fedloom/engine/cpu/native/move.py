"""An optimiser and a local rule's shift as the C code reads them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.rows import rows
from fedloom.core.rule import Shift
from fedloom.core.types import State

PLAIN, HEAVY, ADAM = range(3)  # in the order of native/move.h, and so are these
FIRST, SECOND, START, PUSH, FREE = (1 << place for place in range(5))
MOMENTS = (("first", FIRST), ("second", SECOND))


class RuleFacts(ctypes.Structure):
    """`Rule` of native/move.h."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        ("uses", ctypes.c_int64),
        ("rate", ctypes.c_double),
        ("shrink", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("keep", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("blend", ctypes.c_double),
        ("fresh", ctypes.c_double),
        ("kept", ctypes.c_void_p * 2),
        ("pull", ctypes.c_void_p),
        ("push", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    ]


def why_not_optimiser(optimiser: Optimiser) -> str:
    """Why the C code cannot take an optimiser's steps; empty if it can."""
    if not isinstance(optimiser, (Sgd, Adam)):
        return f"it takes steps of Sgd and of Adam, not of {type(optimiser).__name__}"
    if optimiser.clip is not None:
        return "clipping needs the norm of the whole gradient, and it steps layer by layer"
    return ""


@dataclass(frozen=True)
class Moves:
    """How some clients' weights move in a round; moments that are kept change in place."""

    optimiser: Optimiser
    rate: float
    shift: Shift = field(default_factory=Shift)
    moments: State = field(default_factory=dict)  # as the optimiser begins them; empty: they begin anew, and are lost
    free: Tensor | None = None  # [C, P] which weights move; None: all

    @property
    def kind(self) -> int:
        """What a step does with a gradient."""
        if isinstance(self.optimiser, Adam):
            return ADAM
        return HEAVY if self.optimiser.momentum else PLAIN

    @property
    def uses(self) -> int:
        """Which tensors of the weights' size a step reads, as bits: moments, the start, the push, what is free."""
        moments = {PLAIN: 0, HEAVY: FIRST, ADAM: FIRST | SECOND}[self.kind]
        shifts = (START if self.shift.pulls else 0) | (PUSH if self.shift.push is not None else 0)
        return moments | shifts | (0 if self.free is None else FREE)

    def rows(self, keep: slice) -> Moves:
        """The moves of some of the clients; their moments are the same memory."""
        free = None if self.free is None else self.free[keep]
        return replace(self, shift=self.shift.rows(keep), moments=rows(self.moments, keep), free=free)

    def facts(self, clients: int, steps: Tensor, most: int) -> RuleFacts:
        """What the C code reads and, of moments, writes; `steps` [C] are counted at once, of at most `most`."""
        optimiser, adam = self.optimiser, self.optimiser if isinstance(self.optimiser, Adam) else None
        pull = torch.as_tensor(self.shift.pull, dtype=torch.float32).expand(clients, 1).contiguous()
        push = None if self.shift.push is None else self.shift.push.to(torch.float32).contiguous()
        first, second = self.moments.get("first", self.moments.get("velocity")), self.moments.get("second")
        bias = None if adam is None else self._bias(adam, clients, most)
        free = None if self.free is None else self.free.to(torch.float32).contiguous()
        if adam is not None and self.moments:
            self.moments["count"].add_(steps[:, None])
        tensors = first, second, pull, push, bias, free
        assert all(one is None or (one.is_contiguous() and one.dtype == torch.float32) for one in tensors)
        *kept, pulls, pushes, biases, frees = (None if one is None else one.data_ptr() for one in tensors)
        facts = RuleFacts(
            self.kind, self.uses, self.rate, 1 - self.rate * optimiser.weight_decay, optimiser.weight_decay,
            optimiser.momentum, *((adam.beta2, adam.eps, 1 - adam.beta1, 1 - adam.beta2) if adam else [0.0] * 4),
            tuple(kept), pulls, pushes, biases, frees,
        )  # fmt: skip
        facts.memory = tensors  # as long as the addresses are
        return facts

    def _bias(self, adam: Adam, clients: int, most: int) -> Tensor:
        """What Adam divides its moments by [C, S, 2]."""
        before = self.moments["count"] if self.moments else torch.zeros(clients, 1)
        count = before + torch.arange(1, most + 1)
        return torch.stack((1 - adam.beta1**count, 1 - adam.beta2**count), -1)


def trial_moves(optimiser: Optimiser, params: Tensor, slopes: Tensor, shifts: bool) -> Moves:
    """Moves to compare with plain PyTorch's, from `params` with gradients `slopes` [C, P each].

    They are large enough to be seen, and such that no rounding error decides which way Adam goes.
    """
    steepest, largest = slopes.abs().max().clamp(min=1e-6).item(), params.abs().max().clamp(min=1e-3).item()
    way = 0.1 * largest  # of the steepest number in a step
    if isinstance(optimiser, Adam):
        optimiser, rate = replace(optimiser, eps=steepest), way
    else:
        rate = way / steepest
    pull = torch.linspace(0.5, 0.7, len(params), dtype=params.dtype)[:, None] * steepest / way
    shift = Shift(pull, 0.5 * slopes.roll(1, 1)) if shifts else Shift()
    return Moves(optimiser, rate, shift, optimiser.begin(params))
