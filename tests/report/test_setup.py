"""The line below a report's title."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedloom import Experiment
from fedloom.report.page import setup_of


def line(*given: dict[str, Any]) -> str:
    written = [Experiment(clients=10, rounds=5, **one).model_dump(mode="json") for one in given]
    runs = [SimpleNamespace(experiment=one, about={}, fleet=10) for one in written]
    return setup_of([SimpleNamespace(runs=runs)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"width": 100}, {"width": 100}], "model 2nn (width 100)"),
        ([{"width": 100}, {"width": 50}, {"width": 100}], "model 2nn (width 100 or 50)"),
        ([{}, {"width": 50}], "model 2nn (width default or 50)"),
        ([{}, {}], "model 2nn"),
    ],
)
def test_settings_that_differ_are_named(given: list[dict[str, Any]], said: str) -> None:
    found = line(*({"model": {"name": "2nn", "settings": one}} for one in given))
    assert f"{said} · " in f"{found} · "
    assert f"{len(given)} runs" in found


def test_what_differs_as_a_whole_is_left_out() -> None:
    assert "model" not in line({"model": "2nn"}, {"model": "linear"})
