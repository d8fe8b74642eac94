"""The map of a model's neurons: which numbers belong to each, and the masks, scores and costs of keeping some.

A keep is a bool tensor [..., K] over the neurons of `groups`, one group after the other, or [..., K + O] with those of
`outputs` after them; without these all output classes are kept. C clients, P numbers in the flat vector.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.accel.machine import own_kernels
from fedloom.errors import BadExperiment, BadModel, short, unknown
from fedloom.neurons.axes import FIXED_GROUP, Axes, Segment, on_axis, segments_of
from fedloom.neurons.pairs import Pair
from fedloom.neurons.told import Told
from fedloom.neurons.wiring import Attribute
from fedloom.shown import table

Rounding = Literal["floor", "half-up", "ceil"]
POWERS = {"l1": 1, "l2": 2}
SHIFTS = {"floor": 0.0, "half-up": 0.5, "ceil": 1.0}  # added before rounding down


@dataclass(frozen=True, eq=False, repr=False)
class NeuronMap:
    """A model's neurons, made by `neuron_map`.

    What slices a model may rely on: `counts[i]` entries of `lists[i]` are kept, `tensors` have them along their axes,
    `attributes` of layers count them, the answers of the calls `told` have them, and the groups of each tuple in
    `alike` keep equally many. All of these speak of the same kept neurons.
    """

    groups: tuple[str, ...]  # hidden groups, in the order of a keep
    outputs: tuple[str, ...]  # the output classes, which only a keep of K + O can cut
    widths: dict[str, int]  # neurons per group
    tensors: tuple[Axes, ...]
    across: tuple[str, ...]  # layers with statistics over several neurons, where masking and slicing differ
    attributes: tuple[tuple[Attribute, int], ...]  # layers' attributes, and the list whose kept entries each counts
    divided: tuple[tuple[str, int, int], ...]  # group norms: layer, number of groups, list
    steps: dict[str, int]  # group -> number that its kept neurons must be a multiple of
    lists: tuple[Tensor, ...]  # neuron numbers along an axis; K + O for what is never cut
    told: tuple[Told, ...] = ()  # calls that are told sizes which count neurons, in their order
    alike: tuple[tuple[str, ...], ...] = ()  # groups that must keep equally many to be sliced, as an LSTM's
    states: tuple[str, ...] = ()  # recurrent layers whose first states the code makes, as wide as the whole layer
    work: tuple[tuple[int, int], ...] = ()  # products of activations: list, operations of all its entries
    words: dict[str, str] = field(default_factory=dict)  # group -> what its neurons are: heads, hidden units ...
    note: str | None = None  # which layers are kept whole and why, in words
    pairs: tuple[Pair, ...] = ()  # adapters, whose rank components are neurons
    base_flops: int = 0  # of one example's forward pass through frozen weights, which are not in the vector

    def __repr__(self) -> str:
        """How many neurons there are, by group."""
        groups = ", ".join(f"{group} {self.widths[group]}" for group in self.groups) or "none that can be cut"
        return f"NeuronMap({self.size} neurons: {short(groups)[1:-1]}; {self.total:,} numbers)"

    def _repr_html_(self) -> str:
        """A table of the groups, for notebooks."""
        rows = [(group, f"{self.widths[group]} {self.words.get(group, 'neurons')}") for group in self.groups]
        title = f"{self.size} neurons in {len(self.groups)} groups, {self.total:,} numbers"
        return table(title, [*rows, *([] if self.note is None else [("kept whole", self.note)])])

    @cached_property
    def size(self) -> int:
        """K: hidden neurons."""
        return sum(self.widths[group] for group in self.groups)

    @cached_property
    def full_size(self) -> int:
        """K + O: hidden neurons and output classes."""
        return sum(self.widths.values())

    @property
    def total(self) -> int:
        """P: numbers in the flat vector."""
        return self.tensors[-1].stop

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The groups that a keep of K never cuts."""
        return frozenset((FIXED_GROUP, *self.outputs))

    @cached_property
    def axes(self) -> dict[str, tuple[tuple[Segment, ...] | None, ...]]:
        """Tensor -> segments of each axis; None for an axis without neurons, such as a kernel's height."""
        names = [(name, place) for name, width in self.widths.items() for place in range(width)] + [(FIXED_GROUP, 0)]
        segments = [segments_of([names[i] for i in entries.tolist()]) for entries in self.lists]
        return {t.name: tuple(None if i is None else segments[i] for i in t.along) for t in self.tensors}

    @cached_property
    def owners(self) -> dict[tuple[bool, torch.device], Tensor]:
        """Tables for the kernel of `expand`, by `rows` and device; a graph that reads them keeps the map alive."""
        return {}

    def to(self, device: torch.device | str) -> "NeuronMap":
        """Copy the map for keeps on another device."""
        return replace(self, lists=tuple(entries.to(device) for entries in self.lists))

    def spans(self, length: int) -> Iterator[tuple[str, slice]]:
        """Groups that a keep of this length covers, and their places in it."""
        start = 0
        for group, width in self.widths.items():
            if start < length:
                yield group, slice(start, start + width)
            start += width

    def flat(self, keep: Tensor | Mapping[str, Tensor | Sequence[int]]) -> Tensor:
        """A keep as one bool tensor; a mapping has bools or indices per group, and keeps groups that it leaves out."""
        if isinstance(keep, Tensor):
            if keep.dtype != torch.bool or keep.dim() < 1 or keep.shape[-1] not in (self.size, self.full_size):
                raise BadModel(
                    f"keep must be a bool tensor over {self.size} neurons (or {self.full_size} with the output "
                    f"classes); got {keep.dtype} of shape {tuple(keep.shape)}."
                )
            return keep
        for group in keep:
            if group not in self.widths:
                raise BadModel(unknown("group of neurons", group, self.widths))
        device = self.lists[0].device if self.lists else None
        parts = [as_bools(g, keep[g], w) if g in keep else torch.ones(w).bool() for g, w in self.widths.items()]
        return torch.cat([torch.ones(0).bool(), *parts]).to(device)

    def padded(self, keep: Tensor) -> Tensor:
        """Pad a keep [..., K] or [..., K + O] to [..., K + O + 1]: neurons that it does not cover are kept."""
        keep = self.flat(keep)
        return torch.nn.functional.pad(keep, (0, self.full_size + 1 - keep.shape[-1]), value=True)

    def expand(self, keep: Tensor, rows: bool = False) -> Tensor:
        """Mask [..., P] of the numbers whose neurons are all kept; with `rows`, whose output neuron is kept."""
        kept = self.flat(keep)
        flat, mask = kept.reshape(kept.shape[:-1].numel(), kept.shape[-1]), None
        if own_kernels(kept.device.type):
            from fedloom.neurons.expand_kernel import expanded

            mask = expanded(self, flat, rows)
        if mask is None:
            (mask,) = _expanded((flat,), self, rows)
        return mask.view(*kept.shape[:-1], self.total)

    def score(self, values: Tensor, how: Literal["l2", "l1"] = "l2", output: bool = False) -> Tensor:
        """The norm [..., K] (`output`: [..., K + O]) of the values [..., P] at the weights and bias into each neuron.

        Norm layers and running statistics do not count. A neuron that several layers emit (a residual stream) has one
        norm over them all.
        """
        if how not in POWERS:
            raise BadExperiment(unknown("norm", how, POWERS))
        power = POWERS[how]
        total = values.new_zeros(*values.shape[:-1], self.full_size + 1)
        for tensor in self.tensors:
            if tensor.weight and tensor.output is not None and (which := tensor.along[tensor.output]) is not None:
                part = values[..., tensor.start : tensor.stop].reshape(*values.shape[:-1], *tensor.shape)
                others = [axis - len(tensor.shape) for axis in range(len(tensor.shape)) if axis != tensor.output]
                norm = torch.linalg.vector_norm(part, power, others) if others else part.abs()
                total.index_add_(-1, self.lists[which], norm**power)
        return total[..., : self.full_size if output else self.size] ** (1 / power)

    def cut(self, scores: Tensor, share: Tensor | float, minimum: int = 1, rounding: Rounding = "floor") -> Tensor:
        """Keep the `share` [...] of every group's neurons with the highest scores [..., K]; the first wins a tie.

        Groups that pass a group norm are cut to a multiple of its groups, so that they can be sliced. At least
        `minimum` neurons of every group stay.
        """
        if scores.shape[-1] not in (self.size, self.full_size):
            raise BadModel(f"scores must be of {self.size} or {self.full_size} neurons; got {tuple(scores.shape)}.")
        shares = checked(share, scores.device)
        (keep,) = _cut_down((scores, shares), self, minimum, rounding)
        return keep

    def count(self, keep: Tensor, rows: bool = False) -> Tensor:
        """Numbers kept of each tensor [..., T], without making the mask."""
        kept = self.padded(keep)
        counts = [kept[..., entries].sum(-1) for entries in self.lists]
        one = torch.ones(kept.shape[:-1], dtype=torch.int64, device=kept.device)
        return torch.stack([tensor.kept(one, counts, rows) for tensor in self.tensors], -1)

    def parameters(self, keep: Tensor, rows: bool = False) -> Tensor:
        """Number of parameters that are kept [...]."""
        return self.weighted(keep, [int(tensor.trained) for tensor in self.tensors], rows)

    def bytes(self, keep: Tensor, rows: bool = False, each: int = 4) -> Tensor:
        """Bytes of all numbers that are kept [...], running statistics included, with `each` bytes per number."""
        return self.weighted(keep, [each] * len(self.tensors), rows)

    def flops(self, keep: Tensor) -> Tensor:
        """Floating-point operations [...] of one example's forward pass, two per multiply-add.

        Counts linear, convolution and recurrent weights and the products of attention, but no biases, norms,
        activations, pooling or embedding look-ups.
        """
        total = self.base_flops + self.weighted(keep, [2 * tensor.positions for tensor in self.tensors], rows=False)
        if self.work:
            kept = self.padded(keep)
            for which, whole in self.work:
                total = total + whole * kept[..., self.lists[which]].sum(-1) // len(self.lists[which])
        return total

    def weighted(self, keep: Tensor, weights: list[int], rows: bool) -> Tensor:
        """Numbers kept, summed over the tensors with these weights [...]."""
        counts = self.count(keep, rows)
        return (counts * torch.tensor(weights).to(counts.device, non_blocking=True)).sum(-1)


def checked(share: Tensor | float, device: torch.device) -> Tensor:
    """The share in double precision; checked on a CPU only, since reading it would wait for a GPU."""
    shares = torch.as_tensor(share, dtype=torch.float64)
    if shares.device.type == "cpu" and not bool(((shares > 0) & (shares <= 1)).all()):
        raise BadExperiment(f"share must be above 0 and at most 1; got {share}.")
    return shares.to(device)


def rounded(share: Tensor, width: int | Tensor, rounding: Rounding = "floor") -> Tensor:
    """Number of neurons in a share of `width` (int64); a float32 share counts as the decimal it was written as."""
    if rounding not in SHIFTS:
        raise BadExperiment(unknown("rounding", rounding, SHIFTS))
    slack = -1e-6 if rounding == "ceil" else 1e-6
    return torch.floor(share * width + SHIFTS[rounding] + slack * width).long()


def as_bools(group: str, wanted: Tensor | Sequence[int], width: int) -> Tensor:
    """Bools or indices of one group's neurons as bools."""
    wanted = torch.as_tensor(wanted, dtype=None if len(wanted) else torch.int64)
    if wanted.dtype == torch.bool and wanted.shape == (width,):
        return wanted.cpu()
    if wanted.dtype == torch.bool or wanted.is_floating_point() or not bool(((wanted >= 0) & (wanted < width)).all()):
        raise BadModel(
            f"keep of group '{group}' must be {width} bools or indices from 0 to {width - 1}; got {wanted.tolist()}."
        )
    return torch.zeros(width, dtype=torch.bool).index_fill(0, wanted.cpu().long(), True)


def _cut(inputs: tuple[Tensor, ...], neurons: NeuronMap, minimum: int, rounding: Rounding) -> tuple[Tensor, ...]:
    """Body of `NeuronMap.cut`, for capturing."""
    scores, shares = inputs
    keep = [scores[..., :0] < shares.unsqueeze(-1)]  # [..., 0], for a model without hidden neurons
    for group, span in neurons.spans(scores.shape[-1]):
        rank = scores[..., span].argsort(dim=-1, descending=True, stable=True).argsort(-1)
        width, step = neurons.widths[group], neurons.steps[group]
        count = rounded(shares, width, rounding)
        least = step * ceil(max(minimum, 1) / step)
        count = torch.where(count < width, (count // step * step).clamp(min=least), count)
        keep.append(rank < count.unsqueeze(-1))
    return (torch.cat(keep, -1),)


_cut_down = Captured(_cut)


def _expand(keeps: tuple[Tensor, ...], neurons: NeuronMap, rows: bool) -> tuple[Tensor, ...]:
    """Body of `NeuronMap.expand` for a keep [C, K] or [C, K + O], for capturing."""
    kept = neurons.padded(keeps[0]).view(torch.uint8)  # `and` is vectorised for bytes, not for bools
    along = [kept[:, entries] for entries in neurons.lists]
    mask = torch.ones(kept.shape[0], neurons.total, dtype=torch.uint8, device=kept.device)
    for tensor in neurons.tensors:
        for axis, which in tensor.owners(rows):
            part = mask[:, tensor.start : tensor.stop].view(-1, *tensor.shape)
            part &= on_axis(along[which], axis, len(tensor.shape))
    return (mask.view(torch.bool),)


_expanded = Captured(_expand)
