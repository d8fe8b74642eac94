"""Small run folders for tests of the report, made by real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.runs.set_values import with_settings

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "settings": {"widths": [8, 6]}},
    "clients": 8,
    "rounds": 4,
    "device": "cpu",
}
WORLD = {"fleet": "table4", "channel.up": 0.4, "split": [0.6, 0.0, 0.4]}


def small(out: Path, method: str = "fedavg", seed: int = 0, **settings: Any) -> Path:
    """Run a few clients for a few rounds; the folder."""
    values = {**SMALL, "method": method, "seed": seed}
    run(Experiment(**with_settings(values, settings)), out=out)
    return out


def several(folder: Path) -> list[Path]:
    """Three methods in a world, one of them under two seeds."""
    return [
        small(folder / "fedavg-0", **WORLD, per_round=4),
        small(folder / "fedavg-1", seed=1, **WORLD, per_round=4),
        small(folder / "feddd", "feddd", **WORLD),
        small(folder / "safari", "safari", **WORLD),
    ]
