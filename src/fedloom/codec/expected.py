"""`Expected`, what a receiver accepts; everything else is refused. P numbers in the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.codec.container import header
from fedloom.codec.frame import Frame
from fedloom.codec.mask_bytes import CHUNK
from fedloom.codec.model_part import AnyKeep, AnyMask, ModelPart, check_mask, keep_word, require
from fedloom.codec.number_formats import DTYPES, Kind
from fedloom.codec.stamp import Stamp
from fedloom.codec.write import fields
from fedloom.errors import BadExperiment, unknown

SLACK = 512  # bytes


@dataclass(frozen=True, eq=False)
class Expected:
    """What a receiver expects of one message.

    Decoding allocates less than twice the bytes of a message of the whole model in float32, which is also the default
    of `cap`; a smaller `cap` refuses long messages earlier.
    """

    frame: Frame
    stamp: Stamp
    part: ModelPart | AnyKeep | AnyMask = field(default_factory=ModelPart)  # a ModelPart: exactly this one
    kinds: tuple[Kind, ...] = ("float32",)
    cap: int | None = None  # bytes

    def __post_init__(self) -> None:
        """Refuse unknown kinds, and a part that does not fit the model."""
        for kind in self.kinds:
            if kind not in DTYPES:
                raise BadExperiment(unknown("kind of values", kind, DTYPES))
        if isinstance(self.part, ModelPart) and self.part.mask is not None:
            check_mask(self.part.mask, self.frame.total, 1)
        if isinstance(self.part, ModelPart) and self.part.keep is not None:
            require(self.frame.neurons).flat(self.part.keep)
        if isinstance(self.part, AnyKeep):
            require(self.frame.neurons)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words for how the part may be written."""
        if isinstance(self.part, AnyMask):
            return "bits", "gaps"
        if isinstance(self.part, AnyKeep):
            return (keep_word(self.part.rows, self.part.outputs),)
        if self.part.whole:
            return ("all",)
        if self.part.keep is None:
            return "asked", "bits", "gaps"
        return "asked", self.part._replace(known=False).word(self.frame.neurons)

    @cached_property
    def longest_header(self) -> int:
        """Bytes of the longest header that is read: above any valid one, so that wrong ones get a specific reason."""
        facts = fields(self.frame, self.stamp, "int8/tensor", keep_word(False, True))
        return len(header(facts, self.frame.entries("int8/tensor", "bits", 0, 0))) + SLACK

    @cached_property
    def limit(self) -> int:
        """Bytes of the longest message that is read."""
        if self.cap is not None:
            return self.cap
        largest = self.frame.entries("int8/block", "bits", self.frame.total, self.frame.index_size("bits"))
        return 8 + self.longest_header + 3 * self.frame.total + sum(entry.nbytes for entry in largest)


class Message(NamedTuple):
    """A decoded message."""

    values: Tensor  # [n] float32
    mask: Tensor | None  # [P] where the values belong; None: everywhere
    keep: Tensor | None  # [K] or [K + O] the neurons that the mask was made of
    extras: Mapping[str, Tensor]
    report: Mapping[str, float]

    def on(self, base: Tensor) -> Tensor:
        """The base [P] with the values written into their places."""
        if self.mask is None:
            return self.values.to(base)
        out, values, mask = (
            base.detach().to("cpu", torch.float32).numpy().copy(),
            self.values.numpy(),
            self.mask.numpy(),
        )
        done = 0
        for start in range(0, len(out), CHUNK):
            places = np.flatnonzero(mask[start : start + CHUNK])
            out[start : start + CHUNK][places] = values[done : done + len(places)]
            done += len(places)
        return torch.from_numpy(out).to(base)
