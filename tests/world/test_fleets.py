"""Devices are drawn alike everywhere, and users' tables are read or refused by row and column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.devices import RANGES, Devices, allowed, known_devices
from fedloom.core.transport import Transport
from fedloom.errors import BadData, BadExperiment
from fedloom.world.fleets import FLEETS, OWN, make_devices
from world.made import made

TABLE4 = {"up": (1e3, 5e3), "down": (4e4, 2e5), "cycles": (1e9, 1e10), "cycles_per_example": (1e6, 1e7)}


@pytest.mark.parametrize("name", FLEETS)
def test_a_preset_is_the_same_everywhere_and_possible(name):
    fleet = make_devices(name, 50, 7)
    assert fleet.size == 50
    assert fleet.transport is None
    assert RANGES.keys() == {*OWN, *Transport._fields}
    assert set(Devices._fields) == {*OWN, "transport"}
    for column, values in zip(OWN, fleet):
        assert values.dtype == torch.float64
        assert allowed(column, values).all(), column
        low, high = FLEETS[name]()[column]
        assert low <= values.min()
        assert values.max() <= high * (1 + 1e-12)
    more = make_devices(name, 80, 7).at(torch.arange(50))
    assert all(torch.equal(a, b) for a, b in zip(fleet[:-1], more[:-1])), "a client is itself"
    if name != "equal":
        assert not torch.equal(fleet.up, make_devices(name, 50, 8).up)
    assert (FLEETS[name].__doc__ or "").count(".")


def test_table_4_is_spread_evenly():
    fleet = make_devices("table4", 20_000, 0)
    for column, (low, high) in TABLE4.items():
        values = (getattr(fleet, column) - low) / (high - low)
        assert float(values.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(values.var()) == pytest.approx(1 / 12, abs=0.003)
    links = torch.corrcoef(torch.stack((fleet.up, fleet.down, fleet.cycles)))
    assert (links - torch.eye(3)).abs().max() < 0.03, "columns are independent"
    assert torch.equal(fleet.cycles.argsort(), fleet.flops.argsort()), "but for speed"


def test_one_value_for_everybody():
    fleet = make_devices("table4", 4, 0, up=5000, fading=0.5)
    assert fleet.up.tolist() == [5000.0] * 4
    assert fleet.fading.tolist() == [0.5] * 4
    assert torch.equal(fleet.down, make_devices("table4", 4, 0).down)


def test_fading_is_of_the_round_and_keeps_the_mean():
    fleet = made(5000, up=2.0, down=[4.0] * 5000, fading=0.5)
    first, again, later = (fleet.now(Chance(1, number)) for number in (1, 1, 2))
    assert torch.equal(first.up, again.up)
    assert not torch.equal(first.up, later.up)
    assert torch.equal(first.down, 2 * first.up)
    assert 1 <= first.up.min() < 1.01
    assert 2.99 < first.up.max() <= 3
    assert float(first.up.mean()) == pytest.approx(2, abs=0.03)
    some = torch.tensor([7, 4000, 11])
    assert torch.equal(fleet.now(Chance(1, 1), some).up, first.up[some])
    still = fleet._replace(fading=torch.zeros(5000, dtype=torch.float64))
    assert torch.equal(still.now(Chance(1, 1)).up, still.up)


@pytest.mark.parametrize(
    ("source", "settings", "text"),
    [
        ("table5", {}, "did you mean 'table4'"),
        ("table4", {"upp": 3.0}, "did you mean 'up'"),
        ("table4", {"up": 0}, "up of the fleet is 0; expected a finite number above 0"),
        ("table4", {"reliability": 1.5}, "at most 1"),
        ("table4", {"fading": 1}, "below 1"),
        ("table4", {"up": "fast"}, "'fast'"),
        ("table4", {"up": float("nan")}, "nan"),
        ("table4", {"latency": -1.0}, "not below 0"),
        ("devices.csv", {"base": "equals"}, "did you mean 'equal'"),
    ],
)
def test_impossible_fleets_are_refused(source, settings, text):
    with pytest.raises(BadExperiment, match=text):
        make_devices(source, 3, 0, **settings)


def test_a_fleet_without_devices_is_refused_by_who_needs_them():
    with pytest.raises(BadExperiment, match=r"Oort needs a fleet with devices.*--set fleet=table4"):
        known_devices(None, "Oort")


# ---- users' tables


def written(folder: Path, text: str) -> str:
    """A CSV file."""
    path = folder / "devices.csv"
    path.write_text(text)
    return str(path)


def test_a_table_gives_its_columns_and_the_base_the_others(tmp_path):
    path = written(tmp_path, "client,up,latency\n2,300.5,0\n0,100, 0.5\n1,200,1e-2\n")
    fleet = make_devices(path, 3, 4, base="table4")
    assert fleet.up.tolist() == [100, 200, 300.5]
    assert fleet.latency.tolist() == [0.5, 0.01, 0]
    assert torch.equal(fleet.down, make_devices("table4", 3, 4).down)
    assert make_devices(path, 3, 4).down.tolist() == [1e7] * 3
    assert make_devices(path, 3, 4, down=7.0).down.tolist() == [7.0] * 3


def test_parquet_reads_like_csv(tmp_path):
    path = tmp_path / "devices.parquet"
    pq.write_table(pa.table({"client": [1, 0], "up": [20, 10], "memory": [2.0, 1.0]}), path)
    fleet = make_devices(str(path), 2, 0)
    assert fleet.up.tolist() == [10, 20]
    assert fleet.memory.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("up\n1\n", "column client is missing; found up"),
        ("client,up\n0,1\n1,2\n0,3\n", "column client, row 2 is 0; expected every client once"),
        ("client,up\n0,1\n3,2\n", "column client, row 1 is 3; expected a client of the fleet, 0 to 1"),
        ("client,up\n0,1\n0.5,2\n", "column client, row 1 is 0.5"),
        ("client,up\n0,1\n", "column client lacks client 1"),
        ("client,up\n0,1\n1,0\n", "column up, row 1 is 0; expected a finite number above 0"),
        ("client,up\n0,-1\n1,1\n", "column up, row 0 is -1"),
        ("client,up\n0,nan\n1,1\n", "column up, row 0 is nan"),
        ("client,up\n0,1\n1,inf\n", "column up, row 1 is inf"),
        ("client,up\n0,1\n1,fast\n", "column up, row 1 holds 'fast'; expected a number"),
        ("client,up\n0,1\n1,\n", "column up, row 1 is empty"),
        ("client,availability\n0,1\n1,1.2\n", "column availability, row 1 is 1.2.*at most 1"),
        ("client,upp\n0,1\n1,2\n", "unknown column 'upp'; did you mean 'up'"),
        ("client,up,up\n0,1,1\n1,2,2\n", "column up occurs 2 times"),
        ("client,up\n", "no rows"),
        ("", "cannot be read as a table"),
        ("client,up\n0,1,2\n", "cannot be read as a table"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, said):
    with pytest.raises(BadData, match=said) as problem:
        make_devices(written(tmp_path, text), 2, 0)
    assert "devices.csv" in str(problem.value)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(BadData, match="cannot be read"):
        make_devices(str(tmp_path / "missing.csv"), 2, 0)
    (tmp_path / "text.parquet").write_text("client,up\n0,1\n")
    with pytest.raises(BadData, match=r"text\.parquet cannot be read"):
        make_devices(str(tmp_path / "text.parquet"), 2, 0)
    pq.write_table(pa.table({"client": [0, 1], "up": ["1", "x"]}), tmp_path / "words.parquet")
    with pytest.raises(BadData, match="column up, row 1 holds 'x'"):
        make_devices(str(tmp_path / "words.parquet"), 2, 0)
    pq.write_table(pa.table({"client": [0, 1], "up": [[1.0], [2.0]]}), tmp_path / "lists.parquet")
    with pytest.raises(BadData, match=r"column up holds several values"):
        make_devices(str(tmp_path / "lists.parquet"), 2, 0)
