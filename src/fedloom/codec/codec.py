"""How does a run write its numbers down? One value that encodes, decodes, prices and simulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor

from fedloom.codec import kinds
from fedloom.codec.expected import Expected, Message
from fedloom.codec.frame import Frame
from fedloom.codec.part import Part
from fedloom.codec.price import size
from fedloom.codec.read import decode
from fedloom.codec.stamp import Stamp
from fedloom.codec.write import check_kind, encode
from fedloom.core.costs import Bytes
from fedloom.core.section import Section
from fedloom.errors import BadExperiment
from fedloom.layout import Layout


class Codec(Section):
    """How replies are written down, and whether a client makes up for what was rounded away.

    A codec takes any numbers: for the narrow kinds send changes of the model rather than its weights, which are larger.
    """

    values: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    scale: Literal["block", "tensor"] = "block"  # of int8: one for 256 numbers, or one for a tensor
    feedback: bool = False  # a client adds what rounding took from its last reply to its next

    @model_validator(mode="after")
    def _check_feedback(self) -> Self:
        """Refuse feedback where nothing is rounded."""
        if self.feedback and self.values == "float32":
            raise ValueError("feedback gives back what rounding took, and float32 loses nothing; set codec.values too")
        return self

    @property
    def kind(self) -> kinds.Kind:
        """Both words as one."""
        if self.values == "int8":
            return "int8/block" if self.scale == "block" else "int8/tensor"
        return self.values

    def encode(
        self,
        frame: Frame,
        stamp: Stamp,
        values: Tensor,
        part: Part = Part(),  # noqa: B008  a NamedTuple does not change
        extras: Mapping[str, Tensor] | None = None,
        report: Mapping[str, float] | None = None,
        key: Tensor | None = None,
    ) -> bytes:
        """The bytes of a message; see `fedloom.codec.encode`."""
        return encode(frame, stamp, values, part, self.kind, extras, report, key)

    def decode(self, data: bytes, expected: Expected) -> Message:
        """What a message says, if it is written with this codec; `Rejected` otherwise."""
        return decode(data, replace(expected, kinds=(self.kind,)))

    def size(self, frame: Frame, part: Part = Part()) -> Bytes:  # noqa: B008
        """Bytes of a message, or of a cohort's [C], without writing it."""
        return size(frame, part, self.kind)

    def roundtrip(
        self, values: Tensor, keys: Tensor | None = None, mask: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """Values [C, P] as they are received, to the bit what decoding gives; what `mask` leaves out stays.

        int8 needs each client's key [C], and the layout where a scale belongs to a tensor. A number beyond the range
        of its kind comes back infinite or NaN: a real receiver would refuse the message.
        """
        check_kind(self.kind, keys)
        if self.kind == "int8/tensor" and layout is None:
            raise BadExperiment("a scale for each tensor needs the layout that says where tensors begin; give it.")
        return kinds.roundtrip(self.kind, values, keys, mask, layout.sizes if layout else ())

    def bound(self, largest: Tensor) -> Tensor:
        """The most a number can be off; `largest` is its own size or, for int8, the largest that shares its scale.

        float16 2^-11 of the number (2^-25 at least, up to 65504), bfloat16 2^-8, int8 one step: 1/127 of the largest.
        """
        return kinds.bound(self.kind, largest)

    def correct(
        self,
        values: Tensor,
        residual: Tensor,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values [C, P] with what was rounded away before, ready to be sent; as received; what is rounded away now.

        Where `mask` is False nothing is sent and the residual waits. Without `feedback` nothing is added or kept.
        """
        wanted = values + residual if self.feedback else values
        received = self.roundtrip(wanted, keys, mask, layout)
        if not self.feedback:
            return wanted, received, residual
        lost = wanted - received
        lost = lost.where(lost.isfinite(), 0)  # a message that is refused leaves nothing behind
        return wanted, received, lost if mask is None else lost.where(mask, residual)
