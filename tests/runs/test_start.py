"""Runs that begin with the weights of another: the same bits as with those weights in hand, also when resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedloom.cli.main import main
from fedloom.errors import BadExperiment, BadModel, FedloomError
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.load_model import load_model
from fedloom.runs.play import resume, run

SMALL: dict[str, Any] = {"model": "mlp", "clients": 4, "per_round": 2, "rounds": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier run."""
    folder = tmp_path_factory.mktemp("before") / "run"
    run(Experiment(method="fedavg", **SMALL), out=folder)
    return folder


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedspu", "prunefl-fixed"])
def test_it_equals_a_run_with_those_weights_in_hand(before: Path, method: str) -> None:
    experiment = Experiment(method=method, seed=1, **SMALL)
    found, wanted = run(experiment, start=before), run(experiment, model=load_model(before))
    assert all(torch.equal(one, other) for one, other in zip(found.model.parameters(), wanted.model.parameters()))
    assert [row["score"] for row in found.rounds] == [row["score"] for row in wanted.rounds]
    assert found.rounds[0]["score"] != run(experiment).rounds[0]["score"]


def test_a_resumed_run_needs_the_earlier_one_no_more(before: Path, tmp_path: Path) -> None:
    """It keeps a copy: the earlier run may go on, or be gone."""
    shutil.copytree(before, tmp_path / "before")
    experiment = Experiment(method="scaffold", start=str(tmp_path / "before"), **SMALL)
    run(experiment, out=tmp_path / "whole")
    short = Experiment(**{**experiment.model_dump(), "rounds": 1})
    run(short, out=tmp_path / "run", checkpoints=Checkpoints(rounds=1))
    assert (tmp_path / "run/start.safetensors").read_bytes() == model_of(before)
    shutil.rmtree(tmp_path / "before")
    resume(tmp_path / "run", rounds=3)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "whole")
    about = json.loads((tmp_path / "run/experiment.json").read_text())
    assert about["experiment"]["start"] == str(tmp_path / "before")
    assert len(about["start"]) == 64
    with pytest.raises(BadExperiment, match=r"start was '.*before' when this run was begun and is None now"):
        run(Experiment(method="scaffold", **SMALL), out=tmp_path / "run", resume=True)
    tensors = {name: value + 1 for name, value in load_file(tmp_path / "run/start.safetensors").items()}
    save_file(tensors, tmp_path / "run/start.safetensors")
    with pytest.raises(BadExperiment, match="the start is not that of the run that was begun"):
        resume(tmp_path / "run", rounds=4)


class Normed(nn.Module):
    """With running statistics, a counter of batches, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x.flatten(1))))


def test_a_state_dict_saved_elsewhere(tmp_path: Path) -> None:
    """Counters are left out, running statistics taken, frozen parameters compared."""
    torch.manual_seed(3)
    network, experiment = Normed(), Experiment(**SMALL)
    trained = Normed()
    trained.first.load_state_dict(network.first.state_dict())
    trained.norm.running_mean.fill_(0.5)  # type: ignore[union-attr]
    file = tmp_path / "there.safetensors"
    save_file(trained.state_dict(), file)
    found, wanted = run(experiment, model=network, start=file), run(experiment, model=trained)
    for name, value in wanted.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    save_file({**trained.state_dict(), "first.bias": torch.ones(8)}, file)
    with pytest.raises(BadModel, match=r"tensor 'first\.bias' in .* differs from the network's, where it is frozen"):
        run(experiment, model=network, start=file)


def changed(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path, Path], Path]:
    def write(before: Path, folder: Path) -> Path:
        tensors = load_file(before / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "it.safetensors")
        return folder / "it.safetensors"

    return write


BIAS = "dense2.bias"
WRONG: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "missing": (changed(lambda t: t.pop(BIAS)), r"has no tensor for 'dense2\.bias' of the network; it has dense1"),
    "too many": (changed(lambda t: t.update({"more": t[BIAS].clone()})), "tensor 'more', which the network lacks"),
    "shape": (changed(lambda t: t.update({BIAS: torch.ones(7)})), r"'dense2\.bias' .* shape \[7\], and .* has \[64\]"),
    "type": (changed(lambda t: t.update({BIAS: t[BIAS].half()})), r"'dense2\.bias' .* is torch\.float16, and the"),
    "not finite": (changed(lambda t: t[BIAS].fill_(torch.nan)), r"tensor 'dense2\.bias' .* infinite or NaN"),
    "nowhere": (lambda before, folder: folder / "none", "which does not exist; expected the folder of a run or"),
    "no run": (lambda before, folder: folder, r"there is no model\.safetensors in it"),
    "damaged": (lambda before, folder: before / "experiment.json", "cannot be read as safetensors"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named_before_anything_is_written(before: Path, name: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    make, told = WRONG[name]
    with pytest.raises(FedloomError, match=told):
        run(Experiment(**SMALL), start=make(before, tmp_path / "files"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command(before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["fedavg", "--model", "mlp", "--clients", "4", "--set", "per_round=2", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["fedloom", "run", *words, "--from", str(before), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert f"begins with the weights of '{before}'" in capsys.readouterr().out.replace("\n", "")
    wanted = run(Experiment(method="fedavg", start=str(before), **{**SMALL, "rounds": 1}), out=tmp_path / "other")
    assert wanted.folder is not None
    assert model_of(tmp_path / "run") == model_of(tmp_path / "other")
