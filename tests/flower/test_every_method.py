"""Three rounds on a network equal three rounds of the simulator, for every method."""

from __future__ import annotations

import pytest

from fedloom.method import Method
from fedloom.runs.experiment import Experiment
from flower_world import assert_same, fake, served, simulated, tiny, tiny_data
from worlds import every_method


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


@every_method
def test_a_network_equals_the_simulator(data: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "build_method", lambda self: method)
    experiment = tiny(data)
    assert_same(served(fake(experiment), experiment), simulated(experiment))
