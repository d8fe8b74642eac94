"""What is written is read: values, places, extras and report, for every kind and every part."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load
from torch import Tensor

from codec.parcels import KEY, KINDS, PARTS, bools, frame, numbers, parcel, part_of, seeds
from fedloom.chance import Chance
from fedloom.codec import AnyKeep, AnyMask, Codec, Expected, Frame, ModelPart, Stamp, base_hash, decode, encode
from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap

every_message = pytest.mark.parametrize(("word", "kind"), [(word, kind) for word in PARTS for kind in KINDS])


def codec_of(kind: str) -> Codec:
    values, _, scale = kind.partition("/")
    return Codec(values=values, scale=scale or "block")  # type: ignore[arg-type]


def sent(values: Tensor, part: ModelPart, neurons: NeuronMap | None) -> Tensor:
    mask = part.numbers(neurons)
    return values if mask is None else values[mask]


@given(st.sampled_from(PARTS), st.sampled_from(KINDS), seeds, st.integers(1, 40), st.booleans())
@settings(max_examples=150)
def test_what_is_written_is_read(word, kind, seed, width, extras):
    item = parcel(word, kind, seed, width, extras)
    shape = item.expected.frame
    message = decode(item.data, item.expected)
    codec = codec_of(kind)

    mask = item.part.numbers(shape.neurons)
    received = codec.roundtrip(item.values[None], KEY[None], None if mask is None else mask[None], shape.layout)[0]
    assert torch.equal(message.values.view(torch.int32), sent(received, item.part, shape.neurons).view(torch.int32))
    if kind == "float32":
        exact = sent(item.values, item.part, shape.neurons)
        assert torch.equal(message.values.view(torch.int32), exact.view(torch.int32))  # -0.0 stays -0.0
    if mask is None:
        assert message.mask is None
    else:
        assert torch.equal(message.mask, mask)
    if item.part.keep is not None:
        assert torch.equal(message.keep, item.part.keep)
    assert set(message.extras) == set(shape.extras)
    for name, value in message.extras.items():
        assert value.dtype == item.given["extras"][name].dtype
        assert torch.equal(value, item.given["extras"][name])
    assert message.report == ({"loss": 0.25, "examples": 60} if extras else {})


@given(st.sampled_from(PARTS), st.sampled_from(KINDS), seeds)
@settings(max_examples=60)
def test_errors_stay_within_the_stated_bound(word, kind, seed):
    item = parcel(word, kind, seed)
    shape, codec = item.expected.frame, codec_of(kind)
    message = decode(item.data, item.expected)
    exact = sent(item.values, item.part, shape.neurons)
    largest = exact.abs()
    if kind == "int8/block":
        blocks = [block.abs().max().expand(len(block)) for block in exact.split(256) if len(block)]
        largest = torch.cat([exact[:0], *blocks])
    if kind == "int8/tensor":
        mask = item.part.numbers(shape.neurons)
        whole = torch.ones(shape.total, dtype=torch.bool) if mask is None else mask
        tensors = exact.split([int(piece.sum()) for piece in whole.split(shape.layout.sizes)])
        largest = torch.cat([t.abs().max().expand(len(t)) if len(t) else t for t in tensors])
    assert ((message.values.double() - exact.double()).abs() <= codec.bound(largest)).all()


@every_message
def test_values_come_back_to_their_places(word, kind):
    item = parcel(word, kind)
    message = decode(item.data, item.expected)
    base = numbers(99, item.expected.frame.total)
    placed = message.on(base)
    mask = item.part.numbers(item.expected.frame.neurons)
    assert torch.equal(placed if mask is None else placed[mask], message.values)
    assert mask is None or torch.equal(placed[~mask], base[~mask])


@every_message
def test_bytes_are_a_safetensors_file_of_equal_numbers(word, kind):
    item = parcel(word, kind)
    found = load(item.data)
    assert found["extra.control"].tolist() == item.given["extras"]["control"].tolist()
    assert found["extra.steps"] == 12
    assert found["report"].tolist() == [60, 0.25]  # in the order of their names
    assert len(found["values"]) == len(decode(item.data, item.expected).values)
    assert ("mask" in found) == (word not in ("all", "asked"))
    assert ("scale" in found) == kind.startswith("int8")


@every_message
def test_equal_input_gives_equal_bytes(word, kind):
    item = parcel(word, kind)
    backwards = {name: dict(reversed(item.given[name].items())) for name in ("extras", "report")}
    assert item.again() == item.again(**backwards) == item.data
    shape = item.expected.frame
    other = Frame(
        shape.layout, shape.neurons, dict(reversed(shape.extras.items())), dict(reversed(shape.report.items()))
    )
    assert item.again(frame=other) == item.data
    assert item.again(part=item.part._replace(mask=item.part.numbers(shape.neurons))) == item.data
    assert item.again(values=-1 - item.values) != item.data


def test_one_message_as_it_is_written():
    shape = frame(3, extras=False)  # 11-3-9-5
    keep = torch.tensor([True, False, False] + [True, True] + [False] * 7)  # 11-1-2-5
    message = encode(shape, Stamp("r", 2, 5, "0123456789abcdef"), torch.ones(shape.total), ModelPart(keep=keep))
    length = int.from_bytes(message[:8], "little")
    assert length % 8 == 0
    head, data = message[8 : 8 + length].decode(), message[8 + length :]
    start, stop = head.split('"checksum":"')
    assert start == '{"__metadata__":{"format":"fedloom-1",'
    assert stop[8:].rstrip() == (
        f'","stamp":"{blake2b(b"r", digest_size=8).hexdigest()}/00000002/00000000000000000005/0001/up  /'
        '0123456789abcdef","codec":"float32","part":"neurons"},'
        '"values":{"dtype":"F32","shape":[        31],"data_offsets":[         0,       124]},'
        '"mask":{"dtype":"U8","shape":[         2],"data_offsets":[       124,       126]}}'
    )
    assert data == np.ones(31, "<f4").tobytes() + bytes([0b00011001, 0])


def test_the_shorter_way_to_write_a_mask_is_taken():
    shape = frame(40)
    for share in (0.0, 0.02, 0.1, 0.12, 0.13, 0.5, 1.0):
        mask = bools(1, share, shape.total)
        words = {b'"part":"bits"': -(-shape.total // 8), b'"part":"gaps"': int(mask.sum())}
        data = parcel("bits", width=40).again(part=ModelPart(mask=mask))
        taken = next(word for word in words if word in data)
        assert (taken == b'"part":"gaps"') == (words[b'"part":"gaps"'] < words[b'"part":"bits"']), share  # short gaps


def test_a_base_hash_tells_models_apart():
    model = numbers(0, 1000)
    assert base_hash(model) == base_hash(model.clone()) == base_hash(model.double())
    one = model.clone()
    one[500] = torch.nextafter(one[500], torch.tensor(1e9))
    assert base_hash(one) != base_hash(model)
    assert base_hash(torch.tensor([0.0])) != base_hash(torch.tensor([-0.0]))


def test_int8_takes_its_chance_from_the_key():
    shape, values = frame(extras=False), numbers(5, frame().total)
    stamp = Stamp("r", 1, 1, base_hash(values))
    first, again, other = (
        encode(shape, stamp, values, kind="int8/block", key=Chance(0, 1).key("codec", client)) for client in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"values": torch.zeros(3)}, "vector of"),
        ({"kind": "float33"}, "did you mean 'float32'"),
        ({"kind": "int8/block", "key": None}, "need a key"),
        ({"part": ModelPart(mask=torch.ones(4, dtype=torch.bool))}, "mask must be bool"),
        ({"part": ModelPart(mask=torch.ones(frame().total))}, "mask must be bool"),
        ({"part": ModelPart(mask=torch.ones(2, frame().total, dtype=torch.bool))}, "mask must be bool"),
        ({"part": ModelPart(keep=torch.ones(2, 29, dtype=torch.bool))}, "one client"),
        ({"frame": Frame(frame().layout)}, "no neurons"),
        ({"extras": {}}, "extras are"),
        ({"report": {"loss": 1.0}}, "the report has"),
    ],
)
def test_what_cannot_be_written_is_refused(change, text):
    with pytest.raises(BadExperiment, match=text):
        parcel().again(**change)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stamp("r", -1, 0, "0" * 16),
        lambda: Stamp("r", 1, 2**70, "0" * 16),
        lambda: Stamp("r", 1, 1.5, "0" * 16),  # type: ignore[arg-type]
        lambda: Stamp("r", 1, True, "0" * 16),
        lambda: Stamp("r", 1, 1, "xyz"),
        lambda: Stamp("r", 1, 1, "0" * 16, direction="left"),  # type: ignore[arg-type]
        lambda: Frame(frame().layout, extras={'a"b': (torch.float32, ())}),
        lambda: Frame(frame().layout, extras={"a": (torch.float64, ())}),
        lambda: Frame(frame().layout, report={"": parcel().expected.frame.report["loss"]}),
        lambda: AnyKeep(0.0),
        lambda: AnyMask(1.01),
        lambda: AnyMask(float("nan")),
        lambda: Expected(frame(), parcel().expected.stamp, kinds=("int8",)),  # type: ignore[arg-type]
        lambda: Expected(Frame(frame().layout), parcel().expected.stamp, AnyKeep(1.0)),
        lambda: Expected(frame(), parcel().expected.stamp, ModelPart(mask=torch.ones(3, dtype=torch.bool))),
    ],
)
def test_manifests_and_codecs_are_checked_when_made(make):
    with pytest.raises(BadExperiment):
        make()


@pytest.mark.parametrize("wrong", [{"values": "int4"}, {"scale": "row"}, {"feedback": 2}, {"value": "int8"}])
def test_codecs_are_checked_when_made(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Codec(**wrong)


def test_a_codec_reads_its_own_kind_only():
    item = parcel("all", "float16")
    assert torch.equal(Codec(values="float16").decode(item.data, item.expected).values, item.values.half().float())
    with pytest.raises(Exception, match="dtype"):
        Codec().decode(item.data, item.expected)


def test_parts_say_how_they_travel():
    shape = frame()
    for word in PARTS:
        assert part_of(word, shape, 0).word(shape.neurons) == word.replace("gaps", "bits")
