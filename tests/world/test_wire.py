"""Every reply through the codec: priced to the byte, and as it would arrive."""

from __future__ import annotations

import pytest

from fedloom.codec import Codec
from fedloom.errors import RunStopped
from fedloom.method import Method
from fedloom.methods.fjord import fjord
from fedloom.world.wire import Wire
from worlds import assert_identical, every_method, everything, play, small, world


@every_method
def test_a_wire_of_whole_numbers_changes_nothing(method: Method) -> None:
    here = world("mlp")
    wire = Wire(here.local(method), method, here.setting, exact=True)  # raises if bytes or numbers are not as priced
    assert_identical(everything(play(here, method, wire)), everything(play(here, method, here.local(method))))


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("scale", ["block", "tensor"])
def test_lossy_values_arrive_as_the_codec_brings_them(values: str, scale: str) -> None:
    here, method = world("mlp"), small(Method())
    codec = Codec(values=values, scale=scale)  # type: ignore[arg-type]
    wired = play(here, method, Wire(here.local(method), method, here.setting, codec, exact=True))
    plain = play(here, method, here.local(method))
    first, sent = wired.replies[0].params, plain.replies[0].params
    off = (first - sent).abs()
    assert off.max() > 0
    change = (sent - here.model).abs()
    largest = change.amax(1, keepdim=True).expand_as(change) if values == "int8" else change
    assert (off <= codec.bound(largest) + 1e-7 * sent.abs()).all()


def test_prices_are_apart_and_smaller_parts_cost_less() -> None:
    here, totals = world("mlp"), []
    for method in (small(fjord((0.5,))), small(Method())):
        wire = Wire(here.local(method), method, here.setting)
        run = play(here, method, wire, rounds=1)
        down, up = wire.prices(run.tasks[0], run.replies[0])
        assert not up.indices.any()  # the server chose the part
        assert bool((down.indices > 0).all()) == (run.tasks[0].mask is not None)
        totals.append(int(up.total.sum()))
    assert totals[0] < totals[1]


def test_a_wrong_price_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, method = world("mlp"), small(Method())
    wire = Wire(here.local(method), method, here.setting)
    right = wire.prices

    def wrong(task, reply):  # type: ignore[no-untyped-def]
        down, up = right(task, reply)
        return down, up._replace(overhead=up.overhead + 1)

    monkeypatch.setattr(wire, "prices", wrong)
    with pytest.raises(RunStopped, match=r"bytes instead of"):
        play(here, method, wire, rounds=1)
