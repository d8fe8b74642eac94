"""The rule of `einsum` with two operands: a product of matrices, with its axes in any order."""

import torch
from torch import Tensor

from fedloom.neurons.calls import Call
from fedloom.neurons.ids import Spread, settled
from fedloom.neurons.products import dense, met


def einsum(call: Call) -> Tensor:
    """Bring both operands into the order of a product of matrices, and its answer into the order that is asked for."""
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    one, other, out = parsed(equation, len(operands))
    a, b = operands
    lead = [axis for axis in out if axis in one and axis in other]
    inner = [axis for axis in one if axis in other and axis not in out]
    rows, columns = [axis for axis in out if axis not in other], [axis for axis in out if axis not in one]
    if not set(one + other) <= set(lead + inner + rows + columns):
        raise Spread("it sums over an axis of one operand alone")
    if b.dim() == 2 and call.name_of(b) is not None:
        if lead or list(one[-1]) != inner or [*rows, *columns] != list(out):
            raise Spread("it is a product with a parameter whose axes are not the last ones")
        return dense(call, a, b, None, outputs_first=other[0] in columns)
    sizes = dict(zip(one + other, (*a.shape, *b.shape)))
    left = ordered(call, a, one, [lead, rows, inner], sizes)
    right = ordered(call, b, other, [lead, inner, columns], sizes)
    shape = torch.Size((*(sizes[axis] for axis in lead), left[0].shape[-2], right[0].shape[-1]))
    found = met(call, left, right, shape).contiguous().view([sizes[axis] for axis in (*lead, *rows, *columns)])
    order = [*lead, *rows, *columns]
    return settled(found.permute([order.index(axis) for axis in out]))


def parsed(equation: object, operands: int) -> tuple[str, str, str]:
    """The axes of both operands and of the answer."""
    words = equation.replace(" ", "") if isinstance(equation, str) else ""
    inputs, arrow, out = words.partition("->")
    parts = inputs.split(",")
    if operands != 2 or len(parts) != 2 or not arrow or "." in words:
        raise Spread("only products of two operands whose axes are all written have a rule")
    if any(len(set(axes)) < len(axes) for axes in (*parts, out)):
        raise Spread("it takes a diagonal")
    return parts[0], parts[1], out


def ordered(call: Call, x: Tensor, axes: str, order: list[list[str]], sizes: dict[str, int]) -> tuple[Tensor, Tensor]:
    """An operand and its ids as leading axes and one for each of the other two kinds."""
    places = [axes.index(axis) for axis in (*order[0], *order[1], *order[2])]
    ends = [torch.Size([sizes[axis] for axis in kind]).numel() for kind in order[1:]]
    shape = [*(sizes[axis] for axis in order[0]), *ends]
    return x.permute(places).reshape(shape), settled(call.ids(x).permute(places).reshape(shape))
