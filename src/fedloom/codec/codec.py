"""How does a run write its numbers down? One value that encodes, decodes, prices and simulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

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
from fedloom.errors import BadExperiment, unknown
from fedloom.layout import Layout

Values = Literal["float32", "float16", "bfloat16", "int8"]
Scale = Literal["block", "tensor"]


@dataclass(frozen=True)
class Codec:
    """How values are written, and whether a client makes up for what was rounded away.

    A codec does not ask what the numbers are: for the narrow kinds send changes of the model rather than its weights,
    which are larger.
    """

    values: Values = "float32"
    scale: Scale = "block"  # int8: one scale to 256 numbers, or to a tensor
    feedback: bool = False

    def __post_init__(self) -> None:
        """Both words must exist."""
        for name, word, words in (("values", self.values, Values), ("scale", self.scale, Scale)):
            if word not in get_args(words):
                raise BadExperiment(unknown(f"{name} of a codec", str(word), get_args(words)))

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
