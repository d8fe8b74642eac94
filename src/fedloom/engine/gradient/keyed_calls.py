"""Random numbers that a network's own code draws, from a key in place of torch's generators.

Dropout as a function, `torch.rand`, the dropout inside attention and between recurrent layers ...: while `KeyedCalls`
is entered, each such call hashes (key, number of the call in this pass, place in the batch). So a pass draws the same
numbers in every engine, chunk, thread and order.
"""

from __future__ import annotations

import random
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.chance import absorb
from fedloom.engine.gradient.draw import Draw
from fedloom.engine.gradient.laws import LAWS
from fedloom.engine.gradient.recompute import recomputing
from fedloom.errors import BadModel
from fedloom.layout import copied

CALLS = 0x63616C6C73  # parts these keys from those of dropout layers, which absorb small numbers

# functions written in Python inside which others draw; a mode sees them as one call
COMPOSED = (
    F.dropout1d, F.dropout2d, F.dropout3d, F.gumbel_softmax, F.multi_head_attention_forward, torch.autograd.grad,
)  # fmt: skip


@cache
def _opened(function: Any) -> Any:
    """The function, run so that a mode sees the calls inside it and not the function itself."""
    closed = {name: _never for name in function.__globals__ if name.startswith("has_torch_function")}
    own = FunctionType(
        function.__code__, {**function.__globals__, **closed}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    own.__kwdefaults__ = function.__kwdefaults__
    return own


def _never(*_: object) -> bool:
    """No function is overridden."""
    return False


class KeyedCalls(TorchFunctionMode):
    """One pass of one client, or of a cohort under vmap, whose random calls are drawn from `key` [].

    A cohort whose examples lie one after another has a key for each client [C].
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = absorb(key, CALLS), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call; one that draws is replaced."""
        kwargs = kwargs or {}
        law = LAWS.get(name := getattr(func, "__name__", ""))
        if func in COMPOSED or (law is not None and isinstance(func, FunctionType) and func.__module__ == F.__name__):
            with self:
                return _opened(func)(*args, **kwargs)
        if law is None or isinstance(func, FunctionType):
            return func(*args, **kwargs)
        answer = law(Draw(self.fresh, func, name), *args, **kwargs)
        return func(*args, **kwargs) if answer is None else answer

    def fresh(self, name: str) -> Tensor:
        """The key of one more random call."""
        if recomputing():
            raise BadModel(
                f"torch.utils.checkpoint runs a part of the network again in the backward pass, and torch.{name} in it "
                "would draw other numbers than before; use nn.Dropout there, or turn checkpointing off."
            )
        self.calls += 1
        return absorb(self.key, self.calls)


class Draws(NamedTuple):
    """How the code of a network draws random numbers in a training pass."""

    keyed: bool = False  # by functions that `KeyedCalls` stands in for
    unkeyed: bool = False  # from generators of torch, NumPy or Python that no key stands for


def draws_of(module: nn.Module, x: Tensor) -> Draws:
    """How a network's code draws random numbers, tried on one batch.

    `BadModel` for calls that are known to follow no key. A network that fails on the inputs draws nothing: other checks
    say what is wrong with it.
    """
    copy = copied(module).train()
    calls = KeyedCalls(torch.zeros((), dtype=torch.int64, device=x.device))
    with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
        before = _generators(x.device)
        try:
            with calls:
                answer = copy(x if len(x) > 1 else torch.cat([x, x]))  # norms need two examples
                trained = [p for p in copy.parameters() if p.requires_grad]
                torch.autograd.grad(answer.float().sum(), trained, allow_unused=True)
        except BadModel:
            raise
        except Exception:  # noqa: BLE001  a user's code may raise anything
            return Draws(calls.calls > 0)
        return Draws(calls.calls > 0, before != _generators(x.device))


def _generators(device: torch.device) -> tuple[Any, ...]:
    """The states of the generators that code may draw from unseen: torch's, NumPy's and Python's."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), str(numpy), random.getstate()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).numpy().tobytes())
    return tuple(states)
