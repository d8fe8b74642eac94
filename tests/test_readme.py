"""What the README shows works as shown."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom.studies.plan  # noqa: F401  before `run` is replaced below, or it would keep the replacement
from fedloom.cli.main import Kind, main
from fedloom.data.load import load
from fedloom.errors import RunStopped
from fedloom.methods import METHODS
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.runs.result import Result

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

NETWORK = """
from torch import nn

class MyNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


def blocks(language: str) -> list[str]:
    """The README's code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(start: str) -> list[str]:
    """The README's command lines that begin so, without their comments."""
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith(start)]


def words(command: str) -> list[str]:
    """A command line as a shell reads it."""
    return shlex.split(command, comments=True)


RUNS = commands("fedloom run")
DEMO = re.findall(r"^\t\$\(BIN\)/(fedloom run .*)$", MAKEFILE, re.MULTILINE)
METHOD = next(block for block in blocks("python") if "def my_method" in block)
MIX = next(block for block in blocks("python") if "fedspu_with_memory" in block)
PROGRAM = next(block for block in blocks("python") if "= Experiment(" in block)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    """An empty place with the files that the README calls the reader's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "my_net.py").write_text(NETWORK)
    data = load("digits")
    np.savez(tmp_path / "my_images.npz", **{name: getattr(data, name) for name in data._fields[1:5]})


def test_everything_was_found():
    assert len(blocks("python")) == 3
    assert len(RUNS) >= 5
    assert len(DEMO) == 1
    assert sum("my_method.py:my_method" in line for line in RUNS) == 1


def test_the_program_runs(capsys, tmp_path):
    text, count = re.subn(r"rounds=\d+", "rounds=2", PROGRAM)
    assert count == 1
    (tmp_path / "program.py").write_text(text)
    left = runpy.run_path(str(tmp_path / "program.py"))
    assert isinstance(left["result"], Result)
    assert len(left["result"].rounds) == 2
    accuracy, classes = capsys.readouterr().out.split(" ", 1)
    assert float(accuracy) == left["result"].accuracy
    assert classes.count(",") == 9


def test_own_things_can_be_passed_as_said(tmp_path):
    assert "`run(..., model=my_module, data=my_dataset, method=my_method)`" in README
    own = runpy.run_path(str(tmp_path / "my_method.py"))
    net = runpy.run_path(str(tmp_path / "my_net.py"))["MyNet"]()
    result = run(
        Experiment(clients=4, rounds=2),
        model=net,
        data=load(str(tmp_path / "my_images.npz")),
        method=own["my_method"](),
    )
    assert type(result.model).__name__ == "MyNet"


def test_the_method_does_what_it_says():
    values: dict[str, Any] = {"model": "linear", "clients": 4, "per_round": 1, "rounds": 1}
    start = prepare(Experiment(**values)).inputs
    half = run(Experiment(**values, method="my_method.py:my_method")).model.state_dict()
    whole = run(Experiment(**values, method="fedavg")).model.state_dict()
    for name, first in start.setting.layout.split(start.model).items():
        np.testing.assert_allclose(half[name] - first, 0.5 * (whole[name] - first), atol=1e-6)
        assert not np.allclose(whole[name], first)


def test_the_mix_learns():
    found: dict[str, Any] = {}
    exec(compile(MIX, "README", "exec"), found)
    result = run(Experiment(clients=10, rounds=3), method=found["fedspu_with_memory"])
    assert len(result.rounds) == 3
    assert result.rounds[-1]["aggregate.heard"] == 10


@pytest.mark.parametrize("line", [*RUNS, *DEMO])
def test_every_run_line_is_an_experiment(line, monkeypatch, capsys):
    seen: list[Experiment] = []

    def caught(experiment: Experiment, **_: Any) -> Result:
        seen.append(experiment)
        raise RunStopped("seen")

    monkeypatch.setattr(sys.modules["fedloom.runs.play"], "run", caught)
    monkeypatch.setattr(sys, "argv", words(line))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 3, capsys.readouterr().err
    assert len(seen) == 1
    assert seen[0].method.name == words(line)[2]
    for name, value in re.findall(r"--set (?:\w+\.)?(\w+)=(\S+)", line):
        dumped = seen[0].model_dump_json()
        assert f'"{name}":{value}' in dumped or f'"{name}":{{"name":"{value}"' in dumped


@pytest.mark.parametrize("line", [line for line in RUNS if "my_method.py" in line])
def test_the_line_with_own_files_runs(line, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", [*words(line), "--rounds", "2", "--set", "epochs=1"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    files = {file.name for file in (tmp_path / "runs" / "my_method-my_images-1").iterdir()}
    assert files == {
        "experiment.json",
        "rounds.parquet",
        "clients.parquet",
        "model.safetensors",
        "log.txt",
        "log.jsonl",
        "checkpoint",
    }
    for name in files:
        assert f"`{name}`" in README


def test_all_kinds_of_lists_are_named():
    line = commands("fedloom list")[0]
    assert set(re.findall(r"[a-z]+", line)) - {"fedloom", "list", "also"} == {kind.value for kind in Kind}


def test_all_methods_are_named():
    table = next(line for line in README.splitlines() if line.startswith("| methods |"))
    assert set(re.findall(r"[a-z][a-z0-9_-]*", table)) - {"methods"} == set(METHODS)


def test_make_targets_exist():
    targets = [words(line)[1] for line in commands("make ")]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_lead_somewhere(text):
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_map_of_the_house_is_true():
    tree = re.search(r"^```\nsrc/fedloom/\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert tree is not None
    named = re.findall(r"\b[a-z_]+(?:\.py\b|/)", tree[1])
    assert len(named) > 20
    house = ROOT / "src" / "fedloom"
    for name in named:
        assert (house / name).exists() or list(house.glob(f"*/{name}")), name
