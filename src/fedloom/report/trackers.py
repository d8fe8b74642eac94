"""TensorBoard and MLflow as trackers of a run; their errors never stop it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import direction, label_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.watch import Watch

log = logging.getLogger("fedloom")

EVERY = 2.0  # seconds between batches to MLflow, which may be far away
LONGEST = 500  # characters of a parameter that every MLflow store takes
MOST = 1000  # numbers in one batch to MLflow


@contextmanager
def tracked(
    experiment: Experiment, folder: Path, watch: Watch, tensorboard: Path | None, mlflow: str | None
) -> Iterator[Watch]:
    """A watch that passes rows to `watch` and to the trackers given, and closes these when the run is over."""
    with ExitStack() as stack:
        others: list[Watch] = []
        if os.environ.get("RANK", "0") == "0":  # under torchrun, rank 0 alone
            if tensorboard is not None:
                others.append(stack.enter_context(_tensorboard(experiment, tensorboard / folder.absolute().name)))
            if mlflow is not None:
                others.append(stack.enter_context(_mlflow(experiment, folder, mlflow)))

        def tell(row: dict[str, Any]) -> None:
            watch(row)
            for other in others:
                other(row)

        yield tell


def score_of(experiment: Experiment) -> str:
    """What runs of the experiment are judged by, in words."""
    score = experiment.build_goal().score
    return ", ".join(filter(None, (label_of(score), direction(score))))


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """A row's measured numbers by name; the value of each class has a name of its own."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            found |= {f"{name}/{place}": float(one) for place, one in enumerate(value) if one == one}
        elif value is not None and name != "round" and value == value:
            found[name] = float(value)
    return found


def _forgiving(what: str, work: Callable[[], None], state: dict[str, bool]) -> None:
    """Do the work unless it failed before; log the first failure."""
    if state.get("failed"):
        return
    try:
        work()
    except Exception as problem:  # noqa: BLE001  another program may raise anything
        state["failed"] = True
        log.warning("%s could not be written and gets no more rounds: %s", what, problem)


@contextmanager
def _tensorboard(experiment: Experiment, folder: Path) -> Iterator[Watch]:
    """A watch that writes TensorBoard's event files of one run."""
    if find_spec("tensorboard") is None:
        raise BadExperiment(
            "--tensorboard needs tensorboard, which is not installed; pip install 'fedloom[tensorboard]'."
        )
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer = SummaryWriter(str(folder))
    except OSError as problem:
        raise BadExperiment(f"--tensorboard cannot write '{folder}': {problem}; name another folder.") from problem
    state: dict[str, bool] = {}
    _forgiving("TensorBoard", lambda: writer.add_text("score", score_of(experiment)), state)

    def write(row: dict[str, Any]) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["round"])

    try:
        yield lambda row: _forgiving("TensorBoard", lambda: write(row), state)
    finally:
        _forgiving("TensorBoard", writer.close, state)


@contextmanager
def _mlflow(experiment: Experiment, folder: Path, address: str) -> Iterator[Watch]:
    """A watch that logs to one MLflow run in the experiment `fedloom`, in batches."""
    if find_spec("mlflow") is None:
        raise BadExperiment("--mlflow needs MLflow, which is not installed; pip install 'fedloom[mlflow]'.")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if "://" not in address:  # a folder: MLflow refuses it unless this variable is set too
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        address = Path(address).absolute().as_uri()
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    from fedloom.report.group import flat, plain

    try:
        client = MlflowClient(tracking_uri=address)
        known = client.get_experiment_by_name("fedloom")
        owner = client.create_experiment("fedloom") if known is None else known.experiment_id
        run = client.create_run(owner, run_name=folder.absolute().name).info.run_id
        settings = {"score": score_of(experiment), **flat(experiment.model_dump(mode="json"))}
        client.log_batch(run, params=[Param(name, plain(value)[:LONGEST]) for name, value in settings.items()][:100])
    except Exception as problem:
        raise BadExperiment(
            f"--mlflow cannot use '{address}' ({problem}); expected a folder, sqlite:///FILE (needs sqlalchemy and "
            "alembic) or a server's http address."
        ) from problem
    state: dict[str, bool] = {}
    waiting: list[Any] = []
    sent = time.monotonic()

    def send() -> None:
        nonlocal sent
        while waiting:
            client.log_batch(run, metrics=waiting[:MOST])
            del waiting[:MOST]
        sent = time.monotonic()

    def write(row: dict[str, Any]) -> None:
        now = int(1000 * time.time())
        waiting.extend(Metric(name, value, now, row["round"]) for name, value in numbers(row).items())
        if time.monotonic() - sent > EVERY:
            send()

    ended = "KILLED"
    try:
        yield lambda row: _forgiving("MLflow", lambda: write(row), state)
        ended = "FINISHED"
    finally:
        _forgiving("MLflow", send, state)
        _forgiving("MLflow", lambda: client.set_terminated(run, ended), state)
