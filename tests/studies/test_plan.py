"""Which candidates a plan tries, and how its trade-off is drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedloom.accel.machine import duration, size
from fedloom.cli.main import main
from fedloom.cli.options import choices_of
from fedloom.cli.show_studies import plan_rows, plan_table
from fedloom.errors import BadExperiment
from fedloom.runs.experiment import Experiment
from fedloom.studies.chart import check_chart, draw_chart, letters, text_chart
from fedloom.studies.plan import CANDIDATES, Option, Plan, candidates, plan

BASE = Experiment(fleet="iot", clients=10, rounds=3, per_round=4)


def option(name: str, seconds: float, moved: float, joules: float = 1.0) -> Option:
    return Option(name, Experiment(), 1.0, seconds, moved, joules)


FOUND = Plan(0.5, (option("a1", 10, 9e6), option("b1", 100, 3e6), option("c1", 300, 4e6), option("d1", 1000, 1e6)), ())


def test_a_plan_for_flower_has_its_waits_and_bytes():
    fleet = {"name": "equal", "settings": {"latency": 0.25}}
    over = {"name": "equal", "settings": {"latency": 0.25, "transport": "flower", "first_window": 0}}
    base = Experiment(fleet=fleet, clients=2, per_round=2, rounds=1, training={"epochs": 1}, device="cpu")
    (plain,), (flower,) = (
        plan(Experiment(**{**base.model_dump(), "fleet": each}), 0.01, ["fedavg"], codecs=["float32"]).options
        for each in (fleet, over)
    )
    messages, carried = plain.bytes / 4, plain.bytes / 4 * 1.055  # a task's, about a reply's
    assert flower.bytes == pytest.approx(2 * (2 * 1.055 * messages + 12_000 + 4300), rel=1e-4)
    waits = 0.8 + 4 * 0.5 + 2 * 0.1 * messages / 1e6 * 0.5
    longer = 8 * (carried - messages) * (1 / 1e6 + 1 / 1e7) + 8 * (12_000 / 1e6 + 4300 / 1e7)
    assert flower.seconds - plain.seconds == pytest.approx(waits + longer, rel=1e-3)


# ---- candidates


def test_settings_are_varied_for_those_that_take_them():
    found = candidates(BASE, ["fedavg", "fedcs"], ["float32", "int8"], {"method.budget": [0.4, 0.8]})
    assert list(found) == [
        *("fedavg", "fedavg, int8"),
        *("fedcs, budget=0.4", "fedcs, budget=0.8", "fedcs, int8, budget=0.4", "fedcs, int8, budget=0.8"),
    ]
    assert found["fedcs, int8, budget=0.8"].method.settings == {"budget": 0.8}
    assert found["fedcs, int8, budget=0.8"].codec.values == "int8"


def test_everybodys_settings_are_combined():
    tries = {"rate": [0.1, 0.3], "codec.values": ["float32", "bfloat16", "int8"]}
    tries |= {"codec.feedback": [False, True], "codec.scale": ["block", "tensor"]}
    found = candidates(BASE, ["fedavg"], ["float32"], tries)
    assert len(found) == 2 * (1 + 2 + 4), "float32 has no feedback, and only int8 a scale"
    assert {one.training.rate for one in found.values()} == {0.1, 0.3}
    assert found["fedavg, int8, rate=0.3, feedback, scale=tensor"].codec.feedback
    assert not found["fedavg, bfloat16, rate=0.1, no feedback"].codec.feedback


def test_who_chooses_its_own_cohort_is_not_told_how_many():
    found = candidates(BASE, ["fedavg", "fedcs"], ["float32"], {})
    assert (found["fedavg"].per_round, found["fedcs"].per_round) == (4, None)
    varied = candidates(BASE, ["fedavg", "fedcs"], ["float32"], {"per_round": [2, 5]})
    assert list(varied) == ["fedavg, per_round=2", "fedavg, per_round=5", "fedcs"]


def test_all_our_candidates_exist():
    assert len(candidates(BASE, CANDIDATES, ["float32"], {})) == len(CANDIDATES)


@pytest.mark.parametrize(("key", "words"), [("method.budgt", "budgt"), ("budgt", "budgt"), ("training.rat", "'rate'")])
def test_settings_that_nobody_takes_are_refused(key, words):
    with pytest.raises(BadExperiment, match=words):
        candidates(BASE, ["fedavg", "fedcs"], ["float32"], {key: [1]})


def test_a_plan_over_a_setting():
    found = plan(BASE, 0.05, ["fedcs"], codecs=["float32"], tries={"budget": [0.2, 0.6]})
    costs = {one.name: one.bytes / one.rounds for one in found.options}
    assert costs["fedcs, budget=0.2"] < costs["fedcs, budget=0.6"]


def test_choices_as_typed():
    typed = ["method.budget=0.4,0.6", "codec.values=int8,bfloat16", "shares=[0.5],[0.2,1]", "fresh=true,false", "a.b=x"]
    typed += ["augment=[],[flip],[crop(pad=2),flip]", "c=[x,y"]
    found = choices_of(typed)
    assert found["method.budget"] == [0.4, 0.6]
    assert found["codec.values"] == ["int8", "bfloat16"]
    assert found["shares"] == [[0.5], [0.2, 1]]
    assert found["fresh"] == [True, False]
    assert found["a.b"] == ["x"]
    assert found["augment"] == [[], ["flip"], [{"name": "crop", "settings": {"pad": 2}}, "flip"]]
    assert found["c"] == ["[x", "y"]
    for bad in ("budget", "=1", "budget="):
        with pytest.raises(BadExperiment, match="--try got"):
            choices_of([bad])


# ---- the chart


def test_numbers_for_people():
    assert [size(count) for count in (12, 1234, 5e6, 7.25e9, 2e13)] == ["12 B", "1.2 kB", "5.0 MB", "7.2 GB", "20.0 TB"]
    assert [duration(seconds) for seconds in (5, 119, 120, 7200, 2e5)] == [
        "5.0 s",
        "119.0 s",
        "2.0 min",
        "2.0 h",
        "2.3 d",
    ]


def test_the_trade_off_has_letters():
    assert letters(FOUND) == {"a1": "a", "b1": "b", "d1": "c"}
    assert [row["front"] for row in plan_rows(FOUND)] == [True, True, False, True]
    assert plan_table(FOUND).row_count == 4


def test_points_lie_where_they_belong():
    head, *lines, _, ends = text_chart(FOUND).splitlines()
    places = {mark: (line.index(mark), row) for row, line in enumerate(lines) for mark in "abc·" if mark in line[8:]}
    left, middle, dot, right = (places[mark] for mark in "ab·c")
    assert left[0] < middle[0] < dot[0] < right[0], "time"
    assert left[1] < dot[1] < middle[1] < right[1], "bytes, the most on top"
    assert (middle[0] - left[0]) == pytest.approx((right[0] - left[0]) / 2, abs=1), "in the logarithm"
    assert head.strip() == "bytes"
    assert lines[0].startswith("9.0 MB")
    assert lines[-1].startswith("1.0 MB")
    assert ends.split() == ["10.0", "s", "virtual", "time", "16.7", "min"]


def test_charts_of_few_and_of_equal_points():
    assert text_chart(Plan(0.5, (), ())) == ""
    assert text_chart(Plan(0.5, (option("one", 5, 5),), ())).count("a") == 1 + "virtual time".count("a")
    crowd = Plan(0.5, tuple(option(f"n{i}", 5, 5) for i in range(5)), ())
    assert "abcde" in "".join(sorted(text_chart(crowd).splitlines()[-3]))


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_pictures(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    draw_chart(FOUND, tmp_path / f"chart.{suffix}")
    data = (tmp_path / f"chart.{suffix}").read_bytes()
    assert data[:5] in (b"<?xml", b"\x89PNG\r", b"%PDF-")
    draw_chart(Plan(0.5, (), ()), tmp_path / f"empty.{suffix}")


def test_a_picture_that_cannot_be_drawn_is_refused_first(tmp_path, monkeypatch):
    with pytest.raises(BadExperiment, match=r"chart\.gif'; expected a file that ends in \.svg"):
        check_chart(Path("chart.gif"))
    with pytest.raises(BadExperiment, match="there is no folder"):
        check_chart(tmp_path / "nowhere" / "chart.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadExperiment, match=r"pip install 'fedloom\[plots\]'"):
        check_chart(tmp_path / "chart.svg")


# ---- the command

FEW = ("--clients", "10", "--rounds", "2", "--set", "per_round=3")


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedloom", *words])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


def test_the_command_varies_and_draws(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("plan", "--fleet", "iot", "--target", "0.01", "--methods", "fedavg,fedcs", *FEW)
    words += ("--try", "method.budget=0.3,0.6", "--try", "codec.values=int8")
    assert command(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "virtual time" in shown
    assert "budget=0.3" in shown
    assert command(monkeypatch, *words, "--chart", "chart.txt") == 2
    pytest.importorskip("matplotlib")
    assert command(monkeypatch, *words, "--json", "--chart", "chart.svg") == 0
    found = json.loads(capsys.readouterr().out)
    names = {option["name"] for option in found["options"]} | set(found["missed"])
    assert names == {"fedavg, int8", "fedcs, int8, budget=0.3", "fedcs, int8, budget=0.6"}
    assert (tmp_path / "chart.svg").exists()


def test_exact_bytes_may_be_asked_of_every_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "run", "fedavg", *FEW, "--exact-bytes", "--out", "exact", "--json") == 0
    about = json.loads((tmp_path / "exact" / "experiment.json").read_text())
    assert about["experiment"]["exact_bytes"] is True
    asked: list[bool] = []

    def note(experiments, *_):
        asked.extend(one.exact_bytes for one in experiments.values())
        raise BadExperiment("enough")

    monkeypatch.setattr("fedloom.studies.compare.compare", note)
    monkeypatch.setattr("fedloom.studies.plan.compare", note)
    for flag in ((), ("--exact-bytes",)):
        assert command(monkeypatch, "compare", "fedavg", *FEW, *flag) == 2
        assert (
            command(monkeypatch, "plan", "--fleet", "iot", "--target", "0.5", "--methods", "fedavg", *FEW, *flag) == 2
        )
    assert asked == [False] * 3 + [True] * 3
    capsys.readouterr()
