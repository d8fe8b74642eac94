"""Which neurons run along the axes of one tensor?"""

from math import prod
from typing import NamedTuple

from torch import Tensor

FIXED_GROUP = "(input)"  # what is never cut: the model's inputs, and neurons that are added to them


class Segment(NamedTuple):
    """A stretch of an axis: neurons start to stop of a group in order, each with `fan` entries."""

    group: str
    fan: int
    start: int
    stop: int


class Axes(NamedTuple):
    """One tensor of the flat vector and the neurons along its axes."""

    name: str
    shape: tuple[int, ...]
    start: int  # its first place in the flat vector
    along: tuple[int | None, ...]  # per axis: which of the map's lists runs along it; None: no neurons
    output: int | None  # the axis of the neurons that own its entries
    trained: bool  # a parameter, not a buffer
    weight: bool  # leads into its neurons, so it counts in their scores
    positions: int  # how often one example multiplies by each entry

    @property
    def stop(self) -> int:
        """The place after its last."""
        return self.start + prod(self.shape)

    def owners(self, rows: bool) -> list[tuple[int, int]]:
        """(axis, list) of the neurons that must be kept: all, or with `rows` those that own the entry."""
        return [
            (axis, which)
            for axis, which in enumerate(self.along)
            if which is not None and not (rows and axis != self.output)
        ]

    def kept(self, one: Tensor, counts: list[Tensor], rows: bool) -> Tensor:
        """Entries kept [...]: the product over the axes of the kept entries of their lists; `one` is ones [...]."""
        owners = dict(self.owners(rows))
        total = one * prod(size for axis, size in enumerate(self.shape) if axis not in owners)
        for which in owners.values():
            total = total * counts[which]
        return total


def on_axis(kept: Tensor, axis: int, rank: int) -> Tensor:
    """Bools [C, n] as [C, 1, .., n, .., 1], along one axis of a tensor of this rank."""
    return kept.view(kept.shape[0], *(1,) * axis, -1, *(1,) * (rank - axis - 1))


def segments_of(names: list[tuple[str, int]]) -> tuple[Segment, ...]:
    """Runs of (group, neuron) as segments."""
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
