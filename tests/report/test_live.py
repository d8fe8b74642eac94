"""The live view, and trackers."""

from __future__ import annotations

import io
import os
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedloom.cli.main import app
from fedloom.cli.watch_view import follow, view
from fedloom.errors import BadExperiment
from fedloom.report import trackers
from fedloom.report.live import block_curve, changes, process_exists, read_progress, time_left
from fedloom.report.trackers import Mlflow, TensorBoard, Wandb, numbers, score_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from report.asynchronous import asynchronous
from report.folders import SMALL, small


def shown(folder: Path, terminal: bool) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110)
    return follow(folder, console, 0.01), console.file.getvalue()  # type: ignore[attr-defined]


def test_a_finished_run_is_told_line_by_line(plain):
    folder = plain("run")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    finished, text = shown(folder, terminal=False)
    assert finished
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == [f"round {n}/4" for n in (1, 2, 3, 4)]
    assert lines[-1] == "the run is finished"
    assert f"accuracy {read_progress(folder).rows[0]['accuracy']:.4f}" in lines[0]
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_a_terminal_shows_all_at_once(folders):
    finished, text = shown(folders[0], terminal=True)
    assert finished
    for word in ("fedavg on digits", "4/4", "best", "training loss", "virtual time", "kJ", "replies arrived"):
        assert word in text


def test_in_flight_and_staleness_of_asynchronous_runs_are_shown(tmp_path, plain):
    folder = asynchronous(tmp_path / "async")
    _, text = shown(folder, terminal=False)
    assert "in flight 2.5  staleness 1.5" in text.splitlines()[1]
    _, text = shown(folder, terminal=True)
    assert "in flight" in text
    assert "staleness" in text
    _, text = shown(plain("run"), terminal=True)
    assert "in flight" not in text


def test_it_follows_a_run_to_its_end(plain):
    folder = plain("run")
    log = (folder / "log.txt").read_text()
    (folder / "log.txt").write_text(log.replace("INFO finished", "INFO working"))
    progress, naps = [], 0

    def nap(seconds: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 3:
            (folder / "log.txt").write_text(log.replace("INFO finished", "INFO stopped: out of luck"))

    progress = [one.ended for one in changes(folder, 0.1, nap)]
    assert progress == [None, "stopped: out of luck"]


def test_a_process_that_is_gone_ends_the_view(plain, monkeypatch):
    monkeypatch.setattr("fedloom.report.live.GONE", 0.0)
    folder = plain("run")
    (folder / "log.txt").write_text("INFO working\n")
    (folder / "checkpoint" / "lock").write_text(f"{os.getpid()}\n")
    assert process_exists(folder)
    assert time_left(read_progress(folder))
    (folder / "checkpoint" / "lock").write_text("999999999\n")
    assert not process_exists(folder)
    assert [(one.ended or "goes on")[:5] for one in changes(folder, 0, lambda _: None)] == ["goes ", "gone:"]
    finished, text = shown(folder, terminal=False)
    assert not finished
    assert text.splitlines()[-1].startswith("the run is gone")


def test_watching_a_run_while_it_goes_on_changes_nothing(plain, tmp_path):
    straight = (plain("straight") / "model.safetensors").read_bytes()
    worker = Thread(target=small, args=(tmp_path / "run",))
    worker.start()
    while not (tmp_path / "run" / "experiment.json").exists():
        assert worker.is_alive()
    finished, text = shown(tmp_path / "run", terminal=False)
    worker.join()
    assert finished
    assert text.count("round ") == 4
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == straight


def test_the_command_ends_as_the_run_did(plain, tmp_path):
    folder = plain("run")
    assert CliRunner().invoke(app, ["watch", str(folder)]).exit_code == 0
    (folder / "log.txt").write_text("2026-01-01 00:00:00,000 INFO stopped: a full disk\n")
    assert CliRunner().invoke(app, ["watch", str(folder)]).exit_code == 3
    with pytest.raises(BadExperiment, match="is not a run folder"):
        read_progress(tmp_path)


def test_an_empty_run_can_be_seen(plain):
    folder = plain("run")
    (folder / "rounds.parquet").unlink()
    console = Console(file=io.StringIO(), width=100)
    console.print(view(folder, read_progress(folder)))
    assert "no round is written yet" in console.file.getvalue()  # type: ignore[attr-defined]


def test_curves_are_blocks():
    assert block_curve([]) == ""
    assert block_curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(block_curve([0.3] * 1000, 60)) == 60


# ---- writing elsewhere


def test_numbers_of_a_row():
    row = {"round": 3, "accuracy": 0.5, "loss": None, "per_class": [1.0, float("nan")], "joules": float("nan")}
    assert numbers(row) == {"accuracy": 0.5, "per_class/0": 1.0}


def test_trackers_are_told_which_direction_is_better():
    assert score_of(Experiment(data="diabetes", goal="numbers")) == "RMSE, lower is better"
    assert score_of(Experiment()) == "accuracy"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    words = ["run", "fedavg", "--clients", "6", "--rounds", "3", "--out", str(tmp_path / "run"), "--json"]
    ended = CliRunner().invoke(app, [*words, "--tensorboard", str(tmp_path / "tb")])
    assert ended.exit_code == 0, ended.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb" / "run"))
    events.Reload()
    rows = read_progress(tmp_path / "run").rows
    got = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert [step for step, _ in got] == [1, 2, 3]
    assert [value for _, value in got] == pytest.approx([row["accuracy"] for row in rows])
    assert "per_class/3" in events.Tags()["scalars"]
    assert b"accuracy" in events.Tensors("score/text_summary")[0].tensor_proto.string_val


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_same_numbers(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    experiment = Experiment(**SMALL)
    rows = [{"round": n, "accuracy": n / 10, "per_class": [0.1, 0.2], "loss": None} for n in (1, 2, 3)]
    tracker = Mlflow(str(tmp_path / "ml"))
    tracker.begin(experiment, tmp_path / "run")
    for row in rows:
        tracker.round(row)
    tracker.end(run(Experiment(**SMALL)))
    client = MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    owner = client.get_experiment_by_name("fedloom")
    assert owner is not None
    (logged,) = client.search_runs([owner.experiment_id])
    assert logged.info.run_name == "run"
    assert logged.info.status == "FINISHED"
    assert logged.data.params["method"] == "fedavg"
    assert logged.data.params["score"] == "accuracy"
    assert [(m.step, m.value) for m in client.get_metric_history(logged.info.run_id, "accuracy")] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]


def log_records(data: bytes, block: int = 32768) -> list[bytes]:
    """The records of a log in LevelDB's format, behind a header of 7 bytes."""
    found, place = [b""], 7
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        found[-1] += data[place + 7 : place + 7 + length]
        place += 7 + length
        found += [b""] if kind in (1, 4) else []  # a whole record, or the last piece of one
    return [record for record in found if record]


@pytest.mark.filterwarnings("ignore")
def test_wandb_has_the_same_numbers_without_a_network(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is an extra, and not installed here")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracker = Wandb("mine")
    tracker.begin(Experiment(**SMALL), tmp_path / "run")
    for number in (1, 2):
        tracker.round({"round": number, "accuracy": number / 10, "loss": None})
    tracker.end(None)
    wandb.teardown()  # waits for its own process, which writes
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [wandb_internal_pb2.Record.FromString(data) for data in log_records(file.read_bytes())]
    rows = [{item.key or item.nested_key[0]: item.value_json for item in one.history.item} for one in records]
    logged = [(int(row["_step"]), float(row["accuracy"])) for row in rows if "accuracy" in row]
    assert logged == [(1, 0.1), (2, 0.2)]
    (config,) = (one.run for one in records if one.run.project)
    assert (config.project, config.display_name) == ("mine", "run")
    assert {item.key: item.value_json for item in config.config.update}["method"] == '"fedavg"'


def test_trouble_elsewhere_does_not_stop_the_run(tmp_path, caplog, monkeypatch):
    pytest.importorskip("tensorboard")
    tracker = TensorBoard(tmp_path)
    done = []

    def fails() -> None:
        done.append(1)
        raise OSError("full")

    tracker.forgiving(fails)
    tracker.forgiving(fails)
    assert len(done) == 1
    assert caplog.messages == ["TensorBoard could not be written and gets no more rounds: full"]


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    for made, extra in ((TensorBoard, "tensorboard"), (Mlflow, "mlflow"), (Wandb, "wandb")):
        with pytest.raises(BadExperiment, match=rf"fedloom\[{extra}\]"):
            made(str(tmp_path))
