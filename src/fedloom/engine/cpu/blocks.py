"""A frozen chain with its neurons in another order, trained ones first: what moves of a weight is then one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.engine.gradient.frozen import Cut, Frozen
from fedloom.layout import Layout


class Blocks(NamedTuple):
    """What moves of every layer of a chain, whose columns are the neurons that are the rows of the layer before."""

    names: tuple[str, ...]  # of the layers
    cuts: tuple[Cut, ...]

    @property
    def sizes(self) -> list[tuple[int | None, int | None]]:
        """Rows and columns that move; None: all."""
        return [(_count(cut.rows), _count(cut.columns)) for cut in self.cuts]

    def sort(self, layout: Layout, first: Tensor) -> dict[str, Tensor]:
        """Tensors of the models [C, P], each by itself, with every client's trained neurons first."""
        given = layout.split(first)
        found = {}
        for name, cut in zip(self.names, self.cuts):
            weight, bias = given[f"{name}.weight"], given.get(f"{name}.bias")
            rows, columns = _order(cut.rows, weight.shape[1]), _order(cut.columns, weight.shape[2])
            found[f"{name}.weight"] = _picked(_picked(weight, rows, 0), columns, 1)
            if bias is not None:
                found[f"{name}.bias"] = _picked(bias, rows, 0)
        return found

    def put_back(self, layout: Layout, first: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """The models [C, P] with what moved in its place, and all else as it was to the last bit."""
        last = first.clone(memory_format=torch.contiguous_format)
        given = layout.split(last)
        for name, cut, (r, c) in zip(self.names, self.cuts, self.sizes):
            for kind, column in (("weight", cut.columns), ("bias", None)):
                if (own := given.get(f"{name}.{kind}")) is not None:
                    moved = tensors[f"{name}.{kind}"][:, :r]
                    _put(own, cut.rows, column, moved[..., :c] if kind == "weight" else moved)
        return last


def blocks_of(names: Sequence[str], frozen: Frozen, layout: Layout) -> Blocks | None:
    """What moves of the layers of a chain; None: it is not of blocks."""
    may = layout.split(frozen.mask)
    shapes = [may[f"{name}.weight"].shape[1:] for name in names]
    cuts = tuple(frozen.cuts.get(name, Cut(None, None, shape)) for name, shape in zip(names, shapes))
    if not all(_equal(*pair) for pair in zip([None, *(cut.rows for cut in cuts)], [*(c.columns for c in cuts), None])):
        return None
    uncut = [name for name in names if name not in frozen.cuts]  # nothing may move of one, too
    return Blocks(tuple(names), cuts) if all(may[f"{name}.weight"].all() for name in uncut) else None


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _count(index: Tensor | None) -> int | None:
    return None if index is None else index.shape[1]


def _order(chosen: Tensor | None, size: int) -> Tensor | None:
    """All neurons [C, size] with each client's chosen [C, n] first."""
    if chosen is None:
        return None
    rest = chosen.new_ones(len(chosen), size, dtype=torch.uint8).scatter_(1, chosen, 0)
    return rest.argsort(dim=1, stable=True)


def _picked(values: Tensor, order: Tensor | None, axis: int) -> Tensor:
    """Every client's own entries along an axis of [C, ...]; contiguous and not the same memory."""
    if order is None:
        return values.clone(memory_format=torch.contiguous_format) if axis == 0 else values
    found = torch.empty_like(values, memory_format=torch.contiguous_format)
    for own, index, out in zip(values, order, found):
        torch.index_select(own, axis, index, out=out)
    return found


def _put(values: Tensor, rows: Tensor | None, columns: Tensor | None, moved: Tensor) -> None:
    """Every client's own rows and columns of [C, ...] in place."""
    for c, own in enumerate(values):
        if rows is not None and columns is not None:
            own[rows[c][:, None], columns[c]] = moved[c]
        elif rows is not None:
            own.index_copy_(0, rows[c], moved[c])
        elif columns is not None:
            own.index_copy_(1, columns[c], moved[c])
        else:
            own.copy_(moved[c])
