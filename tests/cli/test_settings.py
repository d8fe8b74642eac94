"""What the command says of settings: lists of them, hints, refusals, and what a run takes for granted."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import fedloom
from fedloom.cli.main import app
from fedloom.cli.options import WARNINGS
from fedloom.cli.setting_rows import setting_rows
from fedloom.cli.show import progress
from fedloom.core.devices import Devices
from fedloom.errors import BadExperiment
from fedloom.runs.build import prepare
from fedloom.runs.experiment import GROUPS, Experiment
from fedloom.runs.set_values import with_settings


def say(*words: str) -> str:
    """What a command prints."""
    ended = CliRunner().invoke(app, list(words))
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_every_setting_says_what_it_is() -> None:
    rows = {row.name: row for row in setting_rows("settings")}
    assert {name.partition(".")[0] for name in rows if "." in name} == set(GROUPS)
    assert [name for name, row in rows.items() if not row.about] == []
    assert rows["training.rate"][1:4] == ("0.1", "", "above 0")
    assert "safari: 0.01" in rows["training.rate"].about
    assert rows["world.deadline"][1:4] == ("none", "seconds", "above 0")
    assert rows["world.piece_loss"].range == "at least 0, at most 1"
    assert rows["engine"].range == "local or loop or distributed"
    assert rows["codec.feedback"].range == "true or false"
    listed = json.loads(say("list", "training", "--json"))
    assert [row["name"] for row in listed] == list(GROUPS["training"].model_fields)
    assert "training.rate" in say("list", "settings")


def test_ranges_are_those_that_are_checked() -> None:
    for row in setting_rows("training"):
        wrong = {"above 0": 0, "above 0, at most 1": 1.5, "from 0 to below 1": 1.0, "at least 0": -1, "at least 1": 0}
        if row.range in wrong:
            kind = int if row.name in ("epochs", "steps", "batch") else float
            with pytest.raises(BadExperiment, match=row.name):
                Experiment(training={row.name: kind(wrong[row.range])})


@pytest.mark.parametrize(
    ("typed", "meant"), [("lr", "rate"), ("local_epochs", "epochs"), ("bs", "batch"), ("num_rounds", "rounds")]
)
def test_names_of_other_libraries_are_understood(typed: str, meant: str) -> None:
    with pytest.raises(BadExperiment, match=f"unknown setting '{typed}'; did you mean '{meant}'"):
        with_settings({}, {typed: 1})


def test_one_setting_has_one_value() -> None:
    with pytest.raises(BadExperiment, match=r"rate=0\.1 and training\.rate=0\.2 are the same setting"):
        with_settings({}, {"rate": 0.1, "training.rate": 0.2})
    assert with_settings({}, {"rate": 0.1, "training.rate": 0.1})["training"] == {"rate": 0.1}
    ended = CliRunner().invoke(app, ["run", "fedavg", "--set", "rate=0.1", "--set", "rate=0.2"])
    assert "--set got rate twice, 0.1 and 0.2" in str(ended.exception)


def test_what_is_taken_for_granted_is_said() -> None:
    given = {"clients": 6, "per_round": 50, "training": {"batch": 0}, "fleet": "mobile-4g"}
    prepared = prepare(Experiment(**given))
    devices = prepared.inputs.setting.fleet.devices
    assert isinstance(devices, Devices)
    there = 100 * float(devices.availability.mean())
    notes = " ".join(prepared.notes)
    assert f"fleet 'mobile-4g' assumes: clients are there {there:.3g} (" in notes
    assert "per_round is 50, and 6 clients have examples: every round asks all of them." in notes
    assert "batch is 0: a step takes all of a client's examples at once." in notes
    plain = " ".join(prepare(Experiment(clients=6, per_round=6)).notes)
    assert not re.search("assumes|asks all|batch is 0", plain)


def test_clients_that_are_not_tested_are_said() -> None:
    rng, whose = np.random.default_rng(0), np.arange(40) % 4
    x, y = rng.random((40, 5), dtype=np.float32), rng.integers(0, 2, 40)
    given: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "client_train": whose}
    experiment = Experiment(clients=4, per_round=2, rounds=1)
    for strangers in (True, False):
        data = fedloom.as_dataset({**given, "client_test": whose + 4 * strangers})
        found = prepare(experiment, data=data).notes
        assert any("examples are strangers'" in note for note in found) == strangers


def test_values_in_errors_are_short() -> None:
    with pytest.raises(BadExperiment) as raised:
        Experiment(data={"x_train": np.zeros((1000, 64)), "y_train": np.zeros(1000, int)})
    assert len(str(raised.value)) < 400
    assert "<array [1000, 64] float64>" in str(raised.value)
    assert "data of your own are passed to run: run(experiment, data=...)" in str(raised.value)
    with pytest.raises(BadExperiment, match=r"\(0\.5, 0\.5\) has 2 shares; expected three, of training, validation"):
        Experiment(split=(0.5, 0.5))


def test_the_version() -> None:
    assert say("--version").startswith(f"fedloom {fedloom.__version__} (torch ")


def test_a_warning_has_a_line_of_its_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, log = Console(file=io.StringIO(), force_terminal=True, width=100), logging.getLogger("fedloom")
    monkeypatch.setattr(log, "handlers", [*log.handlers, WARNINGS])
    with progress(screen, "fedavg", 3) as watch:
        watch({"round": 1, "score": 0.5, "loss": None, "training_loss": 1.0})
        log.warning("stopping after this round")
    assert WARNINGS.console is not screen
    assert isinstance(screen.file, io.StringIO)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue()).replace("\r", "\n").splitlines()
    assert any(re.fullmatch(r"WARNING +stopping after this round *", line) for line in lines)
