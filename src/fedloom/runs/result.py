"""`Result`, what a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.core.goal import Goal
from fedloom.core.types import State
from fedloom.errors import BadExperiment, unknown
from fedloom.evaluate.wording import label, label_of, number
from fedloom.goals import classes
from fedloom.runs.experiment import Experiment
from fedloom.shown import sparkline, table


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run."""

    experiment: Experiment
    model: nn.Module  # the network with the trained weights, on the CPU
    rounds: list[dict[str, Any]]  # one row per round, as in rounds.parquet
    wall_seconds: float
    folder: Path | None
    kept: State  # larger tensors that the method's parts recorded in the last round, as in kept.safetensors
    outcome: dict[str, float]  # numbers of the whole run from the method's parts, such as the privacy spent
    goal: Goal = field(default_factory=classes)  # what was trained for; its first metric is the score

    @property
    def score(self) -> float | None:
        """The last evaluation's score of the global model; None: it was never evaluated, or is not finite."""
        return self._last.get("score")

    @property
    def best_score(self) -> float | None:
        """The best score of all evaluations: the highest, or the lowest where low is better."""
        found = [row["score"] for row in self.rounds if row["score"] is not None]
        return (max if self.goal.score.best == "high" else min)(found, default=None)

    @property
    def accuracy(self) -> float | None:
        """The last evaluation's accuracy of the global model; None where the goal has no such metric."""
        return self._last.get("accuracy")

    @property
    def _last(self) -> dict[str, Any]:
        """The row of the last evaluation."""
        return next((row for row in reversed(self.rounds) if row["evaluation_seconds"] is not None), {})

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

    def __repr__(self) -> str:
        """Method, data, rounds and score."""
        score, name = self.goal.score, self.experiment.method.name
        parts = [f"{name} on {self.experiment.data.name}", f"{len(self.rounds)} rounds"]
        parts.append(f"{label_of(score)} {number(score, self.score)} (best {number(score, self.best_score)})")
        return f"Result({', '.join(parts)}{'' if self.folder is None else f', {self.folder}'})"

    def _repr_html_(self) -> str:
        """A table of the result and a sparkline of the score, for notebooks."""
        known = {name: value for name, value in self.summary().items() if value is not None and value != {}}
        texts = [(name, f"{value:.5g}" if isinstance(value, float) else str(value)) for name, value in known.items()]
        title = f"{self.experiment.method.name} on {self.experiment.data.name}"
        scores = [row["score"] for row in self.rounds]
        return table(title, texts, sparkline(scores, f"{label_of(self.goal.score)}, round by round"))

    def frame(self) -> Any:
        """The rounds as a pandas DataFrame, by their numbers."""
        if find_spec("pandas") is None:
            raise BadExperiment("frame() needs pandas, which is not installed; pip install 'fedloom[notebook]'.")
        import pandas as pd

        return pd.DataFrame(self.rounds).set_index("round")

    def plot(self, *names: str, against: str = "round") -> Any:
        """Columns of the rounds, the score if none is named, against another, as a matplotlib figure."""
        if find_spec("matplotlib") is None:
            raise BadExperiment("plot() needs matplotlib, which is not installed; pip install 'fedloom[notebook]'.")
        from fedloom.runs.picture import Picture

        known = list(dict.fromkeys(name for row in self.rounds for name in row))
        for name in (*names, against):
            if name not in known:
                raise BadExperiment(unknown("column", name, known))
        figure = Picture(figsize=(6, 3.5), layout="constrained")
        axes = figure.add_subplot(xlabel=label(against), title=f"{self.experiment.method.name}")
        for name in names or ("score",):
            points = [(row.get(against), row.get(name)) for row in self.rounds]
            known_points = [(x, y) for x, y in points if x is not None and y is not None]
            axes.plot(*zip(*known_points), label=label_of(self.goal.score) if name == "score" else label(name))
        axes.legend(frameon=False)
        return figure

    def summary(self) -> dict[str, Any]:
        """The result as one dictionary for JSON; None for what is not known yet."""
        last = self._last
        metrics = [one.name for one in self.goal.metrics if not isinstance(last.get(one.name), list)]
        also = {"accuracy": self.accuracy, "best_accuracy": self.best_score} if metrics[0] == "accuracy" else {}
        return {
            "run": None if self.folder is None else str(self.folder),
            "method": self.experiment.method.name,
            "rounds": len(self.rounds),
            "score_name": metrics[0],
            "lower_is_better": self.goal.score.best == "low",
            "score": self.score,
            "best_score": self.best_score,
            "personal_score": last.get("personal_score"),
            **also,
            **{name: last.get(name) for name in metrics if name not in also},
            f"personal_{self.goal.personal.name}": last.get("personal_score"),
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
