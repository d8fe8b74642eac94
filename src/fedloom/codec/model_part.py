"""Which of a model's numbers a message carries, or may carry. K neurons, O output classes, P numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap


class ModelPart(NamedTuple):
    """The numbers that are sent; all, without mask and keep. Leading axes [C, ...] are for a cohort."""

    mask: Tensor | None = None  # [..., P] bool, over numbers
    keep: Tensor | None = None  # [..., K] or [..., K + O] bool, of whole neurons; with `mask`, saves its making
    rows: bool = False  # a number belongs to its output neuron alone
    known: bool = False  # the receiver chose it, so that it is not sent

    @property
    def whole(self) -> bool:
        """Whether all numbers are sent."""
        return self.mask is None and self.keep is None

    def cpu(self) -> ModelPart:
        """The part on the host."""
        mask, keep = (None if given is None else given.cpu() for given in (self.mask, self.keep))
        return self._replace(mask=mask, keep=keep)

    def word(self, neurons: NeuronMap | None) -> str:
        """The word for how it is written; a message may say 'gaps', an equally long word, in place of 'bits'."""
        if self.whole:
            return "all"
        if self.known:
            return "asked"
        if self.keep is None:
            return "bits"
        return keep_word(self.rows, self.keep.shape[-1] != require(neurons).size)

    def numbers(self, neurons: NeuronMap | None) -> Tensor | None:
        """The mask over numbers [..., P]; None: all numbers."""
        if self.mask is not None or self.keep is None:
            return self.mask
        return require(neurons).expand(self.keep, self.rows)


@dataclass(frozen=True)
class AnyKeep:
    """The sender chooses neurons: at most the share of every group, rounded up, and at least what can be cut."""

    share: float  # of neurons
    rows: bool = False
    outputs: bool = False  # whether output classes are chosen, too

    def __post_init__(self) -> None:
        """Check the share."""
        check_share(self.share)


@dataclass(frozen=True)
class AnyMask:
    """The sender chooses numbers: in all, at most the sum of the share of every tensor, rounded up."""

    share: float  # of numbers

    def __post_init__(self) -> None:
        """Check the share."""
        check_share(self.share)


def check_share(share: float) -> None:
    """Raise `BadExperiment` unless the share is in (0, 1]."""
    if not 0 < share <= 1:
        raise BadExperiment(f"share that may be sent is {share}; expected above 0 and at most 1.")


def keep_word(rows: bool, outputs: bool) -> str:
    """The header's word for a keep."""
    return ("rows" if rows else "neurons") + ("+outputs" if outputs else "")


def require(neurons: NeuronMap | None) -> NeuronMap:
    """The neurons; raise `BadExperiment` if there are none, since a keep needs them."""
    if neurons is None:
        raise BadExperiment("a keep is sent or expected, but the frame has no neurons; give it those of the model.")
    return neurons


def check_mask(mask: Tensor, total: int, most: int = 2) -> Tensor:
    """Raise `BadExperiment` unless this is a mask over `total` numbers, of one client or (with 2 axes) of a cohort."""
    if mask.dtype != torch.bool or not 0 < mask.dim() <= most or mask.shape[-1] != total:
        raise BadExperiment(f"mask must be bool over {total} numbers; got {mask.dtype} of shape {tuple(mask.shape)}.")
    return mask
