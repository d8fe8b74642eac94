"""Adapters on Flower: nodes build the base by themselves, and the numbers are the simulator's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_world import assert_same, fake, served, simulated, tiny, tiny_data


@pytest.mark.parametrize("method", ["fedit", "hetlora", "flexlora"])
def test_adapters_alone_are_sent_and_the_numbers_are_the_simulators(method: str, tmp_path: Path) -> None:
    adapter = {"name": "lora", "settings": {"rank": 4, "targets": "linear"}}
    experiment = tiny(tiny_data(tmp_path), rounds=2, method=method, adapter=adapter)
    ours, theirs = served(fake(experiment), experiment), simulated(experiment)
    assert_same(ours, theirs)
    assert [row["arrived"] for row in ours.rounds] == [row["arrived"] for row in theirs.rounds]
    frozen = 4 * 36 * 100  # bytes of the first layer
    assert all(row["bytes_up"] < row["arrived"] * frozen for row in (*ours.rounds, *theirs.rounds))
