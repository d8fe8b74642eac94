"""`fedloom reproduce` on a tiny recipe: run, interrupted, continued, written and written again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedloom.cli.main import main
from fedloom.errors import BadData
from fedloom.runs import many_runs
from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes import runner
from fedloom.studies.recipes.page import page, write_pages
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe, Tuning
from fedloom.studies.recipes.runner import play
from fedloom.studies.recipes.store import Store, read_table, tables_in
from fedloom.studies.recipes.table import RECIPES

COMMON: dict[str, Any] = {"clients": 6, "per_round": 3, "rounds": 3, "training": {"epochs": 1}}


def tiny(quick: bool = False) -> Recipe:
    """FedAvg and FedProx on digits, with a rate that FedAvg chooses."""
    plain = Experiment(**COMMON)
    experiments = {"d/FedAvg": plain, "d/FedProx": Experiment(**COMMON, method="fedprox")}
    pair = ("d/FedProx",), Measure(), ("d/FedAvg",)
    claims = (
        Claim("value", ("d/FedAvg",), paper=50.0, tolerance=500.0),
        Claim("alike", *pair, "difference", "equal", None, 1000.0),
        Claim("control | more", *pair, "difference", "above", control=True),
    )
    tuning = (Tuning("d/", plain, (0.01, 0.2)),)
    notes = ("a note", *(["smaller: nothing"] if quick else []))
    columns = {"the model": Measure(), "bytes": Measure("gigabytes")}
    return Recipe("tiny", "digits", experiments, claims, notes, tuning, columns=columns, quick=quick)


def lost(quick: bool = False) -> Recipe:
    """Needs data that nobody has."""
    one = Experiment(**COMMON, data="speech-commands", model="spu-speech")
    return Recipe("tiny-lost", "speech", {"a": one}, (Claim("value", ("a",), paper=1.0),), quick=quick)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "tiny", tiny)
    monkeypatch.setitem(RECIPES, "tiny-lost", lost)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `fedloom reproduce ...`."""
    monkeypatch.setattr(sys, "argv", ["fedloom", "reproduce", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def played(out: Path, seeds: tuple[int, ...] = (0, 1)) -> runner.Played:
    return play([tiny()], seeds, out, "cpu", None, lambda name, seed, row: None, lambda note: None)


def without_clock(rows: Any) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in ("wall_seconds", "evaluation_seconds", "personal_seconds")}
        for row in rows
    ]


def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ("tiny", "--seeds", "2", "--device", "cpu", "--out", str(out))
    assert command(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "6 runs of 1 recipes" in shown
    assert "reproduced" in shown
    table = read_table(out / "tiny.parquet")
    assert set(table.runs) == {(label, seed) for label in ("d/FedAvg", "d/FedProx") for seed in (0, 1)}
    assert [row["round"] for row in table.runs["d/FedAvg", 0].rows] == [1, 2, 3]
    assert [row["per_class"] is None for row in table.runs["d/FedAvg", 0].rows] == [True, True, False]
    assert table.about["rates"] == {"d/": 0.2}
    assert table.about["data"] == {"digits": {"train": 1438, "test": 359}}
    assert table.about["commands"][0]["command"] == "fedloom reproduce " + " ".join(words)
    claims = json.loads((out / "claims.json").read_text())["tiny"]
    assert [one["verdict"] for one in claims][:2] == ["reproduced", "reproduced"]
    assert [len(one["values"]) for one in claims] == [2, 2, 2]
    text = page(table)
    for word in (
        "# tiny",
        "| value | 50.0 % | 500.0 |",
        "|  | the model, % | bytes, GB |",
        "| d/FedAvg | ",
        "control \\| more",
        "a note",
        "0.2, the best",
        "CPU cores",
    ):
        assert word in text
    # again: nothing is run, and nothing changes but that a seed can be left out
    before = (out / "tiny.parquet").read_bytes()
    monkeypatch.setattr(runner, "run_all", None)
    assert command(monkeypatch, *words) == 0
    assert (out / "tiny.parquet").read_bytes() == before


def test_pages_are_made_anew_from_parquets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "tiny", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path)) == 0
    assert command(monkeypatch, "tiny", "--quick", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path)) == 0
    assert [file.name for file in tables_in(tmp_path)] == ["tiny-quick.parquet", "tiny.parquet"]
    (tmp_path / "tiny.notes.txt").write_text("Looked at.\n")
    first = {file: file.read_bytes() for file in write_pages(tmp_path)}
    assert {file.name for file in first} == {"tiny.md", "tiny-quick.md", "README.md"}
    assert b"Looked at." in first[tmp_path / "tiny.md"]
    assert b"smaller version" in first[tmp_path / "tiny-quick.md"]
    assert b"[tiny](tiny.md)" in first[tmp_path / "README.md"]
    capsys.readouterr()
    assert command(monkeypatch, "--pages", str(tmp_path)) == 0
    assert {file: file.read_bytes() for file in first} == first
    assert set(capsys.readouterr().out.split()) == {str(file) for file in first}
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1")
    with pytest.raises(BadData, match=r"bad\.parquet"):
        write_pages(tmp_path)


def test_the_same_seeds_give_the_same_rows(tmp_path: Path) -> None:
    ours, theirs = (kept(folder) for folder in (tmp_path / "a", tmp_path / "b"))
    assert ours.keys() == theirs.keys()
    for at in ours:
        assert without_clock(ours[at].run.rows) == without_clock(theirs[at].run.rows)
    assert without_clock(ours["d/FedAvg", 0].run.rows) != without_clock(ours["d/FedAvg", 1].run.rows)


def kept(folder: Path) -> Any:
    found = played(folder)
    return runner.kept_runs(found.recipes[0], (0, 1), Store(folder))


def test_an_interrupt_loses_nothing_that_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tiny", "--seeds", "2", "--device", "cpu", "--out", str(tmp_path))
    real, begun = many_runs.play, 0

    def stopping(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 4:  # two trials of rates ran by themselves, two seeds of FedAvg together
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(many_runs, "play", stopping)
    assert command(monkeypatch, *words) == 130
    assert "interrupted" in capsys.readouterr().err
    there = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*.json")}
    assert len(there) == 4
    monkeypatch.setattr(many_runs, "play", real)
    again = played(tmp_path)
    assert (again.ran, again.kept, again.failed, again.left) == (2, 4, {}, 0)
    for name, when in there.items():
        assert (tmp_path / "runs" / name).stat().st_mtime_ns == when
    fresh = kept(tmp_path / "fresh")
    for at, one in runner.kept_runs(again.recipes[0], (0, 1), Store(tmp_path)).items():
        assert without_clock(one.run.rows) == without_clock(fresh[at].run.rows)


def test_no_time_left(tmp_path: Path) -> None:
    found = play([tiny()], (0,), tmp_path, "cpu", None, lambda *each: None, lambda note: None, minutes=0)
    assert (found.ran, found.left) == (0, 2)  # the trials; without a rate nothing else can begin
    assert found.rates == {"tiny": {}}


def test_one_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runner.run_all

    def failing(experiments: list[Experiment], *args: Any, **kwargs: Any) -> Any:
        if any(one.seed == 1 for one in experiments):
            raise RuntimeError("out of memory")
        return real(experiments, *args, **kwargs)

    monkeypatch.setattr(runner, "run_all", failing)
    found = played(tmp_path)
    assert found.ran == 2 + 2
    assert set(found.failed.values()) == {"RuntimeError: out of memory"}


def test_data_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--seeds", "1", "--device", "cpu", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"))
    assert command(monkeypatch, "tiny-lost", *words) == 3
    assert "speech-commands.npz" in capsys.readouterr().err.replace("\n", "")
    assert command(monkeypatch, "tiny-lost", "tiny", *words) == 0
    assert json.loads((tmp_path / "out" / "claims.json").read_text())["tiny-lost"][0]["verdict"] == "not run"
    failed = [read_table(tmp_path / "out" / f"{name}.parquet").about["failed"] for name in ("tiny", "tiny-lost")]
    assert list(map(len, failed)) == [0, 1]  # names that begin alike are told apart


@pytest.mark.parametrize(
    ("words", "text"),
    [(("fedumf-tabel1",), "fedumf-table1"), ((), "--list"), (("tiny", "--scale", "2"), "scale is 2.0")],
)
def test_wrong_words(
    words: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert command(monkeypatch, *words, "--out", str(tmp_path / "out")) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in list(RECIPES):
        if name not in ("tiny", "fedumf-table1", "fedspu-fig5"):
            monkeypatch.delitem(RECIPES, name)
    assert command(monkeypatch, "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == list(RECIPES)
    assert listed[0]["data"] == ["mnist"]
    assert listed[0]["h200_seconds"] < listed[0]["cpu_seconds"]
    assert listed[0]["quick_cpu_seconds"] < 180
    assert command(monkeypatch, "--list") == 0
    assert "fedumf-table1" in capsys.readouterr().out
