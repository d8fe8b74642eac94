"""TensorBoard, MLflow and Weights & Biases as callbacks of a run; their errors during a run never stop it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import direction, label_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.watch import Callback

if TYPE_CHECKING:
    from fedloom.runs.result import Result

log = logging.getLogger("fedloom")

EVERY = 2.0  # seconds between batches to MLflow, which may be far away
LONGEST = 500  # characters of a parameter that every MLflow store takes
MOST = 1000  # numbers in one batch to MLflow
PROJECT = "fedloom"


def trackers(tensorboard: Path | None = None, mlflow: str | None = None, wandb: str | None = None) -> list[Callback]:
    """The trackers that are asked for."""
    found: list[Callback] = [] if tensorboard is None else [TensorBoard(tensorboard)]
    found += [] if mlflow is None else [Mlflow(mlflow)]
    return found + ([] if wandb is None else [Wandb(wandb)])


def score_of(experiment: Experiment) -> str:
    """What runs of the experiment are judged by, in words."""
    score = experiment.build_goal().score
    return ", ".join(filter(None, (label_of(score), direction(score))))


def settings_of(experiment: Experiment) -> dict[str, str]:
    """What the experiment is judged by, and all its settings by dotted name."""
    from fedloom.report.group import flat, plain

    values = {"score": score_of(experiment), **flat(experiment.model_dump(mode="json"))}
    return {name: plain(value) for name, value in values.items()}


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """A row's measured numbers by name; the value of each class has a name of its own."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            found |= {f"{name}/{place}": float(one) for place, one in enumerate(value) if one == one}
        elif value is not None and name != "round" and value == value:
            found[name] = float(value)
    return found


class Tracker(Callback):
    """A program that keeps a run's rows; the first error in writing is said, and then it gets no more."""

    def __init__(self, name: str, module: str, option: str, extra: str) -> None:
        if find_spec(module) is None:
            raise BadExperiment(f"{option} needs {name}, which is not installed; pip install 'fedloom[{extra}]'.")
        self._name, self._failed = name, False

    def forgiving(self, work: Callable[[], object]) -> None:
        """Do the work unless it failed before; log the first failure."""
        if self._failed:
            return
        try:
            work()
        except Exception as problem:  # noqa: BLE001  another program may raise anything
            self._failed = True
            log.warning("%s could not be written and gets no more rounds: %s", self._name, problem)


class TensorBoard(Tracker):
    """Event files for TensorBoard, in a folder below `where` with the run folder's name."""

    def __init__(self, where: str | Path) -> None:
        super().__init__("TensorBoard", "tensorboard", "--tensorboard", "tensorboard")
        self._where = Path(where)

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        where = self._where / name_of(experiment, folder)
        try:
            self._writer = SummaryWriter(str(where))
        except OSError as problem:
            raise BadExperiment(f"--tensorboard cannot write '{where}': {problem}; name another folder.") from problem
        self.forgiving(lambda: self._writer.add_text("score", score_of(experiment)))

    def round(self, row: dict[str, Any]) -> None:
        """Add the numbers."""

        def write() -> None:
            for name, value in numbers(row).items():
                self._writer.add_scalar(name, value, row["round"])

        self.forgiving(write)

    def end(self, result: Result | None) -> None:
        """Close the event file."""
        self.forgiving(self._writer.close)


class Mlflow(Tracker):
    """A run in the MLflow experiment `fedloom`, at a folder, `sqlite:///FILE` or a server; written in batches."""

    def __init__(self, address: str) -> None:
        super().__init__("MLflow", "mlflow", "--mlflow", "mlflow")
        self._address = address
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        """Create the run, with all settings as parameters."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        address = self._address
        if "://" not in address:  # a folder: MLflow refuses it unless this variable is set too
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = Path(address).absolute().as_uri()
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        try:
            self._client = client = MlflowClient(tracking_uri=address)
            known = client.get_experiment_by_name(PROJECT)
            owner = client.create_experiment(PROJECT) if known is None else known.experiment_id
            self._run = client.create_run(owner, run_name=name_of(experiment, folder)).info.run_id
            params = [Param(name, value[:LONGEST]) for name, value in settings_of(experiment).items()]
            client.log_batch(self._run, params=params[:100])
        except Exception as problem:
            raise BadExperiment(
                f"--mlflow cannot use '{address}' ({problem}); expected a folder, sqlite:///FILE (needs sqlalchemy and "
                "alembic) or a server's http address."
            ) from problem

    def round(self, row: dict[str, Any]) -> None:
        """Keep the numbers, and send them with others every two seconds."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._waiting += [Metric(name, value, now, row["round"]) for name, value in numbers(row).items()]
        if time.monotonic() - self._sent > EVERY:
            self.forgiving(self._send)

    def end(self, result: Result | None) -> None:
        """Send the rest, and close the run."""
        self.forgiving(self._send)
        status = "KILLED" if result is None else "FINISHED"
        self.forgiving(lambda: self._client.set_terminated(self._run, status))

    def _send(self) -> None:
        """Send what waits."""
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:MOST])
            del self._waiting[:MOST]
        self._sent = time.monotonic()


class Wandb(Tracker):
    """A run in a project of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, project: str = PROJECT) -> None:
        super().__init__("Weights & Biases", "wandb", "--wandb", "wandb")
        self._project = project

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        """Create the run, with all settings as its config."""
        import wandb

        try:
            self._run = wandb.init(
                project=self._project, name=name_of(experiment, folder), config=settings_of(experiment),
                dir=os.environ.get("WANDB_DIR") or (None if folder is None else folder.absolute().parent),
                settings=wandb.Settings(silent=True, console="off"),
            )  # fmt: skip
        except Exception as problem:
            raise BadExperiment(
                f"--wandb cannot begin a run ({problem}); log in with `wandb login`, or set WANDB_MODE=offline."
            ) from problem

    def round(self, row: dict[str, Any]) -> None:
        """Log the numbers."""
        self.forgiving(lambda: self._run.log(numbers(row), step=row["round"]))

    def end(self, result: Result | None) -> None:
        """Close the run."""
        self.forgiving(lambda: self._run.finish(exit_code=1 if result is None else 0))


def name_of(experiment: Experiment, folder: Path | None) -> str:
    """The name of a run for people: its folder's, or its method and data."""
    return folder.absolute().name if folder is not None else f"{experiment.method.name}-{experiment.data.name}"
