"""Run folders written by hand: what a run of any goal would have written, with scores that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from fedloom.runs.experiment import Experiment

RMSE: dict[str, Any] = {
    "name": "rmse", "best": "low", "limits": [0.0, None], "personal": "rmse",
    "metrics": [{"name": "rmse", "best": "low"}, {"name": "mae", "best": "low"}, {"name": "r2", "best": "high"}],
}  # fmt: skip
CLIENTS = 4


def regression(
    out: Path,
    scores: Sequence[float | None],
    method: str = "fedavg",
    seed: int = 0,
    own: Sequence[float] = (),
    **more: Any,
) -> Path:
    """A run folder whose score is an RMSE; `own` are clients' own scores, `more` goes into experiment.json."""
    out.mkdir(parents=True)
    experiment = Experiment(method=method, goal="numbers", partition="iid", data="house.npz", clients=CLIENTS,
                            rounds=len(scores), seed=seed, fleet="table4")  # fmt: skip
    about = {"experiment": experiment.model_dump(mode="json"), "score": RMSE, **more}
    (out / "experiment.json").write_text(json.dumps(about))
    (out / "log.txt").write_text("2026-01-01 00:00:00,000 INFO finished\n")
    rows = [_row(number, score, own) for number, score in enumerate(scores, 1)]
    pq.write_table(pa.Table.from_pylist(rows), out / "rounds.parquet")
    columns = {
        "round": np.repeat(np.arange(1, len(scores) + 1), CLIENTS),
        "client": np.tile(np.arange(CLIENTS), len(scores)),
        "share": np.full(CLIENTS * len(scores), 0.5, np.float32),
        "arrived": np.ones(CLIENTS * len(scores), bool),
        "rejected": np.zeros(CLIENTS * len(scores), np.int64),
    }
    pq.write_table(pa.table(columns), out / "clients.parquet")
    if own:
        distance = np.abs(np.subtract.outer(np.arange(CLIENTS), np.arange(CLIENTS))).astype(np.float32)
        save_file({"personal_score": np.array(own, np.float32), "repair.distance": distance}, out / "kept.safetensors")
    return out


def _row(number: int, score: float | None, own: Sequence[float]) -> dict[str, Any]:
    """A round that takes 10 s and moves 1 kB each way."""
    mean = sum(own) / len(own) if own else None
    return {
        "round": number, "score": score, "rmse": score, "mae": None if score is None else 0.8 * score,
        "r2": None if score is None else 1 - score / 100, "loss": None if score is None else score**2,
        "personal_score": mean, "personal_rmse": mean, "training_loss": 1.0, "clients": CLIENTS, "arrived": CLIENTS,
        "rejected": 0, "examples_trained": 100, "bytes_down": 1000, "bytes_up": 1000, "virtual_seconds": 10.0,
        "joules": 5.0, "wall_seconds": 0.1, "evaluation_seconds": 0.1,
    }  # fmt: skip


def as_old(folder: Path) -> None:
    """Make a run's folder what runs wrote before there were scores other than accuracy."""
    about = json.loads((folder / "experiment.json").read_text())
    about.pop("score", None)
    for key in ("goal", "augment"):
        about["experiment"].pop(key, None)
    (folder / "experiment.json").write_text(json.dumps(about))
    table = pq.read_table(folder / "rounds.parquet")
    pq.write_table(table.drop_columns(["score", "personal_score"]), folder / "rounds.parquet")
