"""What notebooks and terminals show of values: short texts, tables, sparklines, frames and figures."""

from __future__ import annotations

from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import fedloom
from fedloom import Experiment, Method, Result, neuron_map, run
from fedloom.errors import BadExperiment
from fedloom.models import build
from fedloom.shown import sparkline, table


class Read(HTMLParser):
    """The words of a page's cells; every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """A tag that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def result() -> Result:
    given: dict[str, Any] = {"method": {"name": "fedprox", "settings": {"mu": 0.5}}, "clients": 6, "per_round": 3}
    return run(Experiment(**given, rounds=4, evaluate_every=2, training={"epochs": 1}))


def test_texts_are_short(result: Result) -> None:
    assert repr(result.experiment).startswith("Experiment(method='fedprox', method.mu=0.5, data='digits'")
    assert "world" not in repr(result.experiment)
    assert repr(Method()) == "Method()"
    made = result.experiment.build_method()
    assert len(repr(made)) < len(made.in_full)
    assert (
        repr(result)
        == f"Result(fedprox on digits, 4 rounds, accuracy {result.score:.4f} (best {result.best_score:.4f}))"
    )
    neurons = neuron_map(build("cnn1", (1, 28, 28), 10, 0), torch.zeros(2, 1, 28, 28))
    assert repr(neurons) == "NeuronMap(80 neurons: conv1 10, conv2 20, dense1 50; 21,840 numbers)"
    assert {"conv1", "10 channels", "50 units"} <= set(Read(neurons._repr_html_()).words)


def test_tables_are_html(result: Result) -> None:
    words = Read(result._repr_html_()).words
    assert {"fedprox on digits", "rounds", "4", "score", f"{result.score:.5g}"} <= set(words)
    assert {"method", "fedprox", "method.mu", "0.5"} <= set(Read(result.experiment._repr_html_()).words)
    assert "Uniform(count=3)" in Read(result.experiment.build_method()._repr_html_()).words
    assert Read(table("a<b", [("<x>", "&")])).words == ["a<b", "<x>", "&"]


def test_a_sparkline_goes_where_the_values_go() -> None:
    text = sparkline([None, 0.0, 1.0, float("nan"), 0.5], "score")
    points = text.partition('points="')[2].partition('"')[0].split()
    assert [tuple(map(float, point.split(","))) for point in points] == [(2.0, 30.0), (54.0, 2.0), (158.0, 16.0)]
    assert sparkline([0.1], "score") == ""


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed here")
def test_a_frame_has_the_rounds(result: Result) -> None:
    frame = result.frame()
    assert list(frame.index) == [1, 2, 3, 4]
    assert frame["score"].dropna().tolist() == [row["score"] for row in result.rounds if row["score"] is not None]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed here")
def test_a_plot_has_the_columns(result: Result) -> None:
    (line,) = result.plot().axes[0].lines
    assert line.get_xydata().tolist() == [[row["round"], row["score"]] for row in result.rounds if row["score"]]
    lines = result.plot("loss", "training_loss", against="bytes_up").axes[0].lines
    assert [len(one.get_xydata()) for one in lines] == [2, 4]
    with pytest.raises(BadExperiment, match="unknown column 'scor'; did you mean 'score'"):
        result.plot("scor")


def test_what_is_missing_is_named(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.runs.result.find_spec", lambda name: None)
    for draw in (result.frame, result.plot):
        with pytest.raises(BadExperiment, match=r"fedloom\[notebook\]"):
            draw()


def test_a_bar_is_a_callback(capsys: pytest.CaptureFixture[str]) -> None:
    run(Experiment(clients=4, rounds=2), callbacks=[fedloom.ProgressBar()])
    assert "2/2" in capsys.readouterr().out
