"""Going back to a checkpoint: the folder is as it was then, and a resumed run ends with the bits of a straight one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedloom.cli.main import app, main
from fedloom.errors import BadExperiment
from fedloom.report.recorded import read_run
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import LOCK
from fedloom.runs.lock import locked
from fedloom.runs.parquet import table_rows
from fedloom.runs.play import resume, run
from fedloom.runs.rollback import kept_checkpoints, roll_back

EVERY = Checkpoints(rounds=1, keep=5)
CLOCK = ("wall_seconds", "evaluation_seconds", "personal_seconds")
RUNS: dict[str, dict[str, Any]] = {
    "scaffold": {},
    "fedspu": {"split": (0.7, 0.0, 0.3), "fleet": "table4"},
    "safari": {"per_round": None, "fleet": "table4", "channel": {"name": "bernoulli", "settings": {"up": 0.3}}},
    "fedavg": {"codec": {"values": "int8", "feedback": True}},
}


def experiment(method: str, rounds: int = 6, **more: Any) -> Experiment:
    return Experiment(
        **{"method": method, "model": "mlp", "clients": 5, "per_round": 3, "rounds": rounds, **RUNS[method], **more}
    )


def tables(folder: Path) -> dict[str, Any]:
    """What a run folder holds, without the clock."""
    rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in table_rows(folder / "rounds.parquet")]
    files = ("clients.parquet", "model.safetensors", "kept.safetensors")
    return {"rows": repr(rows), **{name: (folder / name).read_bytes() for name in files if (folder / name).exists()}}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of six rounds, by method; nobody may change them."""
    root = tmp_path_factory.mktemp("played")
    for method in RUNS:
        run(experiment(method), out=root / method, checkpoints=EVERY)
    return root


@pytest.mark.parametrize("method", RUNS)
def test_the_folder_is_as_it_was_and_a_resumed_run_ends_alike(played: Path, method: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(played / method, folder)
    run(experiment(method, 3), out=tmp_path / "short", checkpoints=EVERY)
    found = roll_back(folder, 3)
    assert found.round == 3
    assert tables(folder) == tables(tmp_path / "short")
    assert [one.round for one in kept_checkpoints(folder)] == [3, 2]
    assert read_run(folder).ended == "stopped: went back from round 6 to round 3"
    assert json.loads((folder / "experiment.json").read_text())["rolled_back"] == [{"from": 6, "to": 3}]
    notes: list[str] = []
    resume(folder, checkpoints=EVERY, tell=notes.append)
    assert "resumed after round 3 of 6" in notes
    assert tables(folder) == tables(played / method)
    assert [one.round for one in kept_checkpoints(folder)] == [6, 5, 4, 3, 2]


def test_it_goes_back_again_and_again(played: Path, tmp_path: Path) -> None:
    shutil.copytree(played / "scaffold", tmp_path / "run")
    for to in (5, 5, 3, 2):
        roll_back(tmp_path / "run", to)
        assert table_rows(tmp_path / "run/rounds.parquet")[-1]["round"] == to
    resume(tmp_path / "run")
    assert tables(tmp_path / "run") == tables(played / "scaffold")


def test_tables_of_a_killed_run_may_be_older_than_its_checkpoints(played: Path, tmp_path: Path) -> None:
    """A kill leaves no model, and tables of ten seconds ago."""
    folder = tmp_path / "run"
    shutil.copytree(played / "scaffold", folder)
    for name in ("model.safetensors", "rounds.parquet", "clients.parquet"):
        (folder / name).unlink()
    roll_back(folder, 4)
    assert len(table_rows(folder / "rounds.parquet")) == 4
    assert not (folder / "model.safetensors").exists()
    resume(folder)
    assert tables(folder) == tables(played / "scaffold")


def test_what_cannot_be_done_is_refused_and_changes_nothing(played: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(played / "scaffold", folder)
    before = tables(folder)
    with pytest.raises(BadExperiment, match=r"no checkpoint of round 1 in .*of rounds 2, 3, 4, 5, 6.*--keep"):
        roll_back(folder, 1)
    with locked(folder / LOCK, "it"), pytest.raises(BadExperiment, match="is in use by another run"):
        roll_back(folder, 3)
    [path] = [path for path in store.list_all(folder / "checkpoint") if path.name.startswith("round-3-")]
    (path / "server.safetensors").write_bytes(b"changed")
    with pytest.raises(BadExperiment, match=r"checkpoint of round 3 .* is damaged \(server"):
        roll_back(folder, 3)
    assert "server.safetensors" in next(one.damaged for one in kept_checkpoints(folder) if one.round == 3)
    with pytest.raises(BadExperiment, match="is not a run folder"):
        roll_back(tmp_path, 3)
    (tmp_path / "bare").mkdir()
    shutil.copy(folder / "experiment.json", tmp_path / "bare")
    with pytest.raises(BadExperiment, match="has no checkpoints"):
        roll_back(tmp_path / "bare", 3)
    assert tables(folder) == before
    assert len(store.list_all(folder / "checkpoint")) == 5


def test_the_command(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(played / "fedspu", folder)

    def typed(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["fedloom", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    assert "rollback" in [one.name for one in app.registered_commands]
    assert [one["round"] for one in json.loads(typed("rollback", str(folder), "--json"))["checkpoints"]] == [
        6,
        5,
        4,
        3,
        2,
    ]
    assert "fedloom rollback" in typed("rollback", str(folder))
    said = typed("rollback", str(folder), "--to", "4")
    assert "round 4" in said
    assert f"fedloom run --resume {folder}" in " ".join(said.split())
    typed("run", "--resume", str(folder), "--keep", "3", "--checkpoint-every", "1")
    assert [one.round for one in kept_checkpoints(folder)] == [6, 5, 4]
