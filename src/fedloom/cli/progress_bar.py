"""A progress bar of a run, on terminals and in notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.core.metric import Metric
from fedloom.evaluate.judge import ACCURACY
from fedloom.evaluate.wording import label_of, number
from fedloom.runs.experiment import Experiment
from fedloom.runs.watch import Callback

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.runs.result import Result


class ProgressBar(Callback):
    """A bar with the score and the time left: `run(experiment, callbacks=[ProgressBar()])`."""

    def __init__(self, console: Console | None = None, score: Metric = ACCURACY) -> None:
        self._console = console  # None: the one that a terminal or a notebook has
        self._score = score

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        """Show an empty bar."""
        self._score = experiment.build_goal().score
        self.start(experiment.method.name, experiment.rounds)

    def start(self, name: str, rounds: int) -> None:
        """Show an empty bar for this many rounds."""
        from rich import progress  # imported here, since most runs show none

        columns = (
            progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.BarColumn(),
            progress.MofNCompleteColumn(), progress.TimeRemainingColumn(), progress.TextColumn("{task.fields[state]}"),
        )  # fmt: skip
        self._bar = progress.Progress(*columns, console=self._console)
        self._job = self._bar.add_task(name, total=rounds, state="preparing")
        self._bar.start()

    def round(self, row: dict[str, Any]) -> None:
        """Move the bar."""
        self._bar.update(self._job, completed=row["round"], state=state_of(row, self._score))

    def end(self, result: Result | None) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def state_of(row: dict[str, Any], score: Metric) -> str:
    """The state of a run in words; in a comparison, with the run's name."""
    parts = [] if row["score"] is None else [f"{label_of(score)} {number(score, row['score'])}"]
    parts += [] if row["loss"] is None else [f"loss {row['loss']:.4f}"]
    parts = parts or [f"training loss {row['training_loss']}"]
    return "  ".join([row["state"], *parts] if "state" in row else parts)
