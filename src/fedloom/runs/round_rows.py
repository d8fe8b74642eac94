"""Rows of `rounds.parquet` from what a round left: tensors fetched in few transfers, then plain numbers."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.costs import TRANSPORT
from fedloom.core.refused import counted
from fedloom.core.types import on_host
from fedloom.evaluate.score import Score
from fedloom.runs.columns import SPENT, Columns, row_sums


def fetched(entries: list[dict[str, Any]]) -> dict[int, NDArray[Any]]:
    """All tensors of these rounds on the host, by the originals' identity, in few transfers, since each waits."""
    tensors = [
        value
        for entry in entries
        for value in (
            *entry["facts"].values(),
            *entry["more"].values(),
            *(part for price in entry["prices"] for part in price),
            *entry["recorded"].values(),
            entry["virtual"],
            entry["strays"],
            *_tensors(entry.get("score")),
            *_tensors(entry.get("validation")),
        )
        if isinstance(value, Tensor)
    ]
    return {id(value): found.numpy() for value, found in zip(tensors, on_host(tensors))}


def row_of(
    entry: dict[str, Any], rows: Columns, here: dict[int, NDArray[Any]], scores: dict[str, Any]
) -> dict[str, Any]:
    """One round as plain numbers, from its clients' columns, its other tensors on the host, and its scores."""
    virtual = entry["virtual"]
    refused = {}
    if entry["strays"] is not None or rows["rejected"].any():
        refused = counted(torch.from_numpy(rows["rejected"]), entry["strays"])
    arrived = int(rows["arrived"].sum())
    return {
        "round": entry["round"],
        **scores,
        "training_loss": float((rows["loss"] * rows["arrived"]).sum()) / arrived if arrived else None,
        "clients": len(rows["client"]),
        "arrived": arrived,
        "rejected": sum(refused.values()),
        "examples_trained": int(rows["examples_trained"].sum()),
        "bytes_down": int(rows["bytes_down"].sum()),
        "bytes_up": int(rows["bytes_up"].sum()),
        **{name: int(rows[name].sum()) for name in TRANSPORT if name in rows},
        "virtual_seconds": None if virtual is None else float(here.get(id(virtual), virtual)),
        "joules": float(rows["joules"].sum()) if "joules" in rows else None,
        "wall_seconds": entry["wall_seconds"],
        **{**dict.fromkeys(SPENT), **entry.get("spent", {})},
        **entry["row"],
        **row_sums(rows),
        **{name: float(here[id(value)]) for name, value in entry["recorded"].items()},
        **{name: float(count) for name, count in refused.items()},
    }


def _tensors(score: Score | None) -> list[Tensor]:
    """The tensors of an evaluation."""
    return [] if score is None else [score.loss, *score.metrics.values()]


def plain_score(score: Score, here: dict[int, NDArray[Any]] | None = None) -> dict[str, Any]:
    """The loss and the metrics of an evaluation as plain numbers and lists; `here`: its tensors on the host."""
    found = {"loss": score.loss, **score.metrics}
    return {name: (value if here is None else here[id(value)]).tolist() for name, value in found.items()}


def finite(value: Any) -> Any:
    """A number that is not finite as None; lists stay as they are."""
    return None if isinstance(value, float) and not isfinite(value) else value
