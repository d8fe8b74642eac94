"""Three rounds of every method to stored numbers, so that a change of results cannot pass unseen.

A change that should alter numbers stores new ones with `pytest tests/golden --store-golden`, and says by how much.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.method import Method
from worlds import METHODS, Run, played

NETWORK = "normed"  # convolution, statistics that are not trained, pooling and a dense layer
FOLDER = Path(__file__).parent


def summary(run: Run) -> dict[str, list[float]]:
    """A few numbers that hardly anything leaves alone."""
    losses = [float((r.report["loss"] * r.report["examples"]).sum() / r.report["examples"].sum()) for r in run.replies]
    memory = [float(value.double().norm()) for own in run.memory.values() for value in own.values()]
    return {
        "first": run.model[:5].tolist(),
        "last": run.model[-5:].tolist(),
        "norms": [float(model.norm()) for model in run.models],
        "losses": losses,
        "memory": memory,
    }


@pytest.mark.parametrize(("name", "method"), [pytest.param(name, make(), id=name) for name, make in METHODS])
def test_golden(name: str, method: Method, request: pytest.FixtureRequest) -> None:
    found, file = summary(played(NETWORK, method)), FOLDER / f"{name}.json"
    if request.config.getoption("--store-golden"):
        rounded = {key: [float(f"{value:.7g}") for value in values] for key, values in found.items()}
        file.write_text(json.dumps(rounded, indent=1) + "\n")
    stored = json.loads(file.read_text())
    assert found.keys() == stored.keys()
    for key, values in found.items():
        assert values == pytest.approx(stored[key], rel=1e-4, abs=1e-6), key  # BLAS differs between machines


def test_no_file_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {name for name, _ in METHODS}
