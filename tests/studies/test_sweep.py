"""Sweeps: which settings are tried, how the best is chosen, and that a sweep that was killed ends as a straight one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.nn import Identity

from fedloom.cli.main import main
from fedloom.cli.options import space_of
from fedloom.errors import BadExperiment
from fedloom.goals import classes, numbers
from fedloom.report.charts import Maps, Parallels
from fedloom.report.group import read_groups
from fedloom.report.settings import settings_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.runs.result import Result
from fedloom.studies.compare import Contender
from fedloom.studies.search import search_of
from fedloom.studies.space import Range, plain_space, read_space
from fedloom.studies.sweep import Cell, Sweep, asked_in, sweep

SMALL = Experiment(clients=8, per_round=4, rounds=2, training={"epochs": 1})
LIMITS = {"rate": [0.05, 0.2], "mu": [0.1, 1]}


def cell(method: str, mu: float, *scores: tuple[float | None, float], goal: Any = None) -> Cell:
    """A cell whose seeds end with these scores on validation examples and on the test set."""
    results = []
    for validation, test in scores:
        row = {"score": test, "validation_score": validation, "evaluation_seconds": 1.0}
        results.append(Result(Experiment(), Identity(), [row], 1.0, None, {}, {}, goal or classes()))
    return Cell(method, {"mu": mu}, Contender(f"{method}, mu={mu}", tuple(results)))


def test_the_best_is_chosen_on_validation_examples() -> None:
    cells = (
        cell("a", 1, (0.5, 0.9), (0.6, 0.9)),
        cell("a", 2, (0.7, 0.3), (0.8, 0.4)),
        cell("a", 3, (None, 1.0), (1.0, 1.0)),  # one seed diverged
        cell("b", 1, (0.1, 0.2), (0.1, 0.2)),
    )
    found = Sweep(cells)
    assert {name: own.settings["mu"] for name, own in found.best.items()} == {"a": 2, "b": 1}
    assert [one.score().mean for one in found.tuned] == pytest.approx([0.35, 0.2]), "and told of the test set"
    assert [row["best"] for row in found.rows()] == [False, True, False, True]
    assert (found.rows()[1]["validation_mean"], found.rows()[1]["test_mean"]) == pytest.approx((0.75, 0.35))
    low = Sweep((cell("a", 1, (3.0, 1.0), goal=numbers()), cell("a", 2, (2.0, 9.0), goal=numbers())))
    assert low.best["a"].settings["mu"] == 2


def test_the_model_is_scored_on_examples_that_nobody_trains_on() -> None:
    given = {**SMALL.model_dump(), "split": (0.6, 0.3, 0.1)}
    found = run(Experiment(**{**given, "evaluate_every": 2}))
    first, last = found.rounds
    assert first["validation_score"] is None
    assert 0 < last["validation_score"] < 1
    assert last["validation_score"] != last["score"]
    assert "validation_score" not in run(SMALL).rounds[0]
    trained = run(Experiment(**{**given, "split": (0.6, 0, 0.4)})).rounds
    assert found.rounds[0]["examples_trained"] <= trained[0]["examples_trained"]


def test_a_range_is_read_and_drawn_from() -> None:
    space = space_of(["rate=0.001..0.1", "epochs=1..4", "momentum=0..0.9", "batch=5,10"])
    assert space == {"rate": Range(0.001, 0.1), "epochs": Range(1, 4), "momentum": Range(0, 0.9), "batch": [5, 10]}
    assert read_space(json.loads(json.dumps(plain_space(space)))) == space
    assert [space["rate"].at(place) for place in (0, 0.5, 1)] == [0.001, 0.01, 0.1], "by the logarithm"
    assert [space["momentum"].at(place) for place in (0, 0.5, 1)] == [0, 0.45, 0.9]
    assert {space["epochs"].at(place / 100) for place in range(100)} == {1, 2, 3, 4}
    with pytest.raises(BadExperiment, match="lower end first"):
        space_of(["rate=0.1..0.01"])


def test_searches_try_what_they_say() -> None:
    assert next(search_of("grid", LIMITS, None, 0, "high")) == [
        {"rate": rate, "mu": mu} for rate in LIMITS["rate"] for mu in LIMITS["mu"]
    ]
    ours, theirs = (next(search_of("random", space, 5, 0, "high")) for space in ({"rate": Range(0.01, 1.0)}, {
        "mu": Range(0.1, 1.0), "rate": Range(0.01, 1.0)}))  # fmt: skip
    assert [point["rate"] for point in ours] == [point["rate"] for point in theirs], (
        "rates are the same for all methods"
    )
    assert len({point["rate"] for point in ours}) == 5
    assert len(next(search_of("random", LIMITS, 20, 0, "high"))) == 4, "there are no more"
    with pytest.raises(BadExperiment, match=r"rate=0\.01\.\.1\.0 is a range, and a grid needs values"):
        next(search_of("grid", {"rate": Range(0.01, 1.0)}, None, 0, "high"))
    with pytest.raises(BadExperiment, match="how many settings each method gets"):
        next(search_of("random", LIMITS, None, 0, "high"))
    with pytest.raises(BadExperiment, match="did you mean 'random'"):
        search_of("randm", LIMITS, 3, 0, "high")


@pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is an extra, and not installed here")
def test_optuna_learns_from_what_it_is_told() -> None:
    def ask(best: Any) -> list[float]:
        search, found = search_of("optuna", {"rate": Range(0.01, 1.0)}, 30, 1, best), []
        points = next(search)
        try:
            while True:
                found.append(points[0]["rate"])
                points = search.send([abs(points[0]["rate"] - 0.05)])
        except StopIteration:
            return found

    low, high = ask("low"), ask("high")
    assert len(low) == 30
    assert low[:5] == high[:5], "the same seed asks the same"
    assert sum(low[15:]) < sum(high[15:]) / 3
    study = sweep(SMALL, {"rate": Range(0.05, 0.5)}, ["fedavg", "fedprox"], search="optuna", trials=3)
    assert [own.method for own in study.cells] == ["fedavg", "fedprox"] * 3


def test_every_method_gets_what_it_takes(tmp_path: Path) -> None:
    notes: list[str] = []
    found = sweep(SMALL, LIMITS, ["fedavg", "fedprox"], (0, 1), tell=notes.append, out=tmp_path)
    assert [own.contender.name for own in found.cells] == [
        *("fedavg, rate=0.05", "fedavg, rate=0.2"),
        *(f"fedprox, rate={rate}, mu={mu}" for rate in (0.05, 0.2) for mu in (0.1, 1)),
    ]
    assert "2 runs are trained together: fedavg" in notes
    assert notes[-1].startswith("not tuned equally: settings tried are fedavg 2, fedprox 4")
    for own in found.cells:
        for result in own.contender.results:
            assert result.experiment.split == (0.8, 0.2, 0.0)
            assert result.experiment.training.rate == own.settings["rate"]
    assert asked_in(tmp_path).space == LIMITS
    groups, _ = read_groups([tmp_path])
    chart, table, _ = settings_of(groups)
    assert isinstance(chart, Maps)
    tables = {name: next(iter(maps.values())).z for name, maps in chart.by.items()}
    assert {name: (len(z), len(z[0])) for name, z in tables.items()} == {"fedavg": (1, 2), "fedprox": (2, 2)}
    assert table is not None
    best = found.best["fedprox"]
    assert (table.rows[1][0], table.rows[1][2]) == ("fedprox", "4")
    assert set(table.rows[1][1].split(", ")) == {f"{key} {value}" for key, value in best.settings.items()}
    assert table.rows[1][3].startswith(f"{best.validation.mean:.3f} ± ")
    with pytest.raises(BadExperiment, match=r"which has a sweep with space .* `fedloom sweep --resume"):
        sweep(SMALL, {"rate": [0.05]}, ["fedavg", "fedprox"], (0, 1), out=tmp_path)


def test_methods_with_one_setting_share_a_map(tmp_path: Path) -> None:
    found = sweep(SMALL, {"rate": [0.05, 0.2]}, ["fedavg", "scaffold"], out=tmp_path)
    chart, _, _ = settings_of(read_groups([tmp_path])[0])
    assert isinstance(chart, Maps)
    (table,) = chart.by["all"].values()
    assert (table.y, table.x) == (["fedavg", "scaffold"], ["rate 0.05", "rate 0.2"])
    known = [own.validation.mean for own in found.cells]
    assert [value for row in table.z for value in row] == pytest.approx(known, rel=1e-4)


def test_settings_drawn_at_random_are_parallel_coordinates(tmp_path: Path) -> None:
    found = sweep(
        SMALL,
        {"rate": Range(0.01, 1.0), "momentum": Range(0, 0.9)},
        ["fedavg"],
        search="random",
        trials=5,
        out=tmp_path,
    )
    chart, _, _ = settings_of(read_groups([tmp_path])[0])
    assert isinstance(chart, Parallels)
    (one,) = chart.by.values()
    assert [axis.name for axis in one.axes][-1] == "accuracy"
    assert len(one.paths) == 5
    best = found.best["fedavg"]
    assert f"rate {best.settings['rate']}" in one.paths[-1].words
    assert one.paths[-1].places[-1] == 1


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedloom", *words])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


def cells_of(text: str) -> Any:
    """What a sweep printed as JSON, without what depends on the clock or the folder."""
    return json.loads(text)["cells"]


@pytest.mark.slow  # starts a process and kills it
def test_a_sweep_that_was_killed_goes_on_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "fedavg", "fedprox", "rate=0.05,0.2", "mu=0.1,1", "--seeds", "2", "--rounds", "20", "--json"]
    folder = tmp_path / "killed"
    start = [sys.executable, "-c", "from fedloom.cli.main import main; main()", *words, "--out", str(folder)]
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until and len(list(folder.glob("*/model.safetensors"))) < 4:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = [path for path in folder.glob("*/log.txt") if path.read_text().rstrip().endswith("finished")]
    assert 0 < len(ended) < 12, "killed half-way"
    assert command(monkeypatch, "sweep", "--resume", str(folder), "--json") == 0
    resumed = cells_of(capsys.readouterr().out)
    assert command(monkeypatch, *words, "--out", str(tmp_path / "straight")) == 0
    assert resumed == cells_of(capsys.readouterr().out)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    few = ("--clients", "8", "--rounds", "2", "--set", "epochs=1", "--seeds", "1")
    assert command(monkeypatch, "sweep", "fedavg", "fedprox", "rate=0.05,0.2", *few) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "run folders are in runs/sweep-1: fedloom report runs/sweep-1" in text
    assert "validation" in text
    assert command(monkeypatch, "sweep", "--resume", "runs/sweep-1") == 0
    assert "4 of 4 runs are finished already" in capsys.readouterr().out
    for wrong, why in (
        (("sweep", "rate=0.1", *few), "it needs one of each"),
        (("sweep", "--resume", str(tmp_path)), "has no sweep.json"),
        (("sweep", "fedavg", "rate=0.05,0.2", "--search", "random", *few), "how many settings each method gets"),
        (("sweep", "fedavg", "rat=0.05,0.2", *few), "did you mean 'rate'"),
    ):
        assert command(monkeypatch, *wrong) == 2
        assert why in " ".join(capsys.readouterr().err.split())
