"""A round of real processes behind emulated links takes the seconds and the bytes that a simulation predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulated_link import EmulatedLink, why_not
from emulated_trial import deployed, measured
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.slow,  # half a minute, and seconds mean something only where other work leaves a core
]
LINK = {"up": 2e5, "down": 1e6, "latency": 0.1, "cycles_per_example": 2e4}  # so slow that a busy machine adds little
ROUNDS = 5


def test_a_round_behind_a_slow_link(tmp_path: Path) -> None:
    experiment = Experiment(
        fleet={"name": "equal", "settings": {**LINK, "transport": "flower"}},
        partition="iid", clients=1, per_round=1, rounds=ROUNDS, training={"epochs": 1}, device="cpu",
    )  # fmt: skip
    plain = Experiment(**{**experiment.model_dump(), "fleet": {"name": "equal", "settings": LINK}})
    row, without = (run(each).rounds[-1] for each in (experiment, plain))
    slow = EmulatedLink(LINK["up"], LINK["down"], LINK["latency"], place=3)
    with slow, deployed(experiment, [slow], tmp_path) as trial:
        found = measured(trial, [slow], experiment, tmp_path / "run")
    assert len(found.seconds) == ROUNDS - 1
    assert row["bytes_up"] + row["transport_up"] == pytest.approx(found.up, rel=0.1)
    assert row["bytes_down"] + row["transport_down"] == pytest.approx(found.down, rel=0.1)
    # never sooner; later by as much as a machine with other work needs for processes, TLS and training
    assert 0.85 * row["virtual_seconds"] <= min(found.seconds) <= 1.2 * row["virtual_seconds"] + 1.5
    assert min(found.seconds) > 1.2 * without["virtual_seconds"], "the transport is what was missing"
