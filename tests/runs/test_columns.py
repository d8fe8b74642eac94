"""What the clients' rows of a round, and of a run, add up to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from fedloom.runs.columns import by_number, row_sums, run_sums
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

ROWS: dict[str, Any] = {
    "client": np.array([2, 4, 7, 9]),
    "arrived": np.array([True, False, True, False]),
    "seconds": np.array([1.0, 2.0, 4.0, 8.0]),
    "joules": np.array([10.0, 20.0, 40.0, 80.0]),
    "bytes_down": np.array([100, 200, 300, 400]),
    "bytes_up": np.array([10, 20, 30, 40]),
    "staleness": np.array([0, 9, 3, 5]),
}


def test_staleness_is_of_counted_replies_and_waste_of_the_others():
    assert row_sums(ROWS) == {
        "staleness_mean": 1.5, "staleness_max": 3.0,
        "wasted_seconds": 10.0, "wasted_joules": 100.0, "wasted_bytes": 660.0,
    }  # fmt: skip


def test_a_step_without_replies_has_no_staleness():
    none = {**ROWS, "arrived": np.zeros(4, bool)}
    assert row_sums(none)["staleness_mean"] is row_sums(none)["staleness_max"] is None
    assert row_sums({"arrived": ROWS["arrived"]}) == {}


def test_what_a_real_network_does_not_measure_is_not_summed():
    found = row_sums({name: values for name, values in ROWS.items() if name != "joules"})
    assert found["wasted_joules"] is None
    assert found["wasted_seconds"] == 10.0


def test_sums_of_a_run_are_by_client():
    whole = by_number(np.array([2, 4, 5, 7, 9]), np.array([2.5, 4.5, 5.5, 7.5, 9.5]))
    found = {name: value.tolist() for name, value in run_sums(ROWS, whole).items()}
    assert found["fleet.steps"] == [0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert found["fleet.seconds"] == [0, 0, 1, 0, 2, 0, 0, 4, 0, 8]
    assert found["staleness"] == [1, 0, 0, 1]
    assert np.isnan(whole).sum() == 5
    assert found["fleet.whole_seconds"][9] == 9.5


@pytest.mark.parametrize("world", [{}, {"fleet": "iot", "world": {"first": 3}}], ids=["no devices", "devices"])
def test_a_run_keeps_them(world, tmp_path):
    small = {"model": {"name": "mlp", "settings": {"widths": [8]}}, "clients": 6, "per_round": 4, "rounds": 3}
    result = run(Experiment(**small, **world), out=tmp_path / "run")
    if not world:
        assert "wasted_seconds" not in result.rounds[0]
        assert "fleet.steps" not in result.kept
        return
    kept = load_file(tmp_path / "run" / "kept.safetensors")
    assert kept["fleet.steps"].sum() == sum(row["arrived"] for row in result.rounds) == 9
    assert kept["fleet.steps"].sum() == sum(row["arrived"] for row in result.rounds)
    clients = pq.read_table(tmp_path / "run" / "clients.parquet")
    lost = clients.filter(pc.invert(clients["arrived"]))
    assert lost.num_rows > 0
    assert kept["fleet.whole_seconds"].shape == (6,)
    assert kept["fleet.seconds"].sum() == pytest.approx(sum(clients["seconds"].to_pylist()))
    assert sum(row["wasted_seconds"] for row in result.rounds) == pytest.approx(sum(lost["seconds"].to_pylist()))
