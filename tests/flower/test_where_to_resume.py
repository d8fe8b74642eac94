"""A run goes on where it was begun: on real nodes or in simulation, by the command that fits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedloom import run
from fedloom.cli.main import main
from fedloom.errors import BadExperiment, RunStopped
from fedloom.files import resume_with, writing
from fedloom.flower.deploy.commands import deploy
from fedloom.flower.deploy.trial import CONFIG, run_trial
from fedloom.runs.experiment import Experiment
from flower_world import fake, served, tiny, tiny_data


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return tiny(tiny_data(tmp_path), method="fedavg", rounds=1)


def more(experiment: Experiment) -> Experiment:
    return Experiment(**{**experiment.model_dump(), "rounds": 2})


def test_a_deployed_run_is_not_simulated(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fedloom run --resume` and `run(resume=True)` name the deployment's own command and change nothing."""
    out, command = tmp_path / "run", "flwr run /srv/app fedloom --stream --run-config resume=true"
    served(fake(experiment), experiment, out=str(out), **{"resume-with": command})
    before = (out / "rounds.parquet").read_bytes()
    with pytest.raises(BadExperiment, match=f"go on with `{command}`"):
        run(more(experiment), out=out, resume=True)
    monkeypatch.setattr(sys, "argv", ["fedloom", "run", "--resume", str(out), "--rounds", "2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert command in " ".join(capsys.readouterr().err.split())
    with pytest.raises(BadExperiment, match="not the run of a trial"):
        run_trial(more(experiment), 3, out=out, resume=True)
    assert (out / "rounds.parquet").read_bytes() == before
    assert len(served(fake(more(experiment)), more(experiment), out=str(out), resume=True).rounds) == 2


def test_a_folder_of_an_app_of_ones_own_names_flowers_command(experiment: Experiment, tmp_path: Path) -> None:
    served(fake(experiment), experiment, out=str(tmp_path / "run"))
    with pytest.raises(BadExperiment, match="flwr run APP --run-config 'resume=true'"):
        run(more(experiment), out=tmp_path / "run", resume=True)


def test_a_trial_goes_on_with_its_nodes(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = f"fedloom trial --resume {out} --nodes 3"
    served(fake(experiment), experiment, out=str(out), **{"resume-with": command})
    with pytest.raises(BadExperiment, match=f"go on with `{command}`"):
        run_trial(more(experiment), 2, out=out, resume=True)
    with pytest.raises(BadExperiment, match=f"go on with `{command}`"):
        run(more(experiment), out=out, resume=True)


def test_a_simulated_run_is_not_deployed(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(experiment, out=out)
    with pytest.raises(BadExperiment, match=f"simulated run; go on with `fedloom run --resume {out}`"):
        served(fake(more(experiment)), more(experiment), out=str(out), resume=True)
    with pytest.raises(BadExperiment, match="simulated run"):
        run_trial(more(experiment), 3, out=out, resume=True)


def test_a_deployment_says_how_its_run_goes_on(experiment: Experiment, tmp_path: Path) -> None:
    made, typed = deploy(tmp_path / "made", experiment, 2, dict(CONFIG))
    assert typed.supervise in (made.app / "pyproject.toml").read_text()


def test_a_full_disk_recommends_the_same_command(tmp_path: Path) -> None:
    token = resume_with.set("flwr run /srv/app")
    try:
        with pytest.raises(RunStopped, match="`flwr run /srv/app`"), writing(tmp_path):
            raise OSError(28, "No space left on device")
    finally:
        resume_with.reset(token)
    with pytest.raises(RunStopped, match="`fedloom run --resume"), writing(tmp_path):
        raise OSError(28, "No space left on device")
