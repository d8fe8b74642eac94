"""Every payload that must not be accepted, each with the reason it is refused for."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from codec.parcels import (
    KINDS,
    PARTS,
    Parcel,
    bools,
    claim,
    edit,
    frame,
    numbers,
    overwrite,
    parcel,
    place,
    reseal,
    tensors,
)
from fedloom.codec import (
    AnyKeep,
    AnyMask,
    Expected,
    Frame,
    ModelPart,
    Range,
    Reason,
    Rejected,
    Stamp,
    base_hash,
    decode,
    encode,
)
from fedloom.errors import FedloomError

every_kind = pytest.mark.parametrize("kind", KINDS)
every_part = pytest.mark.parametrize("word", PARTS)


def reason(data: Any, expected: Expected) -> str:
    """Why it is refused; 'accepted' if it is not."""
    try:
        decode(data, expected)
    except Rejected as refused:
        return refused.reason
    return "accepted"


def test_a_rejection_is_one_of_ours():
    assert issubclass(Rejected, FedloomError)
    refused = Rejected("size", "too long")
    assert str(refused) == "size: too long"
    assert refused.reason in get_args(Reason)
    assert reason(parcel().data, parcel().expected) == "accepted"


# ---- row 3: wrong shape, dtype, length


@every_kind
@every_part
def test_a_tensor_of_another_type_is_refused(word, kind):
    item = parcel(word, kind)
    for name, said in tensors(item.data).items():
        for other in {"F64", "F32", "I32", "BOOL", "O", "|V8", "[('a', '<f4')]", ""} - {said["dtype"]}:
            assert reason(claim(item.data, name, dtype=other), item.expected) == "dtype"


@every_kind
@every_part
def test_a_tensor_of_another_shape_is_refused(word, kind):
    item = parcel(word, kind)
    for name, said in tensors(item.data).items():
        shape = said["shape"]
        others = [[*shape, 1], [1, *shape], [-1], [0], [2 * n for n in shape] or [2], *one_off(shape)]
        for other in others:
            answer = reason(claim(item.data, name, shape=other), item.expected)
            contradicts = ["header"] * (name in ("values", "mask"))  # what is read from it does not fit its offsets
            assert other == shape or answer in ("shape", "mask", *contradicts), (name, other)


def one_off(shape: list[int]) -> list[list[int]]:
    """Every dimension one larger or smaller."""
    return [[n + (i == at) * by for i, n in enumerate(shape)] for at in range(len(shape)) for by in (-1, 1)]


def test_extras_of_another_shape_are_refused():
    item = parcel()
    shape = item.expected.frame
    for name, (dtype, size) in shape.extras.items():
        for other in ((*size, 1), *(tuple(each) for each in one_off(list(size))), size[1:] or (2,)):
            frame = Frame(shape.layout, shape.neurons, {**shape.extras, name: (dtype, other)}, shape.report)
            extras = {**item.given["extras"], name: torch.zeros(other, dtype=dtype)}
            assert reason(item.again(frame=frame, extras=extras), item.expected) == "shape", (name, other)


def part_with_one_more(item: Parcel) -> ModelPart | None:
    """The part with one neuron or number more or less."""
    if item.part.whole:
        return None
    which = "mask" if item.part.keep is None else "keep"
    bits = getattr(item.part, which).clone()
    bits[3] = ~bits[3]
    return item.part._replace(**{which: bits})


@every_part
def test_another_kind_of_values_is_refused(word):
    for kind in KINDS:
        for other in KINDS:
            item = parcel(word, kind)
            assert reason(item.data, replace(item.expected, kinds=(other,))) == (
                "accepted" if kind == other else "dtype"
            )
        assert reason(item.data, replace(item.expected, kinds=KINDS)) == "accepted"


@every_kind
@every_part
def test_values_too_many_or_too_few_for_the_mask_are_refused(word, kind):
    item = parcel(word, kind)
    if word in ("all", "asked"):
        other = ModelPart(mask=bools(9, 0.3, item.expected.frame.total), known=True)
        data = item.again(part=other)
        assert reason(edit(data, '"part":"asked"', f'"part":"{word}"'), item.expected) == "shape"
        return
    start, stop = place(item.data, "mask")
    last = item.data[start:stop]
    for bit in range(8):
        changed = bytes([last[0] ^ (1 << bit)]) + last[1:]
        assert reason(overwrite(item.data, start, changed), item.expected) in ("shape", "mask", "accepted")
        if word == "bits":
            assert reason(overwrite(item.data, start, changed), item.expected) == "shape"


# ---- row 4: wrong mask


@every_part
def test_only_the_mask_that_was_asked_for_is_accepted(word):
    item = parcel(word)
    exact = replace(item.expected, part=item.part)
    assert reason(item.data, exact) == "accepted"
    other = part_with_one_more(item)
    if other is not None:
        assert reason(item.again(part=other), exact) == ("shape" if word == "asked" else "mask")
    for wrong in PARTS:
        if wrong != word:
            assert reason(parcel(wrong, seed=40).data, replace(exact, stamp=parcel(wrong, seed=40).expected.stamp)) in (
                "mask",
                "shape",
            )


def test_a_mask_that_is_known_is_never_read():
    item = parcel("neurons")
    known = item.part._replace(known=True)
    data = item.again(part=known)
    message = decode(data, replace(item.expected, part=item.part))
    neurons = item.expected.frame.neurons
    assert neurons is not None
    assert item.part.keep is not None
    assert torch.equal(message.mask, neurons.expand(item.part.keep))
    assert b'"mask"' not in data
    assert reason(data, item.expected) == "mask"  # the receiver does not know it


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("rows", [False, True])
def test_neurons_up_to_the_share_are_accepted(share, rows):
    item = parcel("rows+outputs" if rows else "neurons")
    shape = item.expected.frame
    assert shape.neurons
    scores = torch.rand(
        shape.neurons.full_size if rows else shape.neurons.size, generator=torch.Generator().manual_seed(1)
    )
    expected = replace(item.expected, part=AnyKeep(share, rows, outputs=rows))
    for rounding in ("floor", "half-up", "ceil"):
        keep = shape.neurons.cut(scores, share, rounding=rounding)  # type: ignore[arg-type]
        assert reason(item.again(part=ModelPart(keep=keep, rows=rows)), expected) == "accepted"
    full = shape.neurons.cut(scores, share, rounding="ceil")
    for _, span in shape.neurons.spans(len(full)):
        more = full.clone()
        free = (~more[span]).nonzero()
        if len(free):
            more[span.start + int(free[0])] = True
            assert reason(item.again(part=ModelPart(keep=more, rows=rows)), expected) == "share"


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.9])
def test_numbers_up_to_the_share_are_accepted(share):
    item = parcel("bits")
    sizes = item.expected.frame.layout.sizes
    most = sum(-int(-share * size // 1) for size in sizes)
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(1))
    expected = replace(item.expected, part=AnyMask(share))
    for count, answer in ((0, "accepted"), (most, "accepted"), (most + 1, "share")):
        mask = torch.zeros(sum(sizes), dtype=torch.bool).index_fill(0, order[:count], True)
        assert reason(item.again(part=ModelPart(mask=mask)), expected) == answer


def test_rows_are_not_neurons_and_outputs_are_told_apart():
    item = parcel("rows")
    for rows, outputs in ((False, False), (False, True), (True, True)):
        assert reason(item.data, replace(item.expected, part=AnyKeep(1.0, rows, outputs))) == "mask"
    assert reason(item.data, replace(item.expected, part=AnyMask(1.0))) == "mask"
    assert reason(item.data, replace(item.expected, part=ModelPart())) == "mask"


# ---- row 5: NaN and infinities


@every_kind
@every_part
def test_numbers_that_are_not_finite_are_refused(word, kind):
    item = parcel(word, kind)
    mask = item.part.numbers(item.expected.frame.neurons)
    places = torch.arange(item.expected.frame.total) if mask is None else mask.nonzero().squeeze(1)
    for bad in (torch.nan, torch.inf, -torch.inf):
        for at in (places[0], places[len(places) // 2], places[-1]):
            values = item.values.index_fill(0, at, bad)
            assert reason(item.again(values=values), item.expected) == "value"
        for name in ("centre", "control"):
            for at in (0, -1):
                extra = item.given["extras"][name].clone()
                extra.view(-1)[at] = bad
                assert reason(item.again(extras={**item.given["extras"], name: extra}), item.expected) == "value"
    if mask is not None:  # what is not sent does not matter
        assert item.again(values=item.values.masked_fill(~mask, torch.nan)) == item.data


def test_small_and_negative_zeros_pass():
    item = parcel("all")
    values = torch.zeros_like(item.values)
    values[:4] = torch.tensor([-0.0, 1e-45, -1e-40, torch.finfo(torch.float32).max])
    message = decode(item.again(values=values), item.expected)
    assert torch.equal(message.values.view(torch.int32), values.view(torch.int32))


@pytest.mark.parametrize("kind", ["int8/block", "int8/tensor"])
def test_scales_and_whole_numbers_that_cannot_be_are_refused(kind):
    item = parcel("neurons", kind)
    start, stop = place(item.data, "scale")
    for bad in (np.nan, np.inf, -np.inf, -1.0, 3e38):
        for at in (start, stop - 4):
            assert reason(overwrite(item.data, at, np.float32(bad).tobytes()), item.expected) == "value", bad
    start, stop = place(item.data, "values")
    assert reason(overwrite(item.data, stop - 1, b"\x80"), item.expected) == "value"


# ---- row 7: reports that cannot be


@pytest.mark.parametrize(
    ("name", "bad"),
    [("examples", bad) for bad in (0, -1, float("nan"), float("inf"), 1e18, 10_001, 59.5)]
    + [("loss", bad) for bad in (float("nan"), float("inf"), -float("inf"), -0.1, 1e300)],
)
def test_impossible_reports_are_refused(name, bad):
    item = parcel()
    assert reason(item.again(report={**item.given["report"], name: bad}), item.expected) == "report"


def test_reports_with_other_names_are_refused():
    item = parcel()
    shape = item.expected.frame
    for names in (("examples",), ("examples", "loss", "steps"), ("examples", "lost"), ("loss",)):
        other = Frame(shape.layout, shape.neurons, shape.extras, {name: Range() for name in names})
        assert reason(item.again(frame=other, report=dict.fromkeys(names, 1.0)), item.expected) in ("header", "shape")
    silent = item.again(frame=Frame(shape.layout, shape.neurons, shape.extras), report={})
    assert reason(silent, item.expected) == "header"


# ---- row 8: cut, too long, flipped


@pytest.mark.parametrize("word", ["neurons", "gaps", "all"])
def test_cut_at_every_byte(word):
    item = parcel(word, "int8/block", width=2)
    for length in range(len(item.data)):
        assert reason(item.data[:length], item.expected) in ("size", "header", "checksum")
        resealed = reason(reseal(item.data[:length]), item.expected)
        assert resealed in ("size", "header", "checksum"), length


def test_one_byte_over_the_limit_is_not_looked_at():
    item = parcel("all")
    exact = replace(item.expected, cap=len(item.data))
    assert reason(item.data, exact) == "accepted"
    assert reason(item.data, replace(item.expected, cap=len(item.data) - 1)) == "size"
    longer = item.data + b"\0"
    assert reason(longer, exact) == "size"
    assert reason(bytes(exact.limit + 1), exact) == "size"
    assert reason(reseal(longer), item.expected) == "size"
    assert reason(bytes(item.expected.limit + 1), item.expected) == "size"


def test_the_default_limit_lets_every_message_through():
    for word in PARTS:
        for kind in KINDS:
            item = parcel(word, kind, width=1)
            assert len(item.data) <= item.expected.limit


def test_a_thousand_flips():
    items = [parcel(word, kind, width=5) for word in PARTS for kind in KINDS]
    random = np.random.default_rng(8)
    for number in range(1000):
        item = items[number % len(items)]
        raw = bytearray(item.data)
        at = int(random.integers(0, 8 * len(raw)))
        raw[at // 8] ^= 1 << (at % 8)
        assert reason(bytes(raw), item.expected) in ("header", "version", "checksum")


@pytest.mark.parametrize("data", [b"", b"\0" * 8, None, "text", 5, [1], np.zeros(100, np.uint8)])
def test_what_is_not_a_message_is_refused(data):
    assert reason(data, parcel().expected) == "size"


def test_bytes_may_come_in_any_box():
    item = parcel()
    for box in (bytearray(item.data), memoryview(item.data), memoryview(b"ab" + item.data)[2:]):
        assert reason(box, item.expected) == "accepted"
    assert reason(memoryview(item.data)[::2], item.expected) == "size"
    assert reason(memoryview(np.zeros(100)), item.expected) == "size"


# ---- row 9: claims of memory that is not there


def test_claims_of_terabytes_allocate_nothing():
    item = parcel("gaps", width=1000)
    vast, spoilt = 2**40, []
    for name in tensors(item.data):
        spoilt += [claim(item.data, name, shape=shape) for shape in ([vast], [vast, vast])]
        spoilt += [claim(item.data, name, offsets=ends) for ends in ([0, vast], [vast, vast], [-vast, vast])]
    for length in (2**63, 2**40, len(item.data) + 1, item.expected.longest_header + 8):
        spoilt.append(reseal(length.to_bytes(8, "little") + item.data[8:]))
    spoilt += [edit(item.data, None, text) for text in ("[" * 600, "{" * 300, '{"a":' * 100, "9" * 500, "{}", "null")]
    tracemalloc.start()
    for data in spoilt:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert reason(data, item.expected) in ("header", "shape", "mask")
        assert tracemalloc.get_traced_memory()[1] - before < 200_000  # the model has 84,000 bytes
    tracemalloc.stop()


@every_kind
@every_part
def test_reading_takes_less_than_twice_the_limit(word, kind):
    item = parcel(word, kind, width=3000)
    decode(item.data, item.expected)
    tracemalloc.start()
    decode(item.data, item.expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + item.expected.frame.total < 2 * item.expected.limit  # torch's own mask is not traced


# ---- row 10: other versions, runs, rounds, clients, models


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": "another run"}, "run"),
        ({"round": 4}, "round"),
        ({"round": 2}, "round"),
        ({"attempt": 2}, "round"),
        ({"client": 8}, "client"),
        ({"base": "0" * 16}, "base"),
        ({"direction": "down"}, "header"),
    ],
)
def test_messages_of_another_occasion_are_refused(change, why):
    item = parcel()
    assert reason(item.again(stamp=replace(item.expected.stamp, **change)), item.expected) == why


def test_another_version_is_refused():
    item = parcel()
    for other in ("fedloom-2", "fedloom-0", "fedloom-10", "fedloom-"):
        assert reason(edit(item.data, "fedloom-1", other), item.expected) == "version"
    assert reason(edit(item.data, "fedloom-1", "anything"), item.expected) == "header"


def test_a_round_cannot_be_played_again():
    shape = frame(extras=False)
    models = [numbers(seed, shape.total) for seed in (1, 2)]
    stamps = [
        [Stamp("r", turn + 1, client, base_hash(model)) for client in range(20)] for turn, model in enumerate(models)
    ]
    data = [encode(shape, stamp, models[0]) for stamp in stamps[0]]
    assert {reason(message, Expected(shape, stamp)) for message, stamp in zip(data, stamps[0])} == {"accepted"}
    assert {reason(message, Expected(shape, stamp)) for message, stamp in zip(data, stamps[1])} == {"round"}
    assert {reason(message, Expected(shape, stamp)) for message, stamp in zip(data, stamps[0][1:])} == {"client"}


def test_a_message_reads_the_same_every_time():
    item = parcel("rows", "int8/tensor")
    first, *others = (decode(item.data, item.expected) for _ in range(3))
    for other in others:
        assert torch.equal(first.values, other.values)
        assert torch.equal(first.mask, other.mask)
        assert first.report == other.report


# ---- spelling: only the receiver's own way of writing a header is accepted


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"codec":"float32"', '"codec":"float32","note":"x"'),
        ('"codec":"float32"', '"codec":"float32","codec":"float32"'),
        ('"part":"neurons"', '"part":"\\u006eeurons"'),
        ('"values":{', '"values":{"dtype":"F32",'),
        ('"values":{', '"other":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"values":{'),
        ("/00000003/", "/3/"),
        ('"stamp"', '"stomp"'),
        ('{"__metadata__"', '{ "__metadata__"'),
        ('"shape":[  ', '"shape":[ '),
        ('"__metadata__":{', '"__metadata__":[{'),
        (',"stamp"', ',"stam\u00e9"'),
    ],
)
def test_headers_are_spelt_in_one_way(old, new):
    item = parcel()
    assert reason(edit(item.data, old, new), item.expected) in ("header", "round", "run", "shape")


def test_offsets_with_holes_overlaps_or_ends_outside_are_refused():
    item = parcel("neurons")
    for name, said in tensors(item.data).items():
        start, stop = said["data_offsets"]
        for low, high in ((-1, 0), (0, 4), (1, 1), (4, 4), (0, -1), (-start - 1, 0), (0, 10**6)):
            assert reason(claim(item.data, name, offsets=[start + low, stop + high]), item.expected) == "header"


def test_extras_that_were_not_agreed_are_refused():
    item = parcel()
    shape = item.expected.frame
    for extras in ({}, {"other": (torch.float32, (2,))}, {**shape.extras, "more": (torch.int64, ())}):
        other = Frame(shape.layout, shape.neurons, extras, shape.report)
        values = {name: torch.zeros(size, dtype=dtype) for name, (dtype, size) in extras.items()}
        assert reason(item.again(frame=other, extras=values), item.expected) in ("header", "shape")
