"""The fleet of methods that reckon with devices, where none is named."""

from __future__ import annotations

import pytest

from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.parts.allocate.affordable import Affordable
from fedloom.parts.select.within import WithinDeadline
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run


@pytest.mark.parametrize("name", ["feddd", "fedcs", "oort"])
def test_a_method_that_needs_devices_brings_a_fleet_and_says_so(name: str) -> None:
    experiment = Experiment(method=name, rounds=2, clients=6, training={"epochs": 1})
    assert experiment.fleet.name == "table4"
    assert any("fleet 'table4', the default" in note for note in prepare(experiment).notes)
    assert all(row["virtual_seconds"] > 0 for row in run(experiment).rounds)


def test_a_fleet_of_ones_own_stays_and_nobody_else_gets_one() -> None:
    own = Experiment(method="feddd", fleet="iot", clients=6)
    assert own.fleet.name == "iot"
    assert not any("the default" in note for note in prepare(own).notes)
    assert Experiment(method="fedavg").fleet.name == "none"
    assert Experiment(method="fedbuff").fleet.name == "mobile-4g"  # rounds without a barrier have another


def test_who_needs_devices() -> None:
    needing = {name for name, make in METHODS.items() if make().needs_devices}
    assert needing == {"feddd", "fedcs", "oort"}
    assert Method(allocate=Affordable()).needs_devices
    assert Method(select=WithinDeadline(60.0)).needs_devices
