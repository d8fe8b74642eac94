"""A Triton kernel for FedDD's importance: what each row is worth, in one pass over the models that writes no third."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedloom.neurons.axes import Axes


@triton.jit  # type: ignore[untyped-decorator]
def _worth(  # type: ignore[no-untyped-def]
    first, last, eps, out, START, ROWS, COLUMNS, FIRST, LAST,
    SQUARE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The sum of (squared) importances along each of a client's rows."""
    client = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    floor = tl.load(eps + client)
    first += client * FIRST + START
    last += client * LAST + START
    acc = tl.zeros((BR, BC), dtype=tl.float32)
    for column in range(0, COLUMNS, BC):
        c = column + tl.arange(0, BC)
        inside = (r < ROWS)[:, None] & (c < COLUMNS)[None, :]
        at = r[:, None] * COLUMNS + c[None, :]
        was, now = tl.load(first + at, mask=inside, other=0.0), tl.load(last + at, mask=inside, other=0.0)
        value = tl.abs(now - was) * tl.abs(now) / (tl.abs(was) + floor)
        acc += value * value if SQUARE else value
    tl.store(out + client * ROWS + r, tl.sum(acc, 1), mask=r < ROWS)


def row_sums(tensor: Axes, first: Tensor, last: Tensor, eps: Tensor, power: int) -> Tensor:
    """The importances of a tensor's rows [C, o], to this power and summed; `eps` [C, 1] is the layer's."""
    rows = tensor.shape[0]
    columns = (tensor.stop - tensor.start) // rows
    out = last.new_empty(len(last), rows)
    width = min(256, max(16, triton.next_power_of_2(columns)))
    height = max(1, 1024 // width)
    _worth[(triton.cdiv(rows, height), len(last))](
        first, last, eps, out, tensor.start, rows, columns, first.stride(0), last.stride(0),
        SQUARE=power == 2, BR=height, BC=width, num_warps=4,
    )  # fmt: skip
    return out
