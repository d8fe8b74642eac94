"""How is a message written? Equal input gives equal bytes. P numbers in the model, n of them sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.codec.container import header, seal
from fedloom.codec.frame import Frame
from fedloom.codec.kinds import CHUNK, DTYPES, Floats, Kind, pack
from fedloom.codec.part import Part, check_mask, must
from fedloom.codec.places import Bits, pack as pack_places, pack_bits
from fedloom.codec.stamp import Stamp
from fedloom.errors import BadExperiment, unknown


def encode(
    frame: Frame,
    stamp: Stamp,
    values: Tensor,
    part: Part = Part(),  # noqa: B008  a NamedTuple does not change
    kind: Kind = "float32",
    extras: Mapping[str, Tensor] | None = None,
    report: Mapping[str, float] | None = None,
    key: Tensor | None = None,
) -> bytes:
    """The bytes of a model's numbers [P], of which `part` is sent, with what goes with them.

    int8 needs a key, such as `Chance.key("codec", client)`. What is not finite is written as it is: the receiver
    refuses it and says so.
    """
    check_kind(kind, key)
    if values.shape != (frame.total,):
        raise BadExperiment(f"values must be a vector of {frame.total} numbers; got shape {tuple(values.shape)}.")
    flat = values.detach().to("cpu", torch.float32).contiguous()
    part = part.cpu()
    numbers = flat.numpy() if part.whole else taken(frame, part, flat)
    word, places = write_places(frame, part)
    mask = mask_of(frame, part) if DTYPES[kind] == "I8" else None  # else it need not be made
    where = None if mask is None else np.flatnonzero(mask)
    written = pack(kind, numbers, where, sent_of_each(frame.layout.sizes, mask), key)
    pieces: dict[str, NDArray[np.generic]] = dict(zip(("values", "scale"), written))
    pieces |= {} if places is None else {"mask": places}
    pieces |= {f"extra.{name}": array for name, array in extra_arrays(frame, extras or {}).items()}
    pieces |= {"report": report_array(frame, report or {})} if frame.report else {}
    entries = frame.entries(kind, word, len(numbers), 0 if places is None else len(places))
    head = header(fields(frame, stamp, kind, word), entries)
    return seal(head, [pieces[entry.name] for entry in entries])


def fields(frame: Frame, stamp: Stamp, kind: str, word: str) -> dict[str, str]:
    """The header's facts about a message."""
    names = {"report": ",".join(frame.report_names)} if frame.report else {}
    return {**stamp.fields(), "codec": kind, "part": word, **names}


def check_kind(kind: str, key: Tensor | None) -> None:
    """Refuse a kind that does not exist, and rounding by chance without a key."""
    if kind not in DTYPES:
        raise BadExperiment(unknown("kind of values", kind, DTYPES))
    if key is None and DTYPES[kind] == "I8":
        raise BadExperiment(f"values as {kind} are rounded by chance and need a key; give Chance.key('codec', client).")


def mask_of(frame: Frame, part: Part) -> Bits | None:
    """The mask [P] of one client; None is everything."""
    mask = part.numbers(frame.host)
    return None if mask is None else check_mask(mask, frame.total, 1).numpy()


def write_places(frame: Frame, part: Part) -> tuple[str, NDArray[np.uint8] | None]:
    """The word for how the part travels, and the bytes that say which it is, if they travel."""
    word = part.word(frame.host)
    if word in ("all", "asked"):
        return word, None
    if part.keep is not None:
        return word, pack_bits(part.keep.numpy())
    mask = mask_of(frame, part)
    assert mask is not None
    return pack_places(mask)


def taken(frame: Frame, part: Part, values: Tensor) -> Floats:
    """The numbers [n] of `values` [P] that are sent, in their order."""
    if part.keep is None:
        mask = mask_of(frame, part)
        assert mask is not None
        return gather(values.numpy(), mask)
    neurons = must(frame.host)
    kept = neurons.padded(part.keep)
    if kept.dim() != 1:
        raise BadExperiment(f"keep must be of one client, a vector; got shape {tuple(part.keep.shape)}.")
    along = [kept[entries].nonzero().squeeze(1) for entries in neurons.lists]
    pieces = []
    for tensor in neurons.tensors:
        piece = values[tensor.start : tensor.stop].view(tensor.shape)
        for axis, which in tensor.owners(part.rows):
            piece = piece.index_select(axis, along[which])
        pieces.append(piece.reshape(-1))
    return torch.cat(pieces).numpy()  # faster than going through a mask


def gather(values: Floats, mask: Bits) -> Floats:
    """The numbers [n] under a mask [P]."""
    out, done = np.empty(np.count_nonzero(mask), np.float32), 0
    for start in range(0, len(values), CHUNK):
        places = np.flatnonzero(mask[start : start + CHUNK])
        # places are within bounds: 'clip' only spares numpy a buffer
        np.take(values[start : start + CHUNK], places, out=out[done : done + len(places)], mode="clip")
        done += len(places)
    return out


def sent_of_each(sizes: Sequence[int], mask: Bits | None) -> list[int]:
    """How many numbers of each tensor are sent."""
    if mask is None:
        return list(sizes)
    ends = np.cumsum([0, *sizes])
    return [int(np.count_nonzero(mask[start:stop])) for start, stop in pairwise(ends.tolist())]


def extra_arrays(frame: Frame, extras: Mapping[str, Tensor]) -> dict[str, NDArray[np.generic]]:
    """The extras, which must be those of the frame."""
    given = {name: (value.dtype, tuple(value.shape)) for name, value in extras.items()}
    agreed = {name: (dtype, tuple(shape)) for name, (dtype, shape) in frame.extras.items()}
    if given != agreed:
        raise BadExperiment(f"extras are {given}; the frame has {agreed}.")
    return {name: value.detach().cpu().contiguous().numpy() for name, value in extras.items()}


def report_array(frame: Frame, report: Mapping[str, float]) -> NDArray[np.float64]:
    """The report's numbers, which must be those of the frame."""
    if set(report) != set(frame.report):
        raise BadExperiment(f"the report has {sorted(report)}; the frame has {list(frame.report_names)}.")
    return np.array([float(report[name]) for name in frame.report_names], "<f8")
