"""`decode`, which accepts a message only if every byte is one that the receiver expects.

Nothing is allocated before its size is checked, and a mask that the receiver has is never taken from the message. P
numbers in the model, n of them sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.codec.container import arrays, check_header, parse, unseal
from fedloom.codec.expected import Expected, Message
from fedloom.codec.frame import Frame
from fedloom.codec.mask_bytes import unpack_bits, unpack_gaps
from fedloom.codec.model_part import AnyKeep, AnyMask, ModelPart, require
from fedloom.codec.number_formats import Kind, check_finite, unpack
from fedloom.codec.rejected import Rejected
from fedloom.codec.write import fields, sent_per_tensor
from fedloom.core.refused import Reason

BLAME: dict[str, Reason] = {"run": "run", "round": "round", "attempt": "round", "client": "client", "base": "base"}
SLACK = 1e-6  # a share may have been rounded to single precision


def decode(data: bytes | bytearray | memoryview, expected: Expected) -> Message:
    """Decode a message; raise `Rejected` with the reason if it is not accepted."""
    frame = expected.frame
    head, body = unseal(data, expected.limit, expected.longest_header)
    facts, tensors = parse(head)
    kind, word = check_facts(facts, expected)
    count, index = read_lengths(tensors, frame, word)
    entries = frame.entries(kind, word, count, index)
    check_header(head, fields(frame, expected.stamp, kind, word), tensors, entries)
    found = arrays(body, entries)
    mask, keep = read_part(found.get("mask"), word, expected)
    implied = frame.total if mask is None else int(np.count_nonzero(mask))
    if count != implied:
        raise Rejected("shape", f"the message has {count} numbers; its mask implies {implied}.")
    if isinstance(expected.part, AnyMask):
        check_mask_share(count, expected.part, frame)
    numbers = unpack(kind, found["values"], found.get("scale"), sent_per_tensor(kind, frame.layout.sizes, mask))
    return Message(
        values=torch.from_numpy(numbers),
        mask=None if mask is None else torch.from_numpy(mask),
        keep=keep,
        extras={name: read_extra(name, found[f"extra.{name}"]) for name in frame.extras},
        report=read_report(frame, found["report"]) if frame.report else {},
    )


def check_facts(facts: Mapping[str, str], expected: Expected) -> tuple[Kind, str]:
    """The kind of values and the word for the part; raise `Rejected` if another message is expected."""
    pieces, said = expected.stamp.pieces(), facts.get("stamp", "").split("/")
    if len(said) != len(pieces):
        raise Rejected("header", f"the stamp has {len(said)} pieces; expected {len(pieces)}.")
    for (name, value), found in zip(pieces.items(), said):
        if found != value:
            raise Rejected(BLAME.get(name, "header"), f"{name} is {found!r}; expected {value!r}.")
    kind = next((kind for kind in expected.kinds if kind == facts.get("codec")), None)
    if kind is None:
        raise Rejected("dtype", f"values are {facts.get('codec')!r}; expected {' or '.join(expected.kinds)}.")
    word = facts.get("part")
    if word not in expected.words:
        raise Rejected("mask", f"the part is written as {word!r}; expected {' or '.join(expected.words)}.")
    return kind, word


def read_lengths(tensors: Mapping[str, Any], frame: Frame, word: str) -> tuple[int, int]:
    """The two lengths that only the message has: of its numbers, and of its mask if that is written as gaps."""
    count = length_of(tensors, "values")
    if count > frame.total:
        raise Rejected("shape", f"'values' has {count} numbers; the model has {frame.total}.")
    limit = frame.index_size(word)
    if word != "gaps":
        return count, limit
    index = length_of(tensors, "mask")
    if index >= limit:
        raise Rejected("mask", f"the gaps take {index} bytes, where a bitmap takes {limit}.")
    return count, index


def length_of(tensors: Mapping[str, Any], name: str) -> int:
    """The length of a vector by its header."""
    said = tensors.get(name)
    if not isinstance(said, dict):
        raise Rejected("header", f"'{name}' is missing.")
    shape = said.get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        raise Rejected("shape", f"'{name}' has shape {shape!r}; expected a vector.")
    return int(shape[0])


def read_part(
    data: NDArray[np.uint8] | None, word: str, expected: Expected
) -> tuple[NDArray[np.bool_] | None, Tensor | None]:
    """The mask [P] (None: all numbers) and the keep it was made of; raise `Rejected` if they are not allowed."""
    frame, part = expected.frame, expected.part
    if word == "all":
        return None, None
    if isinstance(part, ModelPart):
        part = part.cpu()
        mask = part.numbers(frame.host)
        assert mask is not None
        own = mask.numpy()
        if data is not None and not same_mask(data, word, part, own):
            raise Rejected("mask", "the mask is not the one that was asked for.")
        return own, part.keep
    assert data is not None
    if isinstance(part, AnyMask):
        chosen = unpack_bits(data, frame.total) if word == "bits" else unpack_gaps(data, frame.total)
        return chosen, None
    neurons = require(frame.host)
    keep = torch.from_numpy(unpack_bits(data, neurons.full_size if part.outputs else neurons.size))
    check_keep_share(keep, part, frame)
    return neurons.expand(keep, part.rows).numpy(), keep


def same_mask(data: NDArray[np.uint8], word: str, part: ModelPart, own: NDArray[np.bool_]) -> bool:
    """Whether the sender's copy equals the receiver's mask."""
    if word == "gaps":
        return bool(np.array_equal(unpack_gaps(data, len(own)), own))
    wanted = own if part.keep is None else part.keep.numpy()
    return bool(np.array_equal(unpack_bits(data, len(wanted)), wanted))


def check_mask_share(count: int, part: AnyMask, frame: Frame) -> None:
    """Raise `Rejected` for more numbers than the share allows."""
    most = sum(ceil(part.share * size * (1 - SLACK)) for size in frame.layout.sizes)
    if count > most:
        raise Rejected("share", f"the mask has {count} of {frame.total} numbers; share {part.share} allows {most}.")


def check_keep_share(keep: Tensor, part: AnyKeep, frame: Frame) -> None:
    """Raise `Rejected` for more neurons of a group than the share allows."""
    neurons = require(frame.neurons)
    for group, span in neurons.spans(len(keep)):
        width, count = neurons.widths[group], int(keep[span].sum())
        most = max(ceil(part.share * width * (1 - SLACK)), neurons.steps[group])
        if count > most:
            raise Rejected("share", f"{count} of the {width} neurons of '{group}'; share {part.share} allows {most}.")


def read_extra(name: str, data: NDArray[Any]) -> Tensor:
    """Read one of the tensors that travel with the model's numbers."""
    if data.dtype.kind == "f":
        check_finite(name, data.reshape(-1))
    return torch.from_numpy(data.astype(data.dtype.newbyteorder("=")))


def read_report(frame: Frame, data: NDArray[np.float64]) -> dict[str, float]:
    """Read the reported numbers; raise `Rejected` if one is out of its range."""
    report = {name: float(number) for name, number in zip(frame.report_names, data)}
    for name, number in report.items():
        low, high, whole = frame.report[name]
        if not isfinite(number) or not low <= number <= high or (whole and number != int(number)):
            kind = "a whole number" if whole else "a number"
            raise Rejected("report", f"'{name}' is {number}; expected {kind} from {low} to {high}.")
    return report
