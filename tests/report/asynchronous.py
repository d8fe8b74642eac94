"""A small asynchronous run folder written by hand: five tasks, two steps, one task in flight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from fedloom.core.flight import FATES
from fedloom.runs.experiment import Experiment

TASKS = (  # step, client, asked, download, training, upload, fate, base
    (1, 0, 0.0, 1.0, 2.0, 1.0, "arrived", 0),
    (1, 1, 0.0, 1.0, 3.0, 2.0, "upload lost", 0),
    (2, 2, 0.0, 2.0, 4.0, 2.0, "arrived", 0),
    (2, 0, 6.0, 1.0, 2.0, 1.0, "arrived", 1),
    (3, 3, 6.0, 3.0, 1.0, 0.0, "in flight", 1),
)
STEPS = (6.0, 10.0)  # virtual seconds


def asynchronous(out: Path, seed: int = 0) -> Path:
    """The run folder."""
    out.mkdir(parents=True)
    experiment = Experiment(clients=4, rounds=len(STEPS), seed=seed, fleet="iot", per_round=2)
    about = {"experiment": experiment.model_dump(mode="json"), "clients": 4}
    (out / "experiment.json").write_text(json.dumps(about))
    (out / "log.txt").write_text("2026-01-01 00:00:00,000 INFO finished\n")
    clients = [_task(serial, *task) for serial, task in enumerate(TASKS)]
    pq.write_table(pa.Table.from_pylist(clients), out / "clients.parquet")
    pq.write_table(
        pa.Table.from_pylist([_step(1, 6.0, 0.5, clients), _step(2, 4.0, 1.5, clients)]), out / "rounds.parquet"
    )
    save_file({"fleet.whole_seconds": np.array([4.0, 6.0, 8.0, 9.0])}, out / "kept.safetensors")
    return out


def _task(
    serial: int, step: int, client: int, asked: float, down: float, compute: float, up: float, fate: str, base: int
) -> dict[str, Any]:
    end = asked + down + compute + up
    return {
        "round": step, "client": client, "share": 1.0, "arrived": fate == "arrived", "rejected": 0,
        "bytes_down": 100, "bytes_up": 100 if up else 0, "fate": FATES.index(fate), "seconds": down + compute + up,
        "seconds_down": down, "seconds_compute": compute, "seconds_up": up, "joules": 10.0, "serial": serial,
        "asked": asked, "base": base, "staleness": step - 1 - base,
        "waited": STEPS[step - 1] - end if fate == "arrived" else 0.0,
    }  # fmt: skip


def _step(number: int, lasted: float, stale: float, clients: list[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in clients if row["round"] == number]
    came = [row for row in own if row["arrived"]]
    return {
        "round": number, "score": 0.4 * number, "accuracy": 0.4 * number, "loss": 1.0, "personal_score": None,
        "training_loss": 1.0, "clients": len(own), "arrived": len(came), "rejected": 0, "examples_trained": 100,
        "bytes_down": 100 * len(own), "bytes_up": 100 * len(own), "virtual_seconds": lasted, "joules": 10.0 * len(own),
        "wall_seconds": 0.1, "evaluation_seconds": 0.1, "in_flight": 2.5, "waited_seconds": 2.0, "idle_seconds": 3.0,
        "staleness_mean": stale, "staleness_max": 2.0, "versions": 2.0, "wasted_seconds": 6.0, "wasted_joules": 10.0,
        "wasted_bytes": 200.0,
    }  # fmt: skip
