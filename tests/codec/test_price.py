"""A price is the length of the message, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from codec.parcels import KINDS, PARTS, bools, frame, parcel, seeds
from fedloom.codec import Codec, ModelPart, Stamp, base_hash, encode, price, size
from fedloom.world.message_parts import REPORT

stamp = Stamp("r", 1, 1, base_hash(torch.zeros(1)))


@given(st.sampled_from(PARTS), st.sampled_from(KINDS), seeds, st.integers(1, 60), st.booleans())
@settings(max_examples=100)
def test_a_price_is_the_length(word, kind, seed, width, extras):
    item = parcel(word, kind, seed, width, extras)
    cost = size(item.expected.frame, item.part, kind)
    assert int(cost.total) == len(item.data)
    mask = item.part.numbers(item.expected.frame.neurons)
    count = item.expected.frame.total if mask is None else int(mask.sum())
    wide = {"float32": 4, "float16": 2, "bfloat16": 2}.get(kind, 1)
    scales = {"int8/block": -(-count // 256), "int8/tensor": 6}.get(kind, 0)
    assert int(cost.values) == wide * count + 4 * scales + (8 + 24 + 4 * item.expected.frame.total) * extras
    if word in ("all", "asked"):
        assert int(cost.indices) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [False, True])
def test_a_cohort_is_priced_at_once(kind, rows):
    shape = frame(30, extras=False)
    assert shape.neurons
    keys = torch.tensor(1)
    parts = [
        ModelPart(keep=bools(1, 0.5, 7, shape.neurons.size), rows=rows),
        ModelPart(keep=bools(2, 0.5, 7, shape.neurons.full_size), rows=rows),
        ModelPart(mask=torch.stack([bools(i, share, shape.total) for i, share in enumerate((0, 0.01, 0.1, 0.3, 1))])),
        ModelPart(mask=bools(3, 0.4, 7, shape.total), known=True),
    ]
    for part in parts:
        cost = size(shape, part, kind)
        rows_of = part.mask if part.keep is None else part.keep
        assert rows_of is not None
        alone = [
            part._replace(**{"mask" if part.keep is None else "keep": row}) for row in rows_of
        ]  # each client's own part
        lengths = [len(encode(shape, stamp, torch.ones(shape.total), one, kind, key=keys)) for one in alone]
        assert cost.total.tolist() == lengths
    gaps = size(shape, parts[2], kind)
    assert price(shape, kind, "bits", parts[2].mask.sum(1), gaps.indices).total.tolist() == gaps.total.tolist()


def test_the_header_does_not_depend_on_what_it_counts():
    shape = frame(extras=False)
    small = encode(
        shape, Stamp("r", 1, 1, "0" * 16), torch.ones(shape.total), ModelPart(mask=torch.zeros(shape.total).bool())
    )
    large = Stamp("a longer name", 10**8 - 1, 2**64 - 1, "f" * 16, 9999, "down")
    long = encode(shape, large, torch.ones(shape.total), ModelPart(mask=torch.ones(shape.total).bool()))
    assert small[:8] == long[:8]


@given(seeds, st.floats(0.01, 1), st.booleans(), st.integers(1, 100), st.booleans())
@settings(max_examples=60)
def test_sub_models_cost_little_more_than_their_numbers(seed, share, rows, width, reports):
    shape = frame(width, extras=False)
    assert shape.neurons
    shape = replace(shape, report=REPORT if reports else {})  # what every reply of a run says
    keep = bools(seed, share, shape.neurons.full_size if rows else shape.neurons.size)
    cost = Codec().size(shape, ModelPart(keep=keep, rows=rows))
    count = int(shape.neurons.expand(keep, rows).sum())
    bitmap = -(-len(keep) // 8)
    assert int(cost.total) <= 1.01 * (4 * count + bitmap) + 512


def test_kinds_cost_what_their_names_say():
    shape = frame(1000, extras=False)
    dense = {kind: int(size(shape, kind=kind).total) for kind in KINDS}
    assert dense["float16"] == dense["bfloat16"]
    assert 1.95 < dense["float32"] / dense["float16"] < 2
    assert 3.8 < dense["float32"] / dense["int8/block"] < 4
