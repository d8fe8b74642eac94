"""What of a model does a message carry, and what of it may it carry? K neurons, O output classes, P numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap


class Part(NamedTuple):
    """What is sent; with neither mask nor keep it is everything. Leading axes [C, ...] stand for a cohort."""

    mask: Tensor | None = None  # [..., P] bool, over numbers
    keep: Tensor | None = (
        None  # [..., K] or [..., K + O] bool, where whole neurons are sent; `mask` beside it spares work
    )
    rows: bool = False  # a number follows its output neuron alone
    known: bool = False  # the receiver chose it, so it does not travel

    @property
    def whole(self) -> bool:
        """Whether everything is sent."""
        return self.mask is None and self.keep is None

    def cpu(self) -> Part:
        """The same where bytes are written."""
        mask, keep = (None if given is None else given.cpu() for given in (self.mask, self.keep))
        return self._replace(mask=mask, keep=keep)

    def word(self, neurons: NeuronMap | None) -> str:
        """How it travels; a mask in 'bits' may turn out to be shorter as 'gaps', a word of equal length."""
        if self.whole:
            return "all"
        if self.known:
            return "asked"
        if self.keep is None:
            return "bits"
        return keep_word(self.rows, self.keep.shape[-1] != must(neurons).size)

    def numbers(self, neurons: NeuronMap | None) -> Tensor | None:
        """The mask over numbers [..., P]; None is everything."""
        if self.mask is not None or self.keep is None:
            return self.mask
        return must(neurons).expand(self.keep, self.rows)


@dataclass(frozen=True)
class AnyKeep:
    """The sender chooses neurons: up to the share of every group, rounded up, and at least what can be cut at all."""

    share: float  # of neurons
    rows: bool = False
    outputs: bool = False  # whether the output classes are chosen from, too

    def __post_init__(self) -> None:
        """A share lies between 0 and 1."""
        check_share(self.share)


@dataclass(frozen=True)
class AnyMask:
    """The sender chooses numbers: up to the share of every tensor, rounded up, in all."""

    share: float  # of numbers

    def __post_init__(self) -> None:
        """A share lies between 0 and 1."""
        check_share(self.share)


def check_share(share: float) -> None:
    """Refuse what is no share."""
    if not 0 < share <= 1:
        raise BadExperiment(f"share that may be sent is {share}; expected above 0 and at most 1.")


def keep_word(rows: bool, outputs: bool) -> str:
    """How a keep is named in the header."""
    return ("rows" if rows else "neurons") + ("+outputs" if outputs else "")


def must(neurons: NeuronMap | None) -> NeuronMap:
    """The neurons, without which a keep means nothing."""
    if neurons is None:
        raise BadExperiment("a keep is sent or expected, but the frame has no neurons; give it those of the model.")
    return neurons


def check_mask(mask: Tensor, total: int, most: int = 2) -> Tensor:
    """Refuse what is no mask over the model's numbers, of one client or (at most 2 axes) of a cohort."""
    if mask.dtype != torch.bool or not 0 < mask.dim() <= most or mask.shape[-1] != total:
        raise BadExperiment(f"mask must be bool over {total} numbers; got {mask.dtype} of shape {tuple(mask.shape)}.")
    return mask
