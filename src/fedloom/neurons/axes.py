"""The neurons along each axis of a tensor."""

from math import prod
from typing import NamedTuple

from torch import Tensor

FIXED_GROUP = "(input)"  # never cut: the model's inputs, and neurons that are added to them


class Segment(NamedTuple):
    """Part of an axis: neurons `start` to `stop` of a group in order, each with `fan` entries."""

    group: str
    fan: int
    start: int
    stop: int


class Axes(NamedTuple):
    """One tensor of the flat vector and the neurons along its axes."""

    name: str
    shape: tuple[int, ...]
    start: int  # of its first number in the flat vector
    along: tuple[int | None, ...]  # per axis, the number of the map's list along it; None: no neurons
    output: int | None  # the axis of the neurons that own its entries
    trained: bool  # a parameter, not a buffer
    weight: bool  # leads into its neurons and so counts in their scores
    positions: int  # multiplications by each entry for one example

    @property
    def stop(self) -> int:
        """The place after its last number in the flat vector."""
        return self.start + prod(self.shape)

    def owners(self, rows: bool) -> list[tuple[int, int]]:
        """(axis, list) of the neurons that must be kept for an entry to stay: all, or with `rows` its output neuron."""
        return [
            (axis, which)
            for axis, which in enumerate(self.along)
            if which is not None and not (rows and axis != self.output)
        ]

    def kept(self, one: Tensor, counts: list[Tensor], rows: bool) -> Tensor:
        """Entries kept [...]: the product over axes of the kept entries of each list; `one` is ones [...]."""
        owners = dict(self.owners(rows))
        total = one * prod(size for axis, size in enumerate(self.shape) if axis not in owners)
        for which in owners.values():
            total = total * counts[which]
        return total


def on_axis(kept: Tensor, axis: int, rank: int) -> Tensor:
    """View bools [C, n] as [C, 1, .., n, .., 1], to broadcast along one axis of a tensor of this rank."""
    return kept.view(kept.shape[0], *(1,) * axis, -1, *(1,) * (rank - axis - 1))


def segments_of(names: list[tuple[str, int]]) -> tuple[Segment, ...]:
    """Join entries (group, neuron) in order into segments."""
    runs: list[tuple[str, int, int]] = []
    for group, place in names:
        if runs and runs[-1][:2] == (group, place):
            runs[-1] = group, place, runs[-1][2] + 1
        else:
            runs.append((group, place, 1))
    segments: list[Segment] = []
    for group, place, fan in runs:
        if segments and segments[-1][:2] == (group, fan) and segments[-1].stop == place:
            segments[-1] = segments[-1]._replace(stop=place + 1)
        else:
            segments.append(Segment(group, fan, place, place + 1))
    return tuple(segments)
