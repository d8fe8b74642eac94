"""A pool of nested networks: some widths, each with some of the first layers of channels left whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap, rounded


@dataclass(frozen=True)
class Pool:
    """Networks of `widths`, in rising order, each once for every entry of `whole`; the last is the whole network.

    In a network of the pool every layer keeps its leading neurons, as many as the width says, but for the first layers
    of channels, a part `whole` of all such layers, which stay whole. There are J networks, from small to large; level l
    has those of width l.
    """

    widths: tuple[float, ...] = (0.4, 0.66)
    whole: tuple[float, ...] = (0.31, 0.46, 0.62)

    def __post_init__(self) -> None:
        """Check the settings."""
        if list(self.widths) != sorted(self.widths) or not all(0 < width < 1 for width in self.widths):
            raise BadExperiment(f"widths is {self.widths}; expected rising numbers between 0 and 1.")
        if not self.whole or list(self.whole) != sorted(self.whole) or not all(0 <= part <= 1 for part in self.whole):
            raise BadExperiment(f"whole is {self.whole}; expected rising numbers from 0 to 1, at least one.")

    @property
    def count(self) -> int:
        """J, the number of networks."""
        return len(self.widths) * len(self.whole) + 1

    def level(self, network: Tensor) -> Tensor:
        """The level of networks of the pool, by their numbers."""
        return network // len(self.whole)

    def keeps(self, neurons: NeuronMap) -> Tensor:
        """The neurons of each network [J, K]."""
        return _keeps(self, neurons)

    def sizes(self, neurons: NeuronMap) -> Tensor:
        """The numbers of parameters of each network, relative to the whole [J], in double precision."""
        counts = neurons.parameters(self.keeps(neurons)).double()
        return counts / counts[-1]


@lru_cache(maxsize=8)
def _keeps(pool: Pool, neurons: NeuronMap) -> Tensor:
    """As `Pool.keeps`."""
    channels = channel_groups(neurons)
    rows = []
    for width in pool.widths:
        for part in pool.whole:
            untouched = channels[: round(part * len(channels))]
            kept = [torch.ones(0, dtype=torch.bool)]
            for group, span in neurons.spans(neurons.size):
                size, step = span.stop - span.start, neurons.steps[group]
                count = int(rounded(torch.tensor(width, dtype=torch.float64), size))
                count = size if group in untouched else max(step, count // step * step)
                kept.append(torch.arange(size) < count)
            rows.append(torch.cat(kept))
    rows.append(torch.ones(neurons.size, dtype=torch.bool))
    return torch.stack(rows).to(neurons.lists[0].device if neurons.lists else "cpu")


def channel_groups(neurons: NeuronMap) -> list[str]:
    """The groups of neurons that are channels of convolutions, in order."""
    found = []
    for tensor in neurons.tensors:
        segments = None if tensor.output is None else neurons.axes[tensor.name][tensor.output]
        if tensor.weight and segments and len(tensor.shape) > 2:
            found += [one.group for one in segments if one.group in neurons.groups and one.group not in found]
    return found
