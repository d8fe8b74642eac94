"""Seconds and joules by hand, and shared links against a simulation in plain Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.chance import Chance
from fedloom.core.clock import Seconds, forward_flops, full_seconds, processed
from fedloom.core.rule import LocalRule
from fedloom.core.work import Work
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.sub_model import SubModel
from fedloom.world.sharing import finish_times
from world.made import equipped, made
from worlds import SIZES, world

NUMBERS = 36 * 8 + 8 + 8 * 3 + 3  # of the tiny network


def test_a_client_of_table_4_by_hand():
    devices = made(up=2e3, down=1e5, cycles=2e9, cycles_per_example=4e6)
    down, compute, up = full_seconds(equipped(devices).setting, devices, Work(epochs=2))
    assert up.tolist() == pytest.approx([32 * NUMBERS / 2e3] * 12)  # 5.168 s
    assert down.tolist() == pytest.approx([32 * NUMBERS / 1e5] * 12)
    assert float(compute[1]) == pytest.approx(4e6 * 30 * 2 / 2e9)  # 30 examples twice: 0.12 s
    assert compute.tolist() == pytest.approx([4e6 * size * 2 / 2e9 for size in SIZES])


def test_an_upload_of_feddds_network_takes_as_long_as_they_say():
    setting = equipped(made()).setting
    layout = setting.layout._replace(names=("all",), shapes=((85_614,),), parameters=("all",))
    for rate, seconds in ((1e3, 2740), (5e3, 548)):
        found = full_seconds(replace(setting, layout=layout), made(up=rate), Work()).up
        assert found.tolist() == pytest.approx([seconds] * 12, rel=1e-3)


def test_latency_counts_once_each_way():
    slow, quick = (made(latency=latency) for latency in (0.75, 0.0))
    setting = equipped(slow).setting
    more = full_seconds(setting, slow, Work()).total - full_seconds(setting, quick, Work()).total
    assert more.tolist() == pytest.approx([1.5] * 12)


def test_compute_by_operations():
    devices = made(flops=1e6)
    found = full_seconds(equipped(devices).setting, devices, Work(epochs=2), "flops").compute
    forward = 2 * (36 * 8 + 8 * 3)
    assert found.tolist() == pytest.approx([3 * forward * size * 2 / 1e6 for size in SIZES])


def test_operations_of_what_runs():
    setting = world("mlp").setting
    half = torch.arange(8) < 4
    keep = torch.stack((half, half | True))
    whole = 2 * (36 * 8 + 8 * 3)
    assert forward_flops(setting, SubModel(), keep, 2).tolist() == [whole / 2, whole]
    assert forward_flops(setting, KeepOwn(), keep, 2).tolist() == [whole, whole], "the client's own network runs whole"
    assert forward_flops(setting, LocalRule(), None, 2).tolist() == [whole, whole]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 25)),
    st.integers(1, 3),
    st.integers(0, 12),
)
def test_examples_processed_are_those_of_the_batches(sizes, steps, epochs, batch):
    work, ids = Work(epochs, steps, batch), torch.arange(len(sizes))
    examples = torch.arange(40).expand(len(sizes), 40)[:, : max(sizes)]
    planned = work.plan(ids, examples, sizes, Chance(0, 1))
    taken = torch.arange(planned.real.shape[1]) < planned.steps[:, None]
    real = (planned.real & taken[:, :, None]).sum((1, 2))
    assert processed(work, torch.tensor(sizes)).tolist() == real.tolist()


def test_energy_by_hand():
    devices = made(2, compute_watts=[4.0, 2.0], radio_watts=[1.0, 0.5])
    seconds = Seconds(*(torch.tensor(pair, dtype=torch.float64) for pair in ([3.0, 1.0], [10.0, 20.0], [7.0, 9.0])))
    assert seconds.total.tolist() == [20, 30]
    assert seconds.joules(devices).tolist() == [10 * 4 + 10 * 1, 20 * 2 + 10 * 0.5]


# ---- sharing


def by_events(start: list[float], bits: list[float], own: list[float], total: float) -> list[float]:
    """The same by progressive filling, one client and one event at a time."""
    left, ends, now = dict(enumerate(bits)), dict(enumerate(start)), 0.0
    left = {i: b for i, b in left.items() if b > 0}
    while left:
        active = [i for i in left if start[i] <= now]
        speed: dict[int, float] = {}
        for i in sorted(active, key=lambda i: own[i]):
            speed[i] = min(own[i], (total - sum(speed.values())) / (len(active) - len(speed)))
        events = [start[i] for i in left if start[i] > now]
        done = {i: now + left[i] / speed[i] for i in active}
        following = min([*events, *done.values()])
        for i in active:
            left[i] -= speed[i] * (following - now)
            if done[i] <= following:
                ends[i] = following
                del left[i]
        now = following
    return [ends[i] for i in range(len(start))]


@given(st.data())
def test_shared_links_against_plain_python(data):
    count = data.draw(st.integers(1, 8))
    numbers = [data.draw(st.lists(st.integers(low, 20), min_size=count, max_size=count)) for low in (0, 0, 1)]
    start, bits, own = ([float(n) for n in column] for column in numbers)
    total = data.draw(st.floats(0.5, 60))
    found = finish_times(*(torch.tensor(column, dtype=torch.float64) for column in (start, bits, own)), total)
    assert found.tolist() == pytest.approx(by_events(start, bits, own, total), rel=1e-9)


def test_sharing_by_hand():
    start, bits, own = (torch.tensor(x, dtype=torch.float64) for x in ([0, 0, 2], [10, 20, 3], [10, 10, 1]))
    # 5 and 5 until 2 s; there one ends, and the other has 9 beside the newcomer's 1
    assert finish_times(start, bits, own, 10.0).tolist() == pytest.approx([2, 2 + 10 / 9, 5])


@settings(max_examples=30)
@given(st.data())
def test_a_wide_link_is_as_good_as_none_and_a_narrow_one_is_always_busy(data):
    count = data.draw(st.integers(1, 8))
    own = torch.tensor(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), dtype=torch.float64)
    bits = torch.tensor(data.draw(st.lists(st.integers(1, 99), min_size=count, max_size=count)), dtype=torch.float64)
    none = torch.zeros_like(own)
    torch.testing.assert_close(finish_times(none, bits, own, 100.0), bits / own)
    assert float(finish_times(none, bits, own, 0.5).max()) == pytest.approx(float(bits.sum()) / 0.5)
