"""`Result`, what a run returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.core.types import State
from fedloom.runs.experiment import Experiment


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    experiment: Experiment
    model: nn.Module  # the network with the trained weights, on the CPU
    rounds: list[dict[str, Any]]  # one row per round, as in rounds.parquet
    wall_seconds: float
    folder: Path | None
    kept: State  # larger tensors that the method's parts recorded in the last round, as in kept.safetensors
    outcome: dict[str, float]  # numbers of the whole run from the method's parts, such as the privacy spent

    @property
    def accuracy(self) -> float | None:
        """The last evaluated top-1 accuracy of the global model."""
        return next((row["accuracy"] for row in reversed(self.rounds) if row["accuracy"] is not None), None)

    def _total(self, name: str) -> float | None:
        """The sum over rounds; None if nothing was simulated."""
        values = [row[name] for row in self.rounds if row[name] is not None]
        return sum(values) if values else None

    @property
    def rejected(self) -> dict[str, int]:
        """Refused replies by reason, summed over the columns `rejected.REASON` of all rounds."""
        names = dict.fromkeys(name for row in self.rounds for name in row if name.startswith("rejected."))
        counts = {name.partition(".")[2]: int(sum(row.get(name) or 0 for row in self.rounds)) for name in names}
        return {reason: count for reason, count in counts.items() if count}

    def summary(self) -> dict[str, Any]:
        """The result as one dictionary for JSON; None for what is not known yet."""
        scored = [row for row in self.rounds if row["accuracy"] is not None]
        last: dict[str, Any] = scored[-1] if scored else {}
        return {
            "run": None if self.folder is None else str(self.folder),
            "method": self.experiment.method.name,
            "rounds": len(self.rounds),
            "accuracy": last.get("accuracy"),
            "best_accuracy": max((row["accuracy"] for row in scored), default=None),
            "personal_accuracy": last.get("personal_accuracy"),
            "loss": last.get("loss"),
            "examples_trained": sum(row["examples_trained"] for row in self.rounds),
            "bytes_up": sum(row["bytes_up"] for row in self.rounds),
            "bytes_down": sum(row["bytes_down"] for row in self.rounds),
            "virtual_seconds": self._total("virtual_seconds"),
            "joules": self._total("joules"),
            "rejected": self.rejected,
            **self.outcome,
            "wall_seconds": self.wall_seconds,
        }
