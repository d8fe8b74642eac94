"""Other inputs than the example, of the same shapes."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import absorb, uniform


def other_inputs(inputs: tuple[Any, ...], sign: int) -> tuple[Any, ...]:
    """Inputs with other numbers, all of this sign (1 or -1); words as large as the example's."""
    return tuple(other(x, sign) for x in inputs)


def other(x: Any, sign: int) -> Any:
    """One input with other numbers; what holds no numbers stays."""
    if not isinstance(x, Tensor) or not x.numel() or x.dtype == torch.bool:
        return x
    drawn = shares(x, 2 + sign).to(x.device)
    return sign * drawn.to(x) if x.is_floating_point() else (drawn * (int(x.max()) + 1)).to(x)


def lively(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The example, with numbers in place of blanks, which would show nothing in a trial."""
    return tuple(4 * shares(x, 0).to(x) - 2 if blank(x) else x for x in inputs)


def blank(x: Any) -> bool:
    """Whether an input is a tensor of one number everywhere."""
    return isinstance(x, Tensor) and x.is_floating_point() and bool(x.numel()) and bool((x == x.flatten()[0]).all())


def shares(x: Tensor, key: int) -> Tensor:
    """Numbers from 0 to 1 of this shape, always the same ones."""
    return uniform(absorb(torch.tensor(key), torch.arange(prod(x.shape)))).view(x.shape)
