"""Which neurons are one: the components of all that has been heard, once listening is over."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.neurons.ids import FIXED, LOOSE, moving, settled, small
from fedloom.neurons.wiring import Wiring


class Components:
    """The roots of neurons. A root is the smallest id among those that are one; that of what is never cut is 0."""

    def __init__(self, wiring: Wiring, outputs: Iterable[Tensor], base: Iterable[str], width: bool) -> None:
        self._wiring = wiring
        self._edges = list(wiring.edges)
        self._outputs = [small(ids).flatten() for ids in outputs]
        self._root = self._solved()
        self._settle()
        self.ends = self.roots(self._outputs)
        for name in base:
            bound = wiring.bound.get(name)
            self._fix([*([] if bound is None else bound.axes.values()), *self._entries(name)])
        if not width:
            self._fix(self._streams())
        lost = list(wiring.fixed)
        for layer, why, ids in wiring.aside:
            lost.append(ids)
            if self._cuttable(ids):
                wiring.whole.setdefault(layer, why)
        for name in wiring.stuck:
            bound = wiring.bound.get(name)
            lost += [*([] if bound is None else bound.axes.values()), *self._entries(name)]
        gone = self.roots(lost)
        gone = gone[(gone != FIXED) & ~torch.isin(gone, self.ends)]
        self.lost = self._emitters(gone)
        self._fix(lost)
        while self._hold():
            self._settle()

    def of(self, ids: Tensor) -> Tensor:
        """The roots of ids."""
        few = small(ids) if ids.numel() else ids
        places = torch.where(few >= LOOSE, few - LOOSE + self._wiring.count, few)
        found: Tensor = self._root[places].expand(ids.shape)
        return found

    def roots(self, many: Iterable[Tensor]) -> Tensor:
        """All different roots of ids."""
        parts = [self.of(ids).flatten() for ids in many]
        found: Tensor = torch.cat([torch.zeros(0, dtype=torch.int64), *parts]).unique()
        return found

    def _emitters(self, roots: Tensor) -> list[str]:
        """The layers that emit any of these."""
        return [layer for layer, ids in self._wiring.opened.items() if bool(torch.isin(self.of(ids), roots).any())]

    def _cuttable(self, ids: Tensor) -> bool:
        """Whether any of them are neither fixed nor outputs."""
        roots = self.of(ids)
        return bool(((roots != FIXED) & ~torch.isin(roots, self.ends)).any())

    def _solved(self) -> Tensor:
        """The roots, from the edges."""
        from scipy.sparse import coo_array  # imported here, since it loads slowly
        from scipy.sparse.csgraph import connected_components

        count = self._wiring.count + self._wiring.loose
        ends = [[torch.where(e >= LOOSE, e - LOOSE + self._wiring.count, e) for e in pair] for pair in self._edges]
        none = torch.zeros(0, dtype=torch.int64)
        one, other = (torch.cat([none, *(pair[side] for pair in ends)]).numpy() for side in (0, 1))
        graph = coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(count, count))
        label: NDArray[np.int32] = connected_components(graph, directed=False)[1]
        smallest = np.full(count, count)
        np.minimum.at(smallest, label, np.arange(count))
        roots: Tensor = torch.from_numpy(smallest[label])
        return roots

    def _settle(self) -> None:
        """Unite bare parameters with what they meet, and neurons along two axes of a tensor that is reshaped."""
        while True:
            extra: list[tuple[Tensor, Tensor]] = []
            for own, ids in self._wiring.meets:
                extra += self._met(own, ids)
            for ids in self._wiring.folded:
                extra += self._one_axis(ids)
            for own in self._wiring.entries.values():
                if own.dim() > 1 and bool((self.of(own) < self._wiring.count).any()):
                    extra += self._unused(own) or self._one_axis(own, stacks=False)
            if not extra:
                return
            self._edges += extra
            self._root = self._solved()

    def _met(self, own: Tensor, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Edges between a bare parameter and the neurons it meets, if it has a number for each of them."""
        found = self.of(ids)
        axes = moving(found)
        if not axes or any(own.shape[axis] == 1 for axis in axes):
            return []
        one, other = torch.broadcast_tensors(own, ids)
        new = self.of(one) != self.of(other)
        return [(one[new], other[new])] if bool(new.any()) else []

    def _unused(self, own: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Edges for entries of a bare parameter that met nobody, to others at their place along the neurons' axis."""
        roots = self.of(own)
        met = roots < self._wiring.count
        if bool(met.all()):
            return []
        far = torch.iinfo(roots.dtype).max
        for axis in range(own.dim()):
            others = [place for place in range(own.dim()) if place != axis]
            least = torch.where(met, roots, far).amin(others, keepdim=True)
            most = torch.where(met, roots, -1).amax(others, keepdim=True)
            if bool(((least == most) | (most == -1)).all()) and len(least[most >= 0].unique()) > 1:
                new = ~met & (most >= 0)
                return [(own[new], most.expand(own.shape)[new])] if bool(new.any()) else []
        return []

    def _one_axis(self, ids: Tensor, stacks: bool = True) -> list[tuple[Tensor, Tensor]]:
        """Edges that leave neurons along the longest of the axes that they run along; `stacks`: beside groups alike."""
        found = self.of(ids)
        found = settled(torch.where(found < self._wiring.count, found, -1))  # bare parameters that have met nobody yet
        axes = moving(found)
        if len(axes) < 2 or (stacks and len(axes) == 2 and self._stacked(found, axes)):
            return []
        stay = max(axes, key=lambda axis: ids.shape[axis])
        first = small(ids)
        whole = first
        for axis in axes:
            if axis != stay:
                first = first.narrow(axis, 0, 1)
        one, other = torch.broadcast_tensors(whole, first)
        return [(one.flatten(), other.flatten())]

    def _stacked(self, found: Tensor, axes: list[int]) -> bool:
        """Whether one of two axes only lays groups side by side that keep equally many, such as an LSTM's layers."""
        few = small(found).squeeze()
        rows = few.sort(1).values
        if bool((rows == rows[:1]).all()):
            return True
        groups = [[int(self.of(self._wiring.opened[name])[0]) for name in names] for names in self._wiring.alike]
        return any(set(rows[:, 0].tolist()) <= set(firsts) for firsts in groups)

    def _fix(self, many: Iterable[Tensor]) -> None:
        """Unite ids with the fixed one, but for output classes."""
        ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(small(part).flatten() for part in many)])
        ids = ids[~torch.isin(self.of(ids), self.ends)]
        if len(ids):
            self._edges.append((ids, torch.full_like(ids, FIXED)))
            self._root = self._solved()
            self._settle()

    def _entries(self, name: str) -> list[Tensor]:
        return [self._wiring.entries[name]] if name in self._wiring.entries else []

    def _streams(self) -> list[Tensor]:
        """Neurons that two or more layers emit and a norm over neurons reads: the width of a residual stream."""
        times = torch.zeros(len(self._root), dtype=torch.int64)
        for ids in self._wiring.opened.values():
            times[self.of(ids).unique()] += 1
        found = []
        for call in self._wiring.across:
            roots = self.of(call.ids)
            if call.norm and any(axis in call.axes for axis in moving(roots)):
                few = small(roots).flatten()
                if bool((times[few] > 1).any()):
                    found.append(few)
        return found

    def _hold(self) -> bool:
        """Fix neurons along axes that must not be cut; whether there were any."""
        found = []
        for ids, axis, layer, why in self._wiring.still:
            roots = self.of(ids)
            if moving(roots) == [axis] and self._cuttable(ids):
                found.append(roots[~torch.isin(roots, self.ends)].unique())
                if bool((found[-1] < self._wiring.count).any()):
                    self._wiring.whole.setdefault(layer, why)
        extra = torch.cat([torch.zeros(0, dtype=torch.int64), *found])
        extra = extra[extra != FIXED]
        self.lost += self._emitters(extra)
        self._fix([extra])
        return bool(len(extra))


def axes_of_entries(roots: Tensor) -> Mapping[int, Tensor]:
    """The axis of a bare parameter along which its neurons run, and these."""
    axes = moving(roots)
    axis = axes[-1] if axes else roots.dim() - 1
    return {axis: roots.movedim(axis, -1).reshape(-1, roots.shape[axis])[0]} if roots.dim() else {}
