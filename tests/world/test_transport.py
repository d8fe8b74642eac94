"""What a transport adds: seconds and bytes by hand, slow start window by window, and nothing where it is neutral."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.core.clock import download, full_seconds, upload
from fedloom.core.devices import Devices
from fedloom.core.transport import NEUTRAL, SEGMENT, Transport
from fedloom.core.work import Work
from fedloom.errors import BadData, BadExperiment
from fedloom.evaluate.targets import spent
from fedloom.methods.fedavg import fedavg
from fedloom.parts.allocate.affordable import affordable
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.world.fleets import TRANSPORTS, make_devices
from world.made import FLEET, Watched, equipped, made, simulated
from worlds import play, small

ALL = small(fedavg(), select=Uniform(FLEET))
SIZE = torch.tensor([40_000])


def over(size: int = 1, **columns: Any) -> Devices:
    """Equal devices; columns of devices and of a transport are given."""
    return make_devices("equal", size, 0, **columns)


def test_an_exchange_by_hand():
    devices = over(up=2e6, down=1e7, latency=0.05, overhead_seconds=0.8, round_trips=4.0,
                   round_trips_per_megabyte=2.0, header_factor=1.05, requests_up=9000, requests_down=3000)  # fmt: skip
    down, up = download(SIZE, devices), upload(SIZE, devices)
    assert down.bits.item() == pytest.approx(8 * (42_000 + 3000))
    assert up.bits.item() == pytest.approx(8 * (42_000 + 9000))
    assert down.seconds.item() == pytest.approx(0.8 + 4 * 0.1 + 0.05 + 2 * 0.04 * 0.1 + 0.036)
    assert up.seconds.item() == pytest.approx(0.05 + 2 * 0.04 * 0.1 + 0.204)


def test_no_message_has_no_bytes():
    devices = over(transport="flower", packet_loss=0.1)
    assert download(torch.tensor([0]), devices).bits.item() == 0
    assert upload(torch.tensor([0]), devices).bits.item() == 0


def test_losses_are_sent_again_and_bound_the_rate():
    devices = over(up=2e6, latency=0.05, packet_loss=0.05, round_trips=3.0)
    up = upload(SIZE, devices)
    assert up.bits.item() == pytest.approx(8 * 40_000 / 0.95)
    # 0.1 s * sqrt(2 * 0.05 / 3) + 0.3 s * 3 * sqrt(3 * 0.05 / 8) * 0.05 * (1 + 32 * 0.05^2), for a segment
    assert up.rate.item() == pytest.approx(8 * SEGMENT / (0.0182574 + 0.0066549), rel=1e-4)  # 465 kbit/s
    assert upload(SIZE, over(up=1e5, latency=0.05, packet_loss=0.05)).rate.item() == 1e5  # the link is slower
    waits = download(SIZE, devices).delay.item() - 0.05
    assert waits == pytest.approx(3 * (0.1 + (1 - 0.95**2) * (0.1 + 0.2)))


def windows(size: float, rate: float, trip: float, first: float) -> float:
    """Seconds in which the link waits for confirmations, window by window."""
    idle, window, left = 0.0, first, size
    while left > window and 8 * window / rate < trip:
        idle, left, window = idle + trip - 8 * window / rate, left - window, 2 * window
    return idle


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 1e8), st.floats(1e4, 1e9), st.floats(0, 1), st.floats(1, 1e6))
def test_slow_start_is_that_of_every_window(size, rate, latency, first):
    added = Transport(**{
        name: torch.tensor([value], dtype=torch.float64) for name, value in {**NEUTRAL, "first_window": first}.items()
    })  # fmt: skip
    size_, rate_, latency_ = (torch.tensor([value], dtype=torch.float64) for value in (size, rate, latency))
    found = added.delay(size_, size_, rate_, latency_).item()
    assert found == pytest.approx(windows(size, rate, 2 * latency, first), rel=1e-6, abs=1e-6)


def test_slow_start_of_a_message_of_flower():
    devices = over(down=1e7, latency=0.05, first_window=14_480)  # 11.6 ms, 23.2 ms, and the rest
    assert download(SIZE, devices).delay.item() == pytest.approx(0.05 + (0.1 - 0.011584))
    assert download(2 * SIZE, devices).delay.item() == pytest.approx(0.05 + (0.1 - 0.011584) + (0.1 - 0.023168))


# ---- neutral values


def test_neutral_columns_are_none(tmp_path):
    assert over(**NEUTRAL).transport is None
    file = tmp_path / "devices.csv"
    file.write_text("client,overhead_seconds,header_factor\n0,0,1\n1,0,1\n")
    assert make_devices(str(file), 2, 0).transport is None


def test_who_has_neutral_columns_is_as_without_to_the_bit():
    plain = make_devices("mobile-4g", 50, 1)
    columns = {name: torch.full((50,), value, dtype=torch.float64) for name, value in NEUTRAL.items()}
    columns["overhead_seconds"][7] = 3.0
    mixed, others = plain._replace(transport=Transport(**columns)), torch.arange(50) != 7
    sizes = torch.arange(50) * 12_345 + 1
    for way in (download, upload):
        assert torch.equal(way(sizes, mixed).seconds[others], way(sizes, plain).seconds[others])
    assert (download(sizes, mixed).seconds - download(sizes, plain).seconds)[7].item() == pytest.approx(3)


# ---- where columns come from


def test_a_transport_with_columns_of_a_table_and_of_all(tmp_path: Path):
    file = tmp_path / "devices.csv"
    file.write_text("client,packet_loss,up\n0,0.05,1e6\n1,0,2e6\n")
    added = make_devices(str(file), 2, 0, transport="flower", round_trips=5.0).transport
    assert added is not None
    assert added.packet_loss.tolist() == [0.05, 0]
    assert added.round_trips.tolist() == [5, 5]
    assert added.overhead_seconds.tolist() == [TRANSPORTS["flower"]()["overhead_seconds"]] * 2
    assert added.overhead_seconds.dtype == torch.float64


def test_devices_of_some_clients_have_their_transport():
    devices = make_devices("equal", 4, 0)
    columns = {name: torch.arange(4, dtype=torch.float64) for name in NEUTRAL}
    some = devices._replace(transport=Transport(**columns)).at(torch.tensor([3, 1])).to("cpu")
    assert some.transport is not None
    assert all(column.tolist() == [3, 1] for column in some.transport)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"transport": "flowers"}, "unknown transport of a fleet 'flowers'; did you mean 'flower'"),
        ({"header_factor": 0.9}, "header_factor of the fleet is 0.9; expected a finite number not below 1"),
        ({"packet_loss": 1}, "packet_loss of the fleet is 1; expected a finite number not below 0 and below 1"),
        ({"overhead_second": 1.0}, "did you mean 'overhead_seconds'"),
    ],
)
def test_impossible_transports_are_refused(settings, text):
    with pytest.raises(BadExperiment, match=text):
        make_devices("equal", 3, 0, **settings)


def test_impossible_tables_are_refused(tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text("client,round_trips\n0,-1\n")
    with pytest.raises(BadData, match="column round_trips, row 0 is -1; expected a finite number not below 0"):
        make_devices(str(file), 1, 0)


# ---- rounds


def round_of(devices: Devices, **settings: Any) -> Watched:
    """The engine after a round of everybody."""
    here = equipped(devices)
    engine = simulated(here, ALL, **settings)
    play(here, ALL, engine, rounds=1)
    return engine


def flower_devices(**columns: float) -> Devices:
    """The tiny world's devices on Flower."""
    transport = make_devices("equal", FLEET, 0, transport="flower", **columns).transport
    return made()._replace(transport=transport)


def test_a_round_takes_what_its_exchanges_take():
    devices = flower_devices()
    plain, engine = round_of(made()), round_of(devices)
    sizes = engine.columns["bytes_down"], engine.columns["bytes_up"]
    assert torch.equal(sizes[0], plain.columns["bytes_down"]), "a message is what it was"
    assert torch.equal(engine.columns["seconds_down"], download(sizes[0], devices).seconds)
    assert torch.equal(engine.columns["seconds_up"], upload(sizes[1], devices).seconds)
    assert (engine.columns["seconds"] > plain.columns["seconds"] + 0.8).all()


def test_messages_that_share_a_link_share_it_with_their_headers():
    plain, slow = (round_of(d, server_up=1e4) for d in (made(up=1e6), flower_devices(overhead_seconds=0.0)))
    bits = upload(slow.columns["bytes_up"], flower_devices()).bits.sum()
    assert slow.columns["seconds"].max() >= bits / 1e4
    assert plain.columns["seconds"].max() < bits / 1e4


def test_who_is_away_exchanges_nothing():
    engine = round_of(flower_devices()._replace(availability=torch.full((FLEET,), 1e-9, dtype=torch.float64)))
    assert engine.columns["seconds"].sum() == 0


def test_methods_that_ask_for_seconds_reckon_with_it():
    devices = flower_devices()
    setting = equipped(devices).setting
    found, plain = (full_seconds(setting, each, Work()).total for each in (devices, made()))
    assert (found > plain + 0.8).all()
    shares = torch.tensor([0.2, 1.0], dtype=torch.float64)
    deadline = float(plain.max()) + 0.5
    assert affordable(setting, made(), shares, Work(), deadline).tolist() == [1.0] * FLEET
    assert affordable(setting, devices, shares, Work(), deadline).min() == 0.2


def test_bytes_of_links_by_hand():
    devices = make_devices("equal", 3, 0, transport="flower", packet_loss=0.5)
    assert devices.transport is not None
    down, up = devices.transport.added(torch.tensor([2, 0]), torch.tensor([1000, 0]), torch.tensor([0, 2000]))
    assert down.tolist() == [2 * (1055 + 4300) - 1000, 0]
    assert up.tolist() == [0, 2 * (2110 + 12_000) - 2000]


def test_runs_count_the_bytes_of_links(tmp_path):
    fleet = {"name": "equal", "settings": {"transport": "flower"}}
    usual = {"clients": 2, "per_round": 2, "rounds": 2, "training": {"epochs": 1}, "device": "cpu"}
    plain, result = run(Experiment(fleet="equal", **usual)), run(Experiment(fleet=fleet, **usual), out=tmp_path / "run")
    rows = result.rounds
    added = sum(row["transport_up"] + row["transport_down"] for row in rows)
    messages = sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    assert added == pytest.approx(0.055 * messages + 4 * (12_000 + 4300), abs=8)
    assert spent(rows, 2).bytes == messages + added
    assert spent(plain.rounds, 2).bytes == messages
    assert "transport_up" not in plain.rounds[0]
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    assert [row["transport_up"] for row in table] == [round(row["bytes_up"] * 0.055 + 12_000) for row in table]
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in plain.rounds]
    wait = 0.8 + 4 * 0.1  # the least that a round is longer
    assert all(b["virtual_seconds"] > a["virtual_seconds"] + wait for a, b in zip(plain.rounds, rows))
    assert not math.isnan(rows[0]["joules"])
