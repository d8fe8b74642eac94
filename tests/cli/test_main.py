"""The command: JSON for machines, plain lines for logs, one line and an exit code for every mistake."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from safetensors.torch import load_file

from fedloom.cli.main import main
from fedloom.cli.show import progress, size
from fedloom.data.load import DATASETS
from fedloom.data.partition import PARTITIONS
from fedloom.goals.numbers import RMSE
from fedloom.methods import METHODS
from fedloom.models import MODELS
from fedloom.runs.experiment import Experiment

SMALL = ["--clients", "4", "--rounds", "2", "--set", "per_round=2", "--set", "epochs=1", "--set", "batch=32"]
SUMMARY = [
    *("run", "method", "rounds", "score_name", "lower_is_better", "score", "best_score", "personal_score"),
    *("accuracy", "best_accuracy", "top5", "personal_accuracy", "loss"),
    *("examples_trained", "bytes_up", "bytes_down", "virtual_seconds", "joules", "rejected", "wall_seconds"),
]
FILES = {
    "experiment.json",
    "rounds.parquet",
    "clients.parquet",
    "model.safetensors",
    "log.txt",
    "log.jsonl",
    "checkpoint",
}
# an own process may have been started with Ctrl-C switched off; a terminal never does that
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedloom.cli.main import main; main()"
)


class Ended(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its output as strict JSON."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    """An empty place: no data of the machine, no downloader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(sys.modules, "datasets", None)


@pytest.fixture
def fedloom(monkeypatch, capsys):
    """The command, in this process."""

    def call(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fedloom", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Ended(end.value.code or 0, out, err)

    return call


def started(*words: str) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    words = (sys.executable, "-c", COMMAND, *words)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> Ended:
    """A process when it is over."""
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


# ---- processes of their own


def test_json_is_all_there_is_on_stdout(tmp_path):
    end = ended(started("run", "scaffold", *SMALL, "--json", "--out", "a"))
    assert end.code == 0, end.err
    assert end.out.count("\n") == 1
    summary = end.json()
    assert list(summary) == SUMMARY
    assert (summary["run"], summary["method"], summary["rounds"]) == ("a", "scaffold", 2)
    assert {file.name for file in (tmp_path / "a").iterdir()} == FILES
    rows = pq.read_table(tmp_path / "a" / "rounds.parquet").to_pylist()
    assert summary["accuracy"] == rows[-1]["accuracy"]
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in rows)


def test_ctrl_c_keeps_what_was_done(tmp_path):
    process = started("run", "fedavg", *SMALL, "--rounds", "100000", "--out", "a")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("memory: examples ")
    assert process.stdout.readline().startswith("round 1/100000 accuracy 0.")
    process.send_signal(signal.SIGINT)
    end = ended(process)
    assert end.code == 130, end.err
    assert "Traceback" not in end.err
    assert {file.name for file in (tmp_path / "a").iterdir()} == FILES
    rows = pq.read_table(tmp_path / "a" / "rounds.parquet").to_pylist()
    assert 1 <= len(rows) < 100000
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    assert load_file(tmp_path / "a" / "model.safetensors")


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path):
    known = ", ".join(sorted(METHODS))
    end = ended(started("run", "fedavgg"))
    assert end == (2, "", f"error: unknown method 'fedavgg'; did you mean 'fedavg'? Known: {known}\n")
    assert not list(tmp_path.iterdir())


# ---- run


def test_plain_lines_without_a_terminal(fedloom, tmp_path):
    end = fedloom("run", "fedavg", *SMALL, "--out", "a")
    assert end.code == 0
    lines = end.out.splitlines()
    assert lines[0].startswith("memory: examples 474.4 kB on cpu, 2 clients at once in about ")
    assert [line.split(" accuracy ")[0] for line in lines[1:3]] == ["round 1/2", "round 2/2"]
    assert "\x1b" not in end.out + end.err
    for word in ("fedavg on digits", "accuracy", "weakest class", "sent up, down", "run folder"):
        assert word in end.out
    assert end.err == ""


def test_what_should_be_known_before_comes_first(fedloom):
    end = fedloom("run", "fedvarp", *SMALL)
    assert end.out.startswith("The server remembers every client's latest update: ")
    assert " MB in memory." in " ".join(end.out.split())  # the line may be broken


def test_about_ten_lines_however_long_a_run(fedloom):
    end = fedloom("run", "fedavg", *SMALL, "--rounds", "40", "--set", "model.widths=[4]", "--set", "evaluate_every=9")
    shown = [int(line.split()[1].partition("/")[0]) for line in end.out.splitlines() if line.startswith("round ")]
    assert shown == [1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


def test_progress_on_stderr_under_json(fedloom):
    end = fedloom("run", "fedavg", *SMALL, "--json")
    assert list(end.json()) == SUMMARY
    assert end.err.startswith("memory: ")
    assert [line.split(" accuracy ")[0] for line in end.err.splitlines()[1:]] == ["round 1/2", "round 2/2"]


def test_runs_get_folders_of_their_own(fedloom, tmp_path):
    names = [fedloom("run", name, *SMALL, "--json").json()["run"] for name in ("fedavg", "fedavg", "fedprox")]
    assert names == ["runs/fedavg-digits-1", "runs/fedavg-digits-2", "runs/fedprox-digits-1"]
    for name in names:
        assert {file.name for file in (tmp_path / name).iterdir()} == FILES


def test_the_same_command_twice_gives_the_same_numbers(fedloom):
    first, second = (fedloom("run", "feddyn", *SMALL, "--json").json() for _ in range(2))
    assert first | {"run": None, "wall_seconds": None} == second | {"run": None, "wall_seconds": None}


def test_options_and_settings_make_the_experiment(fedloom, tmp_path):
    words = ["run", "feddyn", "--data", "synthetic", "--partition", "own", "--clients", "5", "--model", "linear"]
    words += ["--rounds", "1", "--seed", "3", "--engine", "loop", "--device", "cpu", "--out", "a", "--json"]
    pairs = ["rate=0.05", "epochs=2", "method.alpha=0.1", "per_round=2", "split=[0.7, 0, 0.3]", "data.beta=1"]
    for pair in [*pairs, "clip=none", "training.fresh=false", " batch = 20 "]:
        words += ["--set", pair]
    end = fedloom(*words)
    assert end.code == 0, end.err
    assert 0 <= end.json()["personal_accuracy"] <= 1
    written = json.loads((tmp_path / "a" / "experiment.json").read_text())["experiment"]
    assert Experiment(**written) == Experiment(
        method={"name": "feddyn", "settings": {"alpha": 0.1}},
        data={"name": "synthetic", "settings": {"beta": 1}},
        partition="own",
        model="linear",
        training={"rate": 0.05, "epochs": 2, "fresh": False, "batch": 20},
        clients=5,
        per_round=2,
        rounds=1,
        seed=3,
        split=(0.7, 0, 0.3),
        engine="loop",
        device="cpu",
    )


def test_rounds_that_were_set_are_the_rounds_that_are_shown(fedloom):
    end = fedloom("run", "fedavg", *SMALL, "--set", "rounds=3")
    assert [line.split()[1] for line in end.out.splitlines() if line.startswith("round ")] == ["1/3", "2/3", "3/3"]


def test_a_diverged_run_is_still_json(fedloom):
    summary = fedloom("run", "fedavg", *SMALL, "--set", "rate=1e30", "--set", "admit=everything", "--json").json()
    assert summary["accuracy"] == 0
    assert summary["loss"] is None


WRONG: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "method": (["run", "fedprx"], ("method", "'fedprx'", "did you mean 'fedprox'?")),
    "data": (["run", "fedavg", "--data", "digit"], ("data", "'digit'", "did you mean 'digits'?")),
    "data that are not here": (
        ["run", "fedavg", "--data", "mnist"],
        ("mnist.npz", "uint8 [n, 28, 28]", "FEDLOOM_DATA"),
    ),
    "model": (["run", "fedavg", "--model", "mpl"], ("model", "'mpl'", "did you mean 'mlp'?")),
    "images": (["run", "fedavg", "--data", "synthetic", "--model", "cnn1"], ("cnn1", "[channels, height, width]")),
    "partition": (["run", "fedavg", "--partition", "idd"], ("partition", "'idd'", "did you mean 'iid'?")),
    "engine": (["run", "fedavg", "--engine", "loupe"], ("engine", "'loupe'", "'loop'")),
    "device": (["run", "fedavg", "--device", "tpu"], ("device", "'tpu'", "cpu")),
    "clients": (["run", "fedavg", "--clients", "0"], ("clients", "0")),
    "seed": (["run", "fedavg", "--seed", "-1"], ("seed", "-1")),
    "set misspelt": (["run", "fedavg", "--set", "rte=1"], ("'rte'", "did you mean 'rate'?")),
    "set twofold": (["run", "feddyn", "--set", "alpha=1"], ("method.alpha or partition.alpha",)),
    "set without value": (["run", "fedavg", "--set", "rate"], ("--set", "'rate'", "KEY=VALUE")),
    "set without key": (["run", "fedavg", "--set", "=1"], ("--set", "'=1'", "KEY=VALUE")),
    "set to a word": (["run", "fedavg", "--set", "rate=fast"], ("training.rate", "'fast'")),
    "set in no section": (["run", "fedavg", "--set", "foo.bar=1"], ("section", "'foo'")),
    "set with brackets": (["run", "fedavg", "--set", "rate[/b]=1"], ("'rate[/b]'", "did you mean 'rate'?")),
    "own file": (["run", "mine.py:mine"], ("mine.py", "no file")),
    "shape": (["neurons", "mlp", "--shape", "8by8"], ("shape", "'8by8'", "1x28x28")),
    "network": (["neurons", "mpl", "--shape", "1x8x8"], ("model", "'mpl'", "did you mean 'mlp'?")),
    "network's setting": (["neurons", "mlp", "--set", "width=8"], ("mlp", "'width'", "did you mean 'widths'?")),
    "fact of the data": (["neurons", "mlp", "--set", "shape=8"], ("mlp", "'shape'")),
    # refused by the parser
    "rounds a word": (["run", "fedavg", "--rounds", "many"], ("--rounds", "valid int")),
    "option misspelt": (["run", "fedavg", "--round", "1"], ("--round",)),
    "no method": (["run"], ("Missing argument",)),
    "command": (["rum"], ("rum",)),
    "kind": (["list", "method"], ("method", "methods")),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_end_with_2_and_write_nothing(words, said, fedloom, tmp_path):
    end = fedloom(*words, *(["--json"] if words[0] == "run" else []))
    assert end.code == 2
    assert end.out == ""
    for word in said:
        assert word in end.err
    assert not list(tmp_path.iterdir())


def test_a_full_folder_is_refused(fedloom, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("mine")
    end = fedloom("run", "fedavg", *SMALL, "--out", "a")
    assert end.code == 2
    assert "out is 'a'" in end.err
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["mine.txt"]


STOPS = """
from dataclasses import dataclass
from fedloom import LocalRule, Method

@dataclass(frozen=True)
class Stops(LocalRule):
    "Goes wrong in the second round."
    interrupted: bool = False

    def finish(self, task, state, first, last, steps):
        if task.round == 2:
            raise KeyboardInterrupt if self.interrupted else OSError("the disk is full")
        return last, {}, state

def fails() -> Method:
    return Method(local=Stops())

def interrupted() -> Method:
    return Method(local=Stops(True))
"""


def test_a_run_that_stops_ends_with_3(fedloom, tmp_path):
    (tmp_path / "mine.py").write_text(STOPS)
    end = fedloom("run", "mine.py:fails", *SMALL, "--engine", "loop", "--out", "a", "--json")
    assert end.code == 3
    assert end.out == ""
    assert "failed in round 2: the disk is full" in end.err
    assert "Traceback" not in end.err
    assert pq.read_table(tmp_path / "a" / "rounds.parquet").num_rows == 1


def test_an_interrupted_run_says_where_its_rounds_are(fedloom, tmp_path):
    (tmp_path / "mine.py").write_text(STOPS)
    end = fedloom("run", "mine.py:interrupted", *SMALL, "--out", "a", "--json")
    assert end.code == 130
    assert end.out == ""
    assert "interrupted; the rounds that were finished are in" in end.err
    assert pq.read_table(tmp_path / "a" / "rounds.parquet").num_rows == 1


# ---- resume


def test_the_same_command_with_resume_goes_on(fedloom, tmp_path):
    (tmp_path / "mine.py").write_text(STOPS.replace("if task.round == 2:", "if task.round == 2 and stops():"))
    with (tmp_path / "mine.py").open("a") as file:
        file.write("\nfrom pathlib import Path\n\ndef stops():\n    return not Path('go').exists()\n")
    words = ("run", "mine.py:interrupted", *SMALL, "--checkpoint-every", "1", "--json", "--out", "a")
    end = fedloom(*words)
    assert end.code == 130
    assert "go on with `fedloom run --resume a`" in end.err
    (tmp_path / "go").touch()
    end = fedloom(*words, "--resume")
    assert end.code == 0, end.err
    assert "resumed after round 1 of 2" in end.err
    assert end.json()["rounds"] == 2


def test_a_folder_is_all_that_resume_needs(fedloom, tmp_path):
    straight = fedloom("run", "feddyn", *SMALL, "--rounds", "5", "--json").json()
    assert fedloom("run", "feddyn", *SMALL, "--out", "a").code == 0
    grown = fedloom("run", "--resume", "a", "--rounds", "5", "--json").json()
    assert grown | {"run": 0, "wall_seconds": 0} == straight | {"run": 0, "wall_seconds": 0}
    done = fedloom("run", "--resume", "a")
    assert done.code == 0
    assert "this run is finished: all 5 rounds were played before" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clients", "5"], "clients was 4 when this run was begun and is 5 now"),
        (["--set", "rate=0.5"], "training.rate was None when this run was begun and is 0.5 now"),
        (["--data", "synthetic"], "data.name was 'digits' when this run was begun and is 'synthetic' now"),
        (["--rounds", "1"], "rounds was 2 when this run was begun and is 1 now"),
        (["--checkpoint-every", "soon"], "--checkpoint-every got 'soon'"),
    ],
)
def test_a_changed_resume_ends_with_2(words, said, fedloom):
    assert fedloom("run", "fedavg", *SMALL, "--out", "a").code == 0
    end = fedloom("run", "--resume", "a", *words)
    assert end.code == 2
    assert said in end.err


def test_there_is_nothing_to_resume(fedloom):
    end = fedloom("run", "--resume", "a")
    assert (end.code, end.out) == (2, "")
    assert "'a' is not a run folder" in end.err


# ---- list and help

LISTED = {"methods": METHODS, "data": DATASETS, "models": MODELS, "partitions": PARTITIONS}


@pytest.mark.parametrize("kind", [*LISTED, "parts"])
def test_list(kind, fedloom):
    as_json, for_people = fedloom("list", kind, "--json"), fedloom("list", kind)
    assert (as_json.code, for_people.code, as_json.err, for_people.err) == (0, 0, "", "")
    rows = as_json.json()
    facts = ["paper", "year", "mask", "origin"] if kind == "methods" else []
    assert all(list(row) == ["name", "settings", "about", *facts] for row in rows)
    if kind in LISTED:
        assert [row["name"] for row in rows] == list(LISTED[kind])
    else:
        assert {"select: Uniform", "local: Prox", "aggregate: CoverageMean"} <= {row["name"] for row in rows}
    for row in rows:
        assert row["name"] in for_people.out
        assert row["about"].split()[0] in for_people.out


@pytest.mark.parametrize("model", ["transformer", "lstm", "vit", "har-cnn", "fasttext", "mobilenet"])
def test_neurons_by_the_bare_name(fedloom, model):
    end = fedloom("neurons", model)
    assert (end.code, end.err) == (0, "")
    assert "groups of neurons" in end.out


def test_neurons(fedloom, tmp_path):
    end = fedloom("neurons", "mlp", "--shape", "1x8x8", "--set", "widths=[20]")
    assert (end.code, end.err) == (0, "")
    for word in ("dense1", "output", "20 x 64", f"{64 * 20 + 20 + 20 * 10 + 10:,} (100.0%)"):
        assert word in end.out
    (tmp_path / "mine.py").write_text("from torch import nn\ndef net(n: int = 3):\n    return nn.Linear(4, n)\n")
    own = fedloom("neurons", "mine.py:net", "--shape", "4", "--set", "n=7")
    assert (own.code, own.err) == (0, "")
    assert "7 x 4" in own.out


def test_help_teaches(fedloom, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    top, run, lists = fedloom("--help"), fedloom("run", "--help"), fedloom("list", "--help")
    assert (top.code, run.code, lists.code) == (0, 0, 0)
    for word in ("run", "list", "fedloom run fedavg", "fedloom list methods"):
        assert word in top.out
    options = ("--set", "--data", "--partition", "--clients", "--model", "--rounds", "--seed", "--engine", "--device")
    for word in (*options, "--out", "--json", "KEY=VALUE", "rate=0.05", "my_file.py:my_method"):
        assert word in run.out
    for word in ("--resume", "--checkpoint-every", "0 finished", "2 wrong input", "3 stopped by a fault", "130"):
        assert word in run.out
    for kind in (*LISTED, "parts"):
        assert kind in lists.out


# ---- what a person sees


def test_a_bar_on_a_terminal():
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    row = {"score": 0.5, "loss": 1.25, "training_loss": 1.0}
    with progress(screen, "fedavg", 3) as watch:
        for number in (1, 2, 3):
            watch({"round": number, **row})
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for word in ("fedavg", "3/3", "accuracy 0.5000", "loss 1.2500"):
        assert word in shown


def test_progress_names_the_score():
    screen = Console(file=io.StringIO(), width=120)
    with progress(screen, "fedavg", 2, RMSE) as watch:
        watch({"round": 1, "score": 12.345, "loss": 150.0, "training_loss": 1.0})
        watch({"round": 2, "score": None, "loss": None, "training_loss": 1.0})
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().splitlines() == [
        "round 1/2 RMSE 12.35  loss 150.0000", "round 2/2 training loss 1.0"]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (5e9, "5.0 GB"), (2e15, "2000.0 TB")],
)
def test_sizes_for_people(count, text):
    assert size(count) == text


def test_the_installed_command():
    command = Path(sys.executable).with_name("fedloom")
    if not command.exists():
        pytest.skip("fedloom is not installed as a command here")
    assert os.access(command, os.X_OK)
    assert "from fedloom.cli.main import main" in command.read_text()
