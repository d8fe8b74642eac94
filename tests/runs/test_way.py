"""The way of a run: written down, taken again on resume, pinned by a setting, never measured for small work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom import Experiment, resume, run
from fedloom.engine.local import Engines
from fedloom.errors import BadExperiment
from fedloom.runs import build
from fedloom.runs.many_runs import run_all
from fedloom.runs.play import play

WORK = {
    "data": "digits", "clients": 10, "per_round": 4, "training": {"epochs": 1, "batch": 50},
    "model": {"name": "vit", "settings": {"depth": 1, "width": 16}},
}  # fmt: skip


def measured(way: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every run be worth measuring, and this way be the fastest; the cohorts that were asked for."""
    asked: list[int] = []

    def fastest(engines: Engines, cohort: int) -> tuple[str, Any]:
        asked.append(cohort)
        return way, ((way, 1.0), ("in-turn", 2.0))

    monkeypatch.setattr(build, "WORTH", 0)
    monkeypatch.setattr(build, "fastest_way", fastest)
    return asked


def weights(result: Any) -> dict[str, torch.Tensor]:
    """A run's model."""
    return dict(result.model.state_dict())


def test_a_resumed_run_keeps_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured("per-core", monkeypatch) == []
    straight = weights(run(Experiment(**WORK, rounds=4)))
    run(Experiment(**WORK, rounds=2), out=tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "experiment.json").read_text())["engine"]["plan"]
    assert plan["clients"] == "per-core"
    assert plan["measured"] == {"per-core": 1.0, "in-turn": 2.0}
    asked = measured("together", monkeypatch)
    other = weights(run(Experiment(**WORK, rounds=4)))
    assert asked == [4]
    assert any(not torch.equal(straight[name], other[name]) for name in straight)  # a way decides last bits
    resumed = weights(resume(tmp_path / "run", rounds=4))
    assert asked == [4]  # not measured again
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_way_that_no_longer_fits_is_chosen_anew(tmp_path: Path) -> None:
    run(Experiment(**WORK | {"model": "mlp"}, rounds=1), out=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "experiment.json").read_text())
    for damaged in ("per-core-channels-last", "flying"):
        about["engine"]["plan"]["clients"] = damaged
        (tmp_path / "run" / "experiment.json").write_text(json.dumps(about))
        assert len(resume(tmp_path / "run", rounds=2).rounds) == 2


def test_a_setting_pins_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measured("together", monkeypatch)
    pinned = build.prepare(Experiment(**WORK, way="per-core"))
    assert pinned.engine.describe()["plan"]["clients"] == "per-core"
    assert asked == []
    with pytest.raises(BadExperiment, match="way is 'in-turn-channels-last'"):
        build.prepare(Experiment(**WORK | {"model": "mlp"}, way="in-turn-channels-last"))
    with pytest.raises(BadExperiment, match="way is 'sideways'"):
        Experiment(**WORK, way="sideways")


def test_small_rounds_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(engines: Engines, cohort: int) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(build, "fastest_way", never)
    assert build.prepare(Experiment(**WORK)).engine.describe()["plan"]["clients"] == "together"
    experiment = Experiment(**WORK, rounds=1000)  # the number of rounds may grow on resume, so it does not count
    assert build.prepare(experiment).engine.describe()["plan"]["measured"] == {}


def test_runs_that_are_compared_train_as_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    measured("per-core", monkeypatch)
    experiment = Experiment(**WORK, rounds=2)
    prepared = build.prepare(experiment)
    alone = weights(play(experiment, prepared))
    notes: list[str] = []
    both = run_all([experiment, experiment], [None, None], tell=notes.append)
    for one in both:
        assert all(torch.equal(weights(one)[name], alone[name]) for name in alone)
    assert "train by themselves" in notes[0]
