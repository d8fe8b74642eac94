"""The size of a message by formula, exact to the byte, for thousands of clients at once. C clients."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.codec.container import header
from fedloom.codec.frame import ITEM, Frame
from fedloom.codec.mask_bytes import count_entries, packed_size
from fedloom.codec.model_part import ModelPart, check_mask, require
from fedloom.codec.number_formats import DTYPES, Kind, scale_count
from fedloom.codec.stamp import Stamp
from fedloom.codec.write import fields
from fedloom.core.costs import Bytes

ANY = Stamp(run="", round=0, client=0, base="0" * 16)  # all stamps are equally long


def size(frame: Frame, part: ModelPart = ModelPart(), kind: Kind = "float32") -> Bytes:  # noqa: B008  a NamedTuple does not change
    """Bytes of a message with this part of the model; masks [C, P] or keeps [C, K] give one size per client.

    A keep is priced from its counts; a mask next to it is not read.
    """
    word = part.word(frame.neurons)
    if part.keep is not None:
        count = require(frame.neurons).count(part.keep, part.rows).sum(-1)
    elif part.mask is not None:
        masks = check_mask(part.mask, frame.total).reshape(-1, frame.total)
        count = count_entries(masks).view(part.mask.shape[:-1])
    else:
        count = torch.tensor(frame.total)
    if word == "bits" and part.mask is not None:
        index = packed_size(masks, count.reshape(-1)).view(count.shape)
    else:
        index = torch.full_like(count, frame.index_size(word))
    return price(frame, kind, word, count, index)


def price(frame: Frame, kind: Kind, word: str, count: Tensor, index: Tensor) -> Bytes:
    """Bytes of messages from the counts [C] of numbers and the bytes [C] of masks; `word` is `ModelPart.word`."""
    scales = scale_count(kind, count, len(frame.layout.names))
    entries = frame.entries(kind, word, 0, 0)
    fixed = {entry.name: entry.nbytes for entry in entries if entry.name.startswith("extra.") or entry.name == "report"}
    report = fixed.pop("report", 0)
    overhead = len(header(fields(frame, ANY, kind, word), entries)) + report
    return Bytes(
        values=ITEM[DTYPES[kind]] * count + ITEM["F32"] * scales + sum(fixed.values()),
        indices=index,
        overhead=torch.full_like(count, overhead),
    )
