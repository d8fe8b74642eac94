"""`Frame`, what sender and receiver agree on before a message; all of its lengths but two follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from typing import NamedTuple

import torch

from fedloom.codec.mask_bytes import bitmap_size
from fedloom.codec.model_part import keep_word, require
from fedloom.codec.number_formats import DTYPES, Kind, scale_count
from fedloom.errors import BadExperiment
from fedloom.layout import Layout
from fedloom.neurons.map import NeuronMap

ITEM = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "U16": 2, "I8": 1, "U8": 1}  # bytes
EXTRA = {torch.float32: "F32", torch.int64: "I64"}
NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")


class Range(NamedTuple):
    """Limits of a reported number, inclusive."""

    low: float = -inf
    high: float = inf
    whole: bool = False  # a count


class Entry(NamedTuple):
    """One tensor in the container."""

    name: str
    dtype: str  # as in safetensors
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return ITEM[self.dtype] * prod(self.shape)


@dataclass(frozen=True, eq=False)
class Frame:
    """The model, and what travels with its numbers: tensors of fixed shapes and a report of numbers in fixed ranges."""

    layout: Layout
    neurons: NeuronMap | None = None  # needed if whole neurons are sent
    extras: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)  # float32 or int64
    report: Mapping[str, Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and dtypes that the header cannot hold."""
        for name in (*self.extras, *self.report):
            if not NAME.fullmatch(name):
                raise BadExperiment(f"name {name!r} of an extra or report; expected 1 to 64 of A-Z a-z 0-9 _ . / -")
        for name, (dtype, _) in self.extras.items():
            if dtype not in EXTRA:
                raise BadExperiment(f"extra '{name}' is {dtype}; expected float32 or int64, so convert it before.")

    @cached_property
    def total(self) -> int:
        """The number P of the model's numbers."""
        return self.layout.total

    @cached_property
    def host(self) -> NeuronMap | None:
        """The neurons on the host."""
        return self.neurons and self.neurons.to("cpu")

    @cached_property
    def report_names(self) -> tuple[str, ...]:
        """The reported names, in the order of their numbers in a message."""
        return tuple(sorted(self.report))

    def index_size(self, word: str) -> int:
        """Bytes of the mask in a message; 'gaps' take fewer than this."""
        if word in ("all", "asked"):
            return 0
        if word in ("bits", "gaps"):
            return bitmap_size(self.total)
        neurons = require(self.neurons)
        full = word in (keep_word(False, True), keep_word(True, True))
        return bitmap_size(neurons.full_size if full else neurons.size)

    def entries(self, kind: Kind, word: str, count: int, index: int) -> list[Entry]:
        """The tensors of a message of `count` numbers with a mask of `index` bytes, widest dtypes first."""
        scales = scale_count(kind, count, len(self.layout.names))
        entries = [Entry("report", "F64", (len(self.report),))] if self.report else []
        entries += [Entry(f"extra.{name}", EXTRA[d], tuple(s)) for name, (d, s) in sorted(self.extras.items())]
        entries += [Entry("values", DTYPES[kind], (count,))]
        entries += [Entry("scale", "F32", (scales,))] if DTYPES[kind] == "I8" else []
        entries += [] if word in ("all", "asked") else [Entry("mask", "U8", (index,))]
        return sorted(entries, key=lambda entry: -ITEM[entry.dtype])  # aligns all of them
