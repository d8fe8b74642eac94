"""`Codec`, the settings of the codec, which encodes, decodes, prices and simulates messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from fedloom.codec import number_formats
from fedloom.codec.expected import Expected, Message
from fedloom.codec.frame import Frame
from fedloom.codec.model_part import ModelPart
from fedloom.codec.price import size
from fedloom.codec.read import decode
from fedloom.codec.stamp import Stamp
from fedloom.codec.write import check_kind, encode
from fedloom.core.costs import Bytes
from fedloom.core.section import Section
from fedloom.errors import BadExperiment
from fedloom.layout import Layout


class Codec(Section):
    """The format of the numbers in replies, and whether a client sends later what rounding took (error feedback).

    A codec takes any numbers: in narrow formats, send changes of the model rather than its weights, which are larger.
    """

    values: Literal["float32", "float16", "bfloat16", "int8"] = Field(
        default="float32", description="format of the numbers"
    )
    scale: Literal["block", "tensor"] = Field(
        default="block", description="of int8: one per 256 numbers, or one per tensor"
    )
    feedback: bool = Field(
        default=False, description="a client adds what rounding took from its last reply to its next"
    )

    @model_validator(mode="after")
    def _check_feedback(self) -> Self:
        """Refuse feedback where nothing is rounded."""
        if self.feedback and self.values == "float32":
            raise ValueError("feedback gives back what rounding took, and float32 loses nothing; set codec.values too")
        return self

    @property
    def kind(self) -> number_formats.Kind:
        """`values` and `scale` in one word."""
        if self.values == "int8":
            return "int8/block" if self.scale == "block" else "int8/tensor"
        return self.values

    def encode(
        self,
        frame: Frame,
        stamp: Stamp,
        values: Tensor,
        part: ModelPart = ModelPart(),  # noqa: B008  a NamedTuple does not change
        extras: Mapping[str, Tensor] | None = None,
        report: Mapping[str, float] | None = None,
        key: Tensor | None = None,
    ) -> bytes:
        """Encode a message; see `fedloom.codec.encode`."""
        return encode(frame, stamp, values, part, self.kind, extras, report, key)

    def decode(self, data: bytes, expected: Expected) -> Message:
        """Decode a message that is written with this codec; raise `Rejected` otherwise."""
        return decode(data, replace(expected, kinds=(self.kind,)))

    def size(self, frame: Frame, part: ModelPart = ModelPart()) -> Bytes:  # noqa: B008
        """Bytes of a message, or of each of a cohort's [C], without encoding it."""
        return size(frame, part, self.kind)

    def roundtrip(
        self, values: Tensor, keys: Tensor | None = None, mask: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """Values [C, P] as they are received, equal to the bit to decoded ones; values outside `mask` stay.

        int8 needs each client's key [C], and one scale per tensor needs the layout. A number beyond the range of its
        format comes back infinite or NaN: a real receiver would refuse the message.
        """
        check_kind(self.kind, keys)
        if self.kind == "int8/tensor" and layout is None:
            raise BadExperiment("one scale per tensor needs the layout, which has the tensors' sizes; give it.")
        return number_formats.roundtrip(self.kind, values, keys, mask, layout.sizes if layout else ())

    def bound(self, largest: Tensor) -> Tensor:
        """A bound of the rounding error; `largest` is the number's magnitude or, for int8, the largest with its scale.

        float16 2^-11 of the number (2^-25 at least, up to 65504), bfloat16 2^-8, int8 one step: 1/127 of the largest.
        """
        return number_formats.bound(self.kind, largest)

    def correct(
        self,
        values: Tensor,
        residual: Tensor,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values [C, P] to send, with the residual of earlier rounds; these values as received; and the new residual.

        Where `mask` is False nothing is sent and the residual stays. Without `feedback` nothing is added or kept.
        """
        wanted = values + residual if self.feedback else values
        received = self.roundtrip(wanted, keys, mask, layout)
        if not self.feedback:
            return wanted, received, residual
        lost = wanted - received
        lost = lost.where(lost.isfinite(), 0)  # a refused message adds nothing
        return wanted, received, lost if mask is None else lost.where(mask, residual)
