"""`encode`, a pure function from a message to its bytes. P numbers in the model, n of them sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.codec.container import header, seal
from fedloom.codec.frame import Frame
from fedloom.codec.mask_bytes import Bits, Places, gather, pack as pack_places, pack_bits, sparse
from fedloom.codec.model_part import ModelPart, check_mask, require
from fedloom.codec.number_formats import DTYPES, Floats, Kind, draws, pack
from fedloom.codec.stamp import Stamp
from fedloom.errors import BadExperiment, unknown


def encode(
    frame: Frame,
    stamp: Stamp,
    values: Tensor,
    part: ModelPart = ModelPart(),  # noqa: B008  a NamedTuple does not change
    kind: Kind = "float32",
    extras: Mapping[str, Tensor] | None = None,
    report: Mapping[str, float] | None = None,
    key: Tensor | None = None,
) -> bytes:
    """Encode the numbers of a model [P] that are in `part`, with extras and report.

    int8 needs a key, such as `Chance.key("codec", client)`. Numbers that are not finite are written as they are: the
    receiver refuses them with a reason.
    """
    check_kind(kind, key)
    if values.shape != (frame.total,):
        raise BadExperiment(f"values must be a vector of {frame.total} numbers; got shape {tuple(values.shape)}.")
    flat = values.detach().to("cpu", torch.float32).contiguous()
    part = part.cpu()
    rounds = DTYPES[kind] == "I8"
    mask = mask_of(frame, part) if part.keep is None or rounds else None  # else it is not needed
    thin = None if mask is None else sparse(mask)
    numbers = [gather(flat.numpy(), mask, thin)] if part.keep is None else gather_kept(frame, part, flat)
    draw = gather(draws(key.reshape(1), frame.total)[0].numpy(), mask, thin) if rounds and key is not None else None
    word, places = write_places(frame, part, mask, thin)
    pieces: dict[str, NDArray[np.generic]] = {}
    if kind != "float32":
        joined = numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
        written = pack(kind, joined, draw, sent_per_tensor(kind, frame.layout.sizes, mask))
        pieces = dict(zip(("values", "scale"), written))
    pieces |= {} if places is None else {"mask": places}
    pieces |= {f"extra.{name}": array for name, array in extra_arrays(frame, extras or {}).items()}
    pieces |= {"report": report_array(frame, report or {})} if frame.report else {}
    count = sum(len(some) for some in numbers)
    entries = frame.entries(kind, word, count, 0 if places is None else len(places))
    head = header(fields(frame, stamp, kind, word), entries)
    ordered = [[pieces[entry.name]] if entry.name in pieces else numbers for entry in entries]
    return seal(head, [array for arrays in ordered for array in arrays])


def fields(frame: Frame, stamp: Stamp, kind: str, word: str) -> dict[str, str]:
    """The header's facts about a message."""
    names = {"report": ",".join(frame.report_names)} if frame.report else {}
    return {"stamp": str(stamp), "codec": kind, "part": word, **names}


def check_kind(kind: str, key: Tensor | None) -> None:
    """Refuse an unknown kind, and stochastic rounding without a key."""
    if kind not in DTYPES:
        raise BadExperiment(unknown("kind of values", kind, DTYPES))
    if key is None and DTYPES[kind] == "I8":
        raise BadExperiment(
            f"values as {kind} are rounded stochastically and need a key; give Chance.key('codec', client)."
        )


def mask_of(frame: Frame, part: ModelPart) -> Bits | None:
    """The mask [P] of one client; None: all numbers."""
    mask = part.numbers(frame.host)
    return None if mask is None else check_mask(mask, frame.total, 1).numpy()


def write_places(
    frame: Frame, part: ModelPart, mask: Bits | None, thin: Places | None
) -> tuple[str, NDArray[np.uint8] | None]:
    """The word for how the part is written, and the bytes of its mask, if that is sent."""
    word = part.word(frame.host)
    if word in ("all", "asked"):
        return word, None
    if part.keep is not None:
        return word, pack_bits(part.keep.numpy())
    assert mask is not None
    return pack_places(mask, thin)


def gather_kept(frame: Frame, part: ModelPart, values: Tensor) -> list[Floats]:
    """The numbers in `values` [P] of kept neurons, tensor by tensor; faster than through a mask."""
    assert part.keep is not None
    neurons = require(frame.host)
    kept = neurons.padded(part.keep)
    if kept.dim() != 1:
        raise BadExperiment(f"keep must be of one client, a vector; got shape {tuple(part.keep.shape)}.")
    along = [kept[entries].nonzero().squeeze(1) for entries in neurons.lists]
    pieces = []
    for tensor in neurons.tensors:
        piece = values[tensor.start : tensor.stop].view(tensor.shape)
        for axis, which in tensor.owners(part.rows):
            piece = piece.index_select(axis, along[which])
        pieces.append(piece.reshape(-1).numpy())
    return pieces


def sent_per_tensor(kind: Kind, sizes: Sequence[int], mask: Bits | None) -> list[int]:
    """How many numbers of each tensor are sent; counted only for one scale per tensor."""
    if mask is None or kind != "int8/tensor":
        return list(sizes)
    ends = np.cumsum([0, *sizes])
    return [int(np.count_nonzero(mask[start:stop])) for start, stop in pairwise(ends.tolist())]


def extra_arrays(frame: Frame, extras: Mapping[str, Tensor]) -> dict[str, NDArray[np.generic]]:
    """The extras as arrays; others than the frame's are refused."""
    given = {name: (value.dtype, tuple(value.shape)) for name, value in extras.items()}
    agreed = {name: (dtype, tuple(shape)) for name, (dtype, shape) in frame.extras.items()}
    if given != agreed:
        raise BadExperiment(f"extras are {given}; the frame has {agreed}.")
    return {name: value.detach().cpu().contiguous().numpy() for name, value in extras.items()}


def report_array(frame: Frame, report: Mapping[str, float]) -> NDArray[np.float64]:
    """The report as an array; others than the frame's numbers are refused."""
    if set(report) != set(frame.report):
        raise BadExperiment(f"the report has {sorted(report)}; the frame has {list(frame.report_names)}.")
    return np.array([float(report[name]) for name in frame.report_names], "<f8")
