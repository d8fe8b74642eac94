"""Scores of which lower is better, folders of older runs, and names of clients and classes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedloom import Experiment, run
from fedloom.cli.main import app
from fedloom.cli.watch_view import follow
from fedloom.errors import BadData, BadExperiment
from fedloom.evaluate.judge import ACCURACY, MetricFacts, check_target, plain_below, plain_target
from fedloom.evaluate.wording import decimals, number, shortened
from fedloom.report.about import OLD, class_names, names_in, scores_in
from fedloom.report.curves import curves_of
from fedloom.report.figures import STYLE, write_figures
from fedloom.report.fleet import LOST, SHARE, fairness_of, shares_of
from fedloom.report.group import Group, read_groups
from fedloom.report.latex import latex_table
from fedloom.report.models import classes_of, similarity_of
from fedloom.report.page import page_of, setup_of, write_report
from fedloom.report.plotly_charts import plotly_chart
from fedloom.report.recorded import read_run
from fedloom.report.sections import sections_of
from fedloom.report.tables import best_score_of, check_targets, final_of, own_target, summary, target_table
from report.written import RMSE, as_old, regression

PEOPLE = ["Ada", "Grace", "<b>Emmy</b>", "a client with a very long name"]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two methods, one under two seeds; the second is better."""
    return [
        regression(tmp_path / "avg-0", [90.0, 30.0, 8.0, 12.0], own=(4.0, 16.0, 8.0, 12.0), client_names=PEOPLE),
        regression(tmp_path / "avg-1", [80.0, 40.0, 9.0, 10.0], seed=1),
        regression(tmp_path / "prox", [70.0, 20.0, 6.0, 4.0], "fedprox"),
    ]


@pytest.fixture
def groups(runs: list[Path]) -> list[Group]:
    return read_groups(runs)[0]


# ---- the right direction


def test_the_best_is_the_lowest(groups: list[Group]) -> None:
    assert [one.mean for one in map(final_of, groups) if one] == [11.0, 4.0]
    assert [one.mean for one in map(best_score_of, groups) if one] == [8.5, 4.0]
    cells = summary(groups)
    assert cells.head[:4] == ["", "RMSE", "best", "clients' own"]
    assert cells.rows[1][:4] == ["fedprox", "4.000", "4.000", "–"]
    assert cells.rows[0][1].startswith("11.00 ± ")


def test_a_target_is_reached_from_above(groups: list[Group]) -> None:
    assert own_target(groups) == (10.0,), "the lowest plain number that all of 8, 9 and 4 are as good as"
    table = target_table(groups, 8.0)
    assert [row[:3] for row in table.rows] == [["fedavg", "1 of 2", "3"], ["fedprox", "1 of 1", "3"]]
    assert target_table(groups, 1.0).rows[0][1:3] == ["0 of 2", "never"]
    assert check_targets(groups, [5, 10, 5]) == (10, 5), "the easiest first"
    with pytest.raises(BadExperiment, match="target is -1; the RMSE to reach is a number of at least 0"):
        check_targets(groups, [-1])


def test_the_table_for_papers_has_plain_numbers(groups: list[Group]) -> None:
    text = latex_table(groups, (8.0,))
    assert "method & RMSE (lower is better) & rounds" in text
    assert "{to RMSE 8}" in text
    assert "fedprox & $\\mathbf{4.000}$ & $3.0$" in text, "the lowest is in bold"
    assert "fedavg & $11.000 \\pm " in text
    assert "\\%" not in text


def test_charts_say_what_they_show(groups: list[Group]) -> None:
    curves, _ = curves_of(groups, (8.0,))
    names = ["RMSE", "MAE", "R²", "clients' own RMSE", "test loss", "training loss"]
    assert list(curves.measures.values()) == names, "the score first"
    assert curves.shares == ()
    assert curves.lines[0].y["rmse"].mean == [85.0, 35.0, 8.5, 11.0]
    chart = plotly_chart(curves)
    assert chart["layout"]["yaxis"]["tickformat"]["of"] == dict.fromkeys(curves.measures, "")
    assert [shape["y0"] for shape in chart["layout"]["shapes"]["of"]["rmse"]] == [8.0]
    assert chart["layout"]["shapes"]["of"]["mae"] == []
    assert chart["layout"]["annotations"]["of"]["rmse"][0]["text"] == "target 8"


def test_the_page_says_lower_is_better(groups: list[Group], runs: list[Path], tmp_path: Path) -> None:
    sections = {one.key: one for one in sections_of(groups, own_target(groups), chosen=True)}
    assert sections["score"].title == "RMSE over time"
    for key in ("score", "result"):
        assert " RMSE: lower is better." in sections[key].lead
    assert "at or below the target" in sections["targets"].lead
    assert "the lowest plain RMSE, such as 5, that every run reached" in sections["targets"].lead
    assert sections["targets"].tables[0][0] == "RMSE 10"
    assert "A line that stays low to the left is fair." in sections["fairness"].lead
    assert "accuracy" not in page_of(groups, [], list(sections.values())).partition("<script")[0]
    write_report(runs, tmp_path / "r.html", [8])
    assert "RMSE 8" in (tmp_path / "r.html").read_text()


def test_the_weakest_client_has_the_highest(groups: list[Group]) -> None:
    ranks, cells, notes = fairness_of(groups)
    assert ranks is not None
    assert cells is not None
    assert ranks.groups[0][1] == [16.0, 12.0, 8.0, 4.0]
    assert (ranks.unit, ranks.share) == ("RMSE on own test examples", False)
    assert cells.head[3] == "highest tenth"
    assert cells.rows[0][1:4] == ["10.00", "10.00", "16.00"]
    assert "range" not in plotly_chart(ranks)["layout"]["yaxis"]
    assert notes == ["fedavg: weakest: Grace 16.00, a client with a v… 12.00, <b>Emmy</b> 8.000."]


def test_clients_without_examples_have_no_score(tmp_path: Path) -> None:
    names = ["Ada", "", "Grace", ""]
    folder = regression(tmp_path / "run", [9.0], own=(4.0, 5.0), client_names=names)
    assert fairness_of(read_groups([folder])[0])[2] == ["fedavg: weakest: Grace 5.000, Ada 4.000."]


def test_figures_are_drawn(groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STYLE, "savefig.dpi", 40)  # quicker
    written = write_figures(sections_of(groups, (8.0,), chosen=False), tmp_path / "figures", "png")
    names = {file.stem for file in written}
    assert {"score-rounds", "score-time", "fairness", "shares-1-fedavg-share", "similarity-1-fedavg"} <= names


def test_a_run_that_ended_without_a_score_has_none(tmp_path: Path) -> None:
    folder = regression(tmp_path / "run", [5.0, None])
    groups, notes = read_groups([folder])
    assert notes == ["run: the score of its last evaluation is not a finite number."]
    assert final_of(groups[0]) is None
    assert summary(groups).rows[0][1] == "5.000", "the best; the column of last scores is empty and left out"


def test_watching_a_low_score(runs: list[Path]) -> None:
    shown = {}
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=110)
        assert follow(runs[0], console, 0.01)
        shown[terminal] = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown[False].startswith("round 1/4  RMSE 90.00  loss 8100.0000")
    assert "RMSE 12.00  best 8.000 (lower is better)" in shown[True]
    assert "█▃▁▁" in shown[True], "a curve between its own ends, falling"


def test_different_scores_are_two_reports(runs: list[Path], plain, tmp_path: Path) -> None:
    other = plain("digits")
    with pytest.raises(BadExperiment, match=r"avg-0 and digits .* RMSE \(low is better\) and accuracy \(high is"):
        read_groups([*runs, other])
    ended = CliRunner().invoke(app, ["report", str(runs[0]), str(other), "-o", str(tmp_path / "r.html")])
    assert isinstance(ended.exception, BadExperiment)
    assert not (tmp_path / "r.html").exists()


# ---- older runs


def test_folders_of_older_runs_are_read(plain) -> None:
    old, new = plain("old"), plain("new")
    as_old(old)
    ours, theirs = read_run(old), read_run(new)
    assert ours.scores == OLD
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        assert {**row, "personal_score": None} == {**other, "personal_score": None}
        assert row["score"] == row["accuracy"]
    assert own_target(read_groups([old])[0]) == own_target(read_groups([new])[0])
    console = Console(file=io.StringIO(), width=110)
    assert follow(old, console, 0.01)
    assert f"accuracy {ours.rows[0]['accuracy']:.4f}" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "told", [7, {}, {**RMSE, "best": "most"}, {**RMSE, "limits": "wide"}, {**RMSE, "metrics": [3]}]
)
def test_a_damaged_score_is_refused(runs: list[Path], told: object) -> None:
    about = json.loads((runs[0] / "experiment.json").read_text())
    (runs[0] / "experiment.json").write_text(json.dumps({**about, "score": told}))
    with pytest.raises(BadData, match=r"experiment\.json"):
        read_run(runs[0])


# ---- names


def test_clients_have_their_names(groups: list[Group]) -> None:
    maps, _ = shares_of(groups)
    assert maps is not None
    short = ["Ada", "Grace", "<b>Emmy</b>", "a client with a v…"]
    assert maps.by["fedavg"][SHARE].y == maps.by["fedavg"][LOST].y == short
    assert maps.by["fedprox"][SHARE].y == [0.0, 1.0, 2.0, 3.0], "a run that does not say them"
    y = plotly_chart(maps)["traces"][0]["y"]["of"]["0"]["of"][SHARE]
    assert y[2] == "&lt;b&gt;Emmy&lt;/b&gt;"
    assert plotly_chart(maps)["layout"]["yaxis"]["type"] == "category"
    alike, _ = similarity_of(groups)
    assert alike is not None
    assert sorted(map(str, alike.by["fedavg"]["distance"].x)) == sorted(short)


def test_classes_have_their_names(plain) -> None:
    folder = plain("run")
    about = json.loads((folder / "experiment.json").read_text())
    named = {**about, "class_names": [f"digit {place}" for place in range(10)]}
    (folder / "experiment.json").write_text(json.dumps(named))
    bars, _ = classes_of(read_groups([folder])[0])
    assert bars is not None
    assert bars.categories == [f"digit {place}" for place in range(10)]
    assert class_names(folder)[3] == "digit 3"


def test_clients_are_those_that_the_data_have(tmp_path: Path) -> None:
    experiment = Experiment(data="shakespeare", goal="next-token", rounds=1, per_round=2, training={"steps": 1})
    run(experiment, out=tmp_path / "run")
    assert experiment.clients == 100
    groups = read_groups([tmp_path / "run"])[0]
    maps, _ = shares_of(groups)
    assert maps is not None
    assert len(maps.by["fedavg"][SHARE].y) == 20
    assert "20 clients" in setup_of(groups)


def test_names_stay_different() -> None:
    assert shortened(["hospital of the north", "hospital of the west", "a"], 8) == ["hospita… (0)", "hospita… (1)", "a"]
    assert names_in({"client_names": None}, "client_names") == []


# ---- metrics in themselves


@pytest.mark.parametrize(
    ("value", "plain_one"),
    [(8.5, 5), (10, 10), (9.99, 5), (0.3, 0.2), (0.02, 0.02), (0, 0), (-3, -5), (-0.1, -0.1), (1e6, 1e6), (0.15, 0.1)],
)
def test_plain_numbers(value: float, plain_one: float) -> None:
    assert plain_below(value) == plain_one


def test_plain_targets() -> None:
    assert plain_target(ACCURACY, 0.873) == 0.85
    assert plain_target(ACCURACY, 0.05) is None
    perplexity = MetricFacts("perplexity", "low", (1.0, float("inf")))
    assert [plain_target(perplexity, value) for value in (1.0, 1.3, 47.0, 312.0)] == [1.0, 2.0, 50.0, 500.0]
    assert plain_target(MetricFacts("error", "low", (0.0, 1.0)), 0.13) == 0.2


@pytest.mark.parametrize(
    ("metric", "good", "bad"),
    [
        (ACCURACY, (0.1, 1.0), (0.0, 1.1, float("nan"))),
        (MetricFacts("error", "low", (0.0, 1.0)), (0.0, 0.2), (1.0, -0.1)),
        (MetricFacts("perplexity", "low", (1.0, float("inf"))), (1.0, 300), (0.9, float("inf"), float("nan"))),
        (MetricFacts("r2", "high", (float("-inf"), 1.0)), (-3, 1.0), (1.1,)),
    ],
)
def test_targets_lie_within_limits(metric: MetricFacts, good: tuple[float, ...], bad: tuple[float, ...]) -> None:
    for target in good:
        check_target(metric, target)
    for target in bad:
        with pytest.raises(BadExperiment, match=r"target is .*; the .* to reach"):
            check_target(metric, target)


def test_numbers_have_four_digits() -> None:
    rmse = MetricFacts("rmse", "low", (0.0, float("inf")))
    values = (123456.7, 312.44, 12.0, 0.05321, 0.0, None, float("inf"))
    assert [number(rmse, value) for value in values] == ["123,457", "312.4", "12.00", "0.05321", "0.000", "–", "–"]
    assert number(rmse, 2.4129e22) == "2.413e+22"  # of a run that diverges
    assert number(ACCURACY, 0.65461) == "0.6546"
    assert decimals(ACCURACY, 0.65461, 3) == 3


def test_metrics_are_read() -> None:
    found = scores_in({"score": RMSE})
    assert [one.name for one in found.every] == ["rmse", "mae", "r2"]
    assert found.score.limits == (0.0, float("inf"))
    assert found.personal == found.score
    auroc = {"name": "auroc", "best": "high", "limits": [0.0, 1.0], "personal": "loss", "metrics": []}
    assert scores_in({"score": auroc}).personal.best == "low"
