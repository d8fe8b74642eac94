"""`fedloom bench`: a small workload through the real functions, files, comparison, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.cli import bench as command
from fedloom.cli.main import main
from fedloom.core.clock import PASSES
from fedloom.errors import BadData, BadExperiment
from fedloom.runs.build import prepare
from fedloom.studies.bench import limits, results, workloads
from fedloom.studies.bench.flops import count
from fedloom.studies.bench.limits import PeakMemory, machine
from fedloom.studies.bench.measure import Measured, Play, measure
from fedloom.studies.bench.results import Results, of_baseline, ratios, read, table
from fedloom.studies.bench.workloads import WORKLOADS, Workload, chosen

TINY = Workload("small", shape=(1, 6, 6), clients=4, per_round=3, samples=20, batch=10, test=30)
LIMITS = {"float32": 1e9, "copy": 1e9}
EARLIER = Path(__file__).with_name("first_format.json")  # written by the tree of commit bc1ef2d


def tiny(**changes) -> Measured:
    """A workload of a few milliseconds."""
    return measure("W1", replace(TINY, **changes), cycles=2, seconds=0.2, device="cpu")


def ended(arguments: list[str], monkeypatch) -> int:
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["fedloom", "bench", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.fixture
def small(monkeypatch):
    """Only small workloads, and a device that is known at once."""
    table = {"W1": TINY, "W2": replace(TINY, per_round=4, baseline="W1"), "broken": replace(TINY, model="cnn1")}
    for place in (workloads, results):
        monkeypatch.setattr(place, "WORKLOADS", table)
    monkeypatch.setattr(workloads, "QUICK", ("W1",))
    monkeypatch.setattr(limits, "limits", lambda place: LIMITS)
    return table


def test_a_small_workload_is_measured():
    row = tiny()
    assert row.clients == 3
    assert row.steps == 3 * 2  # 20 samples in batches of 10
    assert 0 < row.fastest_ms <= row.round_ms <= row.slowest_ms
    assert row.training_ms > 0
    assert row.first_ms > 0
    assert row.steps_per_second == pytest.approx(1000 * row.steps / row.round_ms)
    assert row.cycles <= 2
    assert 0 <= row.accuracy <= 1


def test_a_cycle_is_played_whatever_the_time():
    assert measure("W1", TINY, cycles=5, seconds=1e-6, device="cpu").cycles == 1


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    measure("W1", TINY, cycles=1, seconds=0.05, device="cpu", own_threads=False)
    assert torch.get_num_threads() == before


def test_rounds_are_the_products(monkeypatch):
    """Two rounds here are two rounds of `run`."""
    from fedloom.runs.play import run

    experiment, data = TINY.experiment("local", "cpu", 0), TINY.data(0)
    play = Play(prepare(experiment, data=data), 0)
    play.round()
    play.round()
    result = run(experiment.model_copy(update={"rounds": 2}), data=data)
    assert float(play.score.metrics["accuracy"]) == result.accuracy
    assert float(play.score.loss) == result.rounds[-1]["loss"]


def test_operations_are_three_forward_passes():
    prepared = prepare(TINY.experiment("local", "cpu", 0), data=TINY.data(0))
    play = Play(prepared, 0)
    play.round()
    asked = count(prepared, *play.last)
    forward = 2 * (36 * 200 + 200 * 200 + 200 * 10)
    assert asked.flops == PASSES * forward * 3 * 20
    assert asked.steps == 6
    weights = 36 * 200 + 200 * 200 + 200 * 10 + 410
    assert asked.bytes > 6 * (6 * 4 * weights)


def test_what_is_cut_costs_less_than_what_is_masked():
    counted = {}
    for execution in ("sliced", "masked"):
        work = replace(TINY, values={"method": "fjord", "execution": execution}, per_round=4)
        prepared = prepare(work.experiment("local", "cpu", 0), data=work.data(0))
        play = Play(prepared, 0)
        play.round()
        counted[execution] = count(prepared, *play.last)
    assert counted["sliced"].flops < counted["masked"].flops
    assert counted["sliced"].bytes < counted["masked"].bytes


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_a_valid_experiment(name):
    for engine in command.ENGINES:
        experiment = WORKLOADS[name].experiment(engine, "cpu", 0)
        assert experiment.clients == WORKLOADS[name].clients
    baseline = WORKLOADS[name].baseline
    assert baseline is None or baseline in WORKLOADS


@pytest.mark.parametrize(
    "name", ["feddd", "safari", "safari-sgd", "ram-fed", "fedspu", "masked", "tiers-2nn", "heterofl"]
)
def test_methods_do_the_work_of_their_baseline(name):
    """As many clients and steps as FedAvg's, at a small size."""
    work = replace(WORKLOADS[name], shape=(1, 6, 6), clients=5, samples=20, batch=10, test=10)
    work = replace(work, per_round=None if work.per_round is None else 5)
    row = measure(name, work, cycles=1, seconds=0.01, device="cpu")
    assert (row.clients, row.steps) == (5, 10)


def test_data_come_from_the_seed_alone():
    one, again, other = TINY.data(1), TINY.data(1), TINY.data(2)
    assert np.array_equal(one.x_train, again.x_train)
    assert not np.array_equal(one.x_train, other.x_train)
    assert one.x_train.shape == (80, 1, 6, 6)
    assert len(one.y_test) == 30


def test_a_baseline_goes_first_and_once():
    assert chosen(["fleet-10000-1000", "W2"], "cpu") == ["W2", "fleet-1000", "fleet-10000-1000"]
    assert chosen([], "cpu") == ["W1", "W2", "W3"]
    assert set(chosen([], "cuda")) == set(chosen(["all"], "cpu")) == set(WORKLOADS)


def test_an_unknown_workload_is_refused():
    with pytest.raises(BadExperiment, match=r"unknown workload 'W4'; did you mean"):
        chosen(["W4"], "cpu")


def test_json_there_and_back(tmp_path):
    found = Results(machine(torch.device("cpu")), LIMITS, [tiny()], {"W2 local": "an error"})
    found.write(tmp_path / "now.json")
    assert read(tmp_path / "now.json") == found


def test_figures_of_an_earlier_tree_are_read_and_ours_fit_it(tmp_path):
    """Both trees need the fields of the other's file, so that either reads what the other wrote."""
    written = json.loads(EARLIER.read_text())
    assert asdict(read(EARLIER)) == written
    Results(machine(torch.device("cpu")), LIMITS, [tiny()]).write(tmp_path / "now.json")
    ours = json.loads((tmp_path / "now.json").read_text())
    assert ours.keys() == written.keys()
    assert ours["machine"].keys() == written["machine"].keys()
    assert ours["rows"][0].keys() == written["rows"][0].keys()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"workload": 1}]}', "{"])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(BadData, match=r"--against got .*other.json; expected a file that"):
        read(tmp_path / "other.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadData, match="cannot be read"):
        read(tmp_path / "none.json")


def test_ratios_are_to_the_same_workload_and_engine():
    row = tiny()
    twice = replace(row, round_ms=2 * row.round_ms)
    loop = replace(row, engine="loop", round_ms=8 * row.round_ms)
    now, before = Results({}, LIMITS, [twice, loop]), Results({}, LIMITS, [row])
    assert ratios(now, before) == {("W1", "local"): 2}
    assert of_baseline(now, loop) == (4, "local")
    assert of_baseline(now, twice) is None
    method = replace(row, workload="feddd")
    assert of_baseline(Results({}, LIMITS, [replace(row, workload="W2"), method]), method) == (1, "W2")


def test_the_table_has_a_row_for_each():
    row = tiny()
    found = Results(machine(torch.device("cpu")), LIMITS, [row, replace(row, engine="loop", peak_bytes=None)])
    assert table(found, found).row_count == 2
    assert len(table(found, found).columns) == len(table(found, None).columns) + 1


def test_limits_are_numbers():
    found = limits.limits(torch.device("cpu"), side=8, copied=4096)
    assert set(found) == {"float32", "copy"}
    assert min(found.values()) > 0


def test_memory_is_watched():
    memory = PeakMemory(torch.device("cpu"))
    held = torch.ones(2**24)
    peak = memory.bytes()
    assert peak is None or peak >= held.numel() * 4 * 0.9


def test_the_command_compares(small, tmp_path, monkeypatch, capsys):
    now = str(tmp_path / "now.json")
    assert ended(["W2", "--quick", "--seconds", "0.1", "--json", now], monkeypatch) == 0
    rows = json.loads((tmp_path / "now.json").read_text())["rows"]
    assert [row["workload"] for row in rows] == ["W1", "W2"]
    again = ["W2", "--seconds", "0.1", "--against", now]
    assert ended([*again, "--fail-above", "1e9"], monkeypatch) == 0
    assert ended([*again, "--fail-above", "1e-9"], monkeypatch) == 1
    assert "slower than" in capsys.readouterr().err
    earlier = ["W1", "--seconds", "0.1", "--engine", "local,loop", "--against", str(EARLIER), "--fail-above", "1e9"]
    assert ended(earlier, monkeypatch) == 0
    assert "before" in capsys.readouterr().out


def test_one_failure_leaves_the_others(small, tmp_path, monkeypatch, capsys):
    now = tmp_path / "now.json"
    assert ended(["broken", "W1", "--seconds", "0.1", "--engine", "local,loop", "--json", str(now)], monkeypatch) == 1
    found = json.loads(now.read_text())
    assert [(row["workload"], row["engine"]) for row in found["rows"]] == [("W1", "local"), ("W1", "loop")]
    assert set(found["failed"]) == {"broken local", "broken loop"}
    assert "images of at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["W9"], "unknown workload"), (["--engine", "ray"], "unknown engine"), (["--fail-above", "2"], "add --against")],
)
def test_mistakes_end_with_2(arguments, message, monkeypatch, capsys):
    assert ended(arguments, monkeypatch) == 2
    assert message in capsys.readouterr().err


def test_the_list_is_shown(monkeypatch, capsys):
    assert ended(["--list"], monkeypatch) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in WORKLOADS)
