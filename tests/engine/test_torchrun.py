"""The command under torchrun: one run on two ranks, said once, and what is wrong said once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom import Experiment, run
from fedloom.errors import BadExperiment


def test_outside_torchrun_it_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadExperiment, match="torchrun --nproc-per-node 2 -m fedloom run"):
        run(Experiment(engine="distributed"))


RUN = ["run", "fedspu", "--clients", "12", "--rounds", "3", "--set", "per_round=5", "--set", "split=[0.7,0.0,0.3]"]


def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`fedloom` on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedloom"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def test_the_command_under_torchrun(tmp_path: Path) -> None:
    words = [*RUN, "--engine", "distributed", "--device", "cpu", "--json", "--out", "here"]
    ended = torchrun(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    ours = json.loads(ended.stdout)  # one object: rank 1 says nothing
    settings = {"clients": 12, "rounds": 3, "per_round": 5, "split": (0.7, 0.0, 0.3), "device": "cpu"}
    theirs = run(Experiment(method="fedspu", **settings)).summary()
    for name in ("accuracy", "personal_accuracy", "bytes_up", "examples_trained"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name
    assert {file.name for file in (tmp_path / "here").iterdir()} >= {"experiment.json", "rounds.parquet", "log.txt"}


MINE = """
import os
from dataclasses import dataclass

from fedloom import LocalRule, Method


@dataclass(frozen=True)
class Weak(LocalRule):
    def finish(self, task, state, first, last, steps):
        if os.environ["RANK"] == "1" and task.round == 2:
            raise ZeroDivisionError("more than it can bear")
        return last, {}, state


def weak():
    return Method(local=Weak())
"""


@pytest.mark.slow
def test_the_command_says_once_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "mine.py").write_text(MINE)
    for words, text in (
        (["run", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "fedavg", "--out", "used"], "exists and is not empty"),
        (["run", "mine.py:weak", "--out", "weak"], "rank 1 of 2 failed: ZeroDivisionError: more than it can bear"),
    ):
        ended = torchrun(tmp_path, *words, "--engine", "distributed", "--device", "cpu")
        assert ended.returncode != 0
        assert ended.stderr.count("error: ") == 1, ended.stderr
        assert text in ended.stderr
    assert "in finish" in (tmp_path / "weak" / "log.txt").read_text()  # where it happened on the other rank
    assert (tmp_path / "weak" / "rounds.parquet").exists()  # the round before is kept
