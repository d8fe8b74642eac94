"""A run repeats bit for bit, writes down all it did, and loses nothing when it is stopped."""

from __future__ import annotations

import json
import logging
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom.core.optimiser import Sgd
from fedloom.core.part import Select
from fedloom.core.rule import LocalRule
from fedloom.core.types import Cohort, Setting, State, Task
from fedloom.core.work import Work
from fedloom.data.dataset import Dataset
from fedloom.data.load import load
from fedloom.data.partition import partition, split
from fedloom.errors import BadData, BadExperiment, BadModel, RunStopped
from fedloom.method import Method
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of
from fedloom.runs.play import run
from fedloom.runs.result import Result

ROUNDS = [
    *("round", "score", "accuracy", "top5", "per_class", "loss", "personal_score", "personal_accuracy"),
    "training_loss",
    *(
        "clients",
        "arrived",
        "rejected",
        "examples_trained",
        "bytes_down",
        "bytes_up",
        "virtual_seconds",
        "joules",
        "wall_seconds",
        "evaluation_seconds",
        "personal_seconds",
    ),
]
CLOCK = ("wall_seconds", "evaluation_seconds", "personal_seconds")
BYTES = ["bytes_down", "bytes_up", "bytes_up_values", "bytes_up_indices", "bytes_up_overhead"]
CLIENTS = ["round", "client", "share", "arrived", "rejected", "examples_trained", *BYTES, "examples", "steps", "loss"]


def small(**changes: Any) -> Experiment:
    """A few clients with a small network, for two rounds."""
    return Experiment(
        **{
            "model": {"name": "mlp", "settings": {"widths": [8]}},
            "partition": {"name": "dirichlet", "settings": {"alpha": 1.0}},
            "clients": 6,
            "per_round": 3,
            "rounds": 2,
            "training": {"epochs": 1, "batch": 32},
            **changes,
        }
    )


def plain_net(classes: int = 10, seed: int = 0) -> nn.Module:
    """A network of the user's own for the digits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, classes))


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's tensors."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Equal names and equal bits."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def untimed(result: Result) -> list[dict[str, Any]]:
    """The rows without what a clock says."""
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in result.rounds]


def numbers(module: nn.Module) -> int:
    """P of a module without running statistics."""
    return sum(value.numel() for value in module.parameters())


def rows_of(file: Path) -> list[dict[str, Any]]:
    """A table as rows."""
    return list(pq.read_table(file).to_pylist())


# ---- the same seed gives the same run


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_run_repeats_bit_for_bit(name):
    first = run(small(method=name))
    torch.manual_seed(12345)  # what was drawn before does not matter
    torch.rand(7)
    second = run(small(method=name))
    assert same(weights(first.model), weights(second.model))
    assert untimed(first) == untimed(second)


def test_another_seed_is_another_run():
    first, second = run(small(seed=0)), run(small(seed=1))
    assert not same(weights(first.model), weights(second.model))
    assert untimed(first) != untimed(second)


def test_torchs_own_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    run(small(rounds=1))
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_loop_equals_local(name):
    fast, slow = run(small(method=name)), run(small(method=name, engine="loop"))
    for (tensor, ours), theirs in zip(fast.model.state_dict().items(), slow.model.state_dict().values()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=tensor)
    for ours, theirs in zip(fast.rounds, slow.rounds):
        assert ours["bytes_up"] == theirs["bytes_up"]
        assert ours["training_loss"] == pytest.approx(theirs["training_loss"], abs=1e-5)


def test_any_chunk_gives_the_same_rows():
    whole, single = run(small()), run(small(chunk=1))
    for ours, theirs in zip(whole.rounds, single.rounds):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


def test_training_learns():
    result = run(small(clients=10, per_round=10, rounds=15, partition="iid", training={"epochs": 5, "batch": 10}))
    assert result.accuracy > 0.85
    assert result.rounds[-1]["loss"] < result.rounds[0]["loss"]


# ---- the run folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Result:
    """A finished run with its folder."""
    return run(small(rounds=3), out=tmp_path_factory.mktemp("runs") / "a" / "b")


def test_files(finished):
    files = {
        "experiment.json",
        "rounds.parquet",
        "clients.parquet",
        "model.safetensors",
        "log.txt",
        "log.jsonl",
        "checkpoint",
    }
    assert {file.name for file in finished.folder.iterdir()} == files


def test_the_experiment_is_written(finished):
    about = json.loads((finished.folder / "experiment.json").read_text())
    assert Experiment(**about["experiment"]) == finished.experiment
    assert about["parameters"] == numbers(finished.model)
    assert about["device"] in ("cpu", "cuda:0")
    assert set(about["versions"]) == {"fedloom", "torch", "numpy", "python"}
    assert "Dirichlet(1)" in about["partition"]
    assert "Uniform(count=3)" in about["method"]


def test_one_row_a_round(finished):
    rows = rows_of(finished.folder / "rounds.parquet")
    assert list(rows[0]) == ROUNDS
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows == finished.rounds
    assert finished.accuracy == rows[-1]["accuracy"]
    for row in rows:
        assert len(row["per_class"]) == 10
        assert row["clients"] == row["arrived"] == 3
        assert 0 <= row["accuracy"] <= row["top5"] <= 1
        assert row["wall_seconds"] > 0


def test_one_row_a_client_and_round(finished):
    rows = rows_of(finished.folder / "clients.parquet")
    assert list(rows[0]) == CLIENTS
    assert [row["round"] for row in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    for one in finished.rounds:
        cohort = [row for row in rows if row["round"] == one["round"]]
        assert len({row["client"] for row in cohort}) == 3
        assert sum(row["bytes_up"] for row in cohort) == one["bytes_up"]
        assert sum(row["bytes_down"] for row in cohort) == one["bytes_down"]
        assert sum(row["loss"] for row in cohort) / 3 == pytest.approx(one["training_loss"], rel=1e-6)
    for row in rows:
        assert row["arrived"] is True
        assert row["share"] == 1
        assert row["steps"] == -(-row["examples"] // 32)


def test_the_saved_model_is_the_trained_one(finished):
    saved = load_file(finished.folder / "model.safetensors")
    assert same(saved, weights(finished.model))
    fresh = nn.Sequential()
    for name, part in finished.model.named_children():
        fresh.add_module(name, type(part)(part.in_features, part.out_features) if hasattr(part, "bias") else part)
    fresh.load_state_dict(saved)
    data = load("digits")
    answers = fresh(torch.from_numpy(data.x_test)).argmax(1).numpy()
    assert (answers == data.y_test).mean() == pytest.approx(finished.accuracy)


def test_a_saved_model_with_batch_norm_loads_into_its_module(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))
    result = run(small(), model=net, out=tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    net.load_state_dict(saved)
    trained = {name: value for name, value in weights(result.model).items() if value.is_floating_point()}
    assert same(trained, {name: weights(net)[name] for name in trained})
    assert not torch.equal(net[2].running_mean, torch.zeros(6))


def test_the_log_says_what_happened(finished):
    log = (finished.folder / "log.txt").read_text()
    assert "Each class cut by Dirichlet(1) over 6 clients" in log
    assert log.rstrip().endswith("INFO finished")


def test_the_summary(finished):
    summary = finished.summary()
    assert summary == {
        "run": str(finished.folder),
        "method": "fedavg",
        "rounds": 3,
        "score_name": "accuracy",
        "lower_is_better": False,
        "score": finished.accuracy,
        "best_score": finished.best_score,
        "personal_score": None,
        "accuracy": finished.accuracy,
        "best_accuracy": max(row["accuracy"] for row in finished.rounds),
        "top5": finished.rounds[-1]["top5"],
        "personal_accuracy": None,
        "loss": finished.rounds[-1]["loss"],
        "examples_trained": sum(row["examples_trained"] for row in finished.rounds),
        "bytes_up": sum(row["bytes_up"] for row in finished.rounds),
        "bytes_down": sum(row["bytes_down"] for row in finished.rounds),
        "virtual_seconds": None,
        "joules": None,
        "rejected": {},
        "wall_seconds": finished.wall_seconds,
    }


def test_without_out_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(small(rounds=1)).folder is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(BadExperiment, match="not empty"):
            run(small(), out=out)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert run(small(rounds=1), out=tmp_path / "empty").folder == tmp_path / "empty"


def test_a_run_leaves_logging_as_it_was(tmp_path):
    log = logging.getLogger("fedloom")
    before = log.level, list(log.handlers)
    log.setLevel(logging.NOTSET)
    try:
        run(small(rounds=1), out=tmp_path / "run")
        assert (log.level, log.handlers) == (logging.NOTSET, before[1])
    finally:
        log.setLevel(before[0])


# ---- evaluation


def test_evaluate_every(tmp_path):
    rows = run(small(rounds=5, evaluate_every=2), out=tmp_path / "run").rounds
    assert [row["accuracy"] is not None for row in rows] == [False, True, False, True, True]
    every = run(small(rounds=5)).rounds
    for row, full in zip(rows, every):
        assert row["training_loss"] == full["training_loss"]
        assert row["accuracy"] in (None, full["accuracy"])
    assert rows_of(tmp_path / "run" / "rounds.parquet") == rows


def test_every_round_is_watched():
    seen: list[dict[str, Any]] = []
    result = run(small(rounds=3, evaluate_every=2), watch=seen.append)
    assert seen == result.rounds


def own_accuracy(model: nn.Module, data: Dataset, parts: list[np.ndarray], test: bool = False) -> list[float]:
    """What a model gets right of each client's examples."""
    x, y = (data.x_test, data.y_test) if test else (data.x_train, data.y_train)
    with torch.no_grad():
        return [float((model(torch.from_numpy(x[part])).argmax(1).numpy() == y[part]).mean()) for part in parts]


def test_personal_accuracy_on_own_splits():
    experiment = small(split=(0.7, 0.0, 0.3))
    result, data = run(experiment), load("digits")
    dealt = partition("dirichlet", data.y_train, 6, 0, alpha=1.0)
    kept = split(dealt, (0.7, 0.0, 0.3), 0)
    expected = np.mean(own_accuracy(result.model, data, kept.test))
    assert result.rounds[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert result.summary()["personal_accuracy"] == result.rounds[-1]["personal_accuracy"]
    assert sum(map(len, kept.test)) > 400
    assert [len(one) for one in kept.train] == inputs_of(experiment).setting.fleet.examples.tolist()


def test_personal_accuracy_follows_the_clients_own_models():
    experiment = small(split=(0.7, 0.0, 0.3), per_round=6)
    training = {"select": Uniform(6), "work": Work(epochs=3, batch=16)}
    shared = run(experiment, method=Method(**training)).rounds[-1]
    own = run(experiment, method=Method(**training, local=KeepOwn())).rounds[-1]
    assert own["accuracy"] == shared["accuracy"]  # the global model is the same
    assert own["personal_accuracy"] > shared["personal_accuracy"]


def save_npz(path: Path, tested: list[int]) -> Dataset:
    """The digits as the data of clients 7, 9 and 20, the test set belonging to `tested` in turn."""
    data = load("digits")
    train = np.array([7, 9, 20])[np.arange(len(data.y_train)) % 7 % 3]  # unequal parts
    data = data._replace(client_train=train, client_test=np.array(tested)[np.arange(len(data.y_test)) % len(tested)])
    np.savez(path, **{name: getattr(data, name) for name in Dataset._fields[1:7]})
    return data


@pytest.mark.parametrize("tested", [[7, 9, 20], [9, 20], [20, 99]], ids=["all", "some", "one and a stranger"])
def test_own_clients_from_a_file(tested, tmp_path):
    data = save_npz(tmp_path / "mine.npz", tested)
    result = run(small(data=str(tmp_path / "mine.npz"), partition="own", clients=2), out=tmp_path / "run")
    assert "2 of 3" in json.loads((tmp_path / "run" / "experiment.json").read_text())["partition"]
    examples = {row["examples"] for row in rows_of(tmp_path / "run" / "clients.parquet")}
    sizes = {client: int((data.client_train == client).sum()) for client in (7, 9, 20)}
    assert examples <= set(sizes.values())

    result = run(small(data=str(tmp_path / "mine.npz"), partition="own", clients=3))
    parts = [np.flatnonzero(data.client_test == client) for client in (7, 9, 20) if client in tested]
    expected = np.mean(own_accuracy(result.model, data, parts, test=True))
    assert result.rounds[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)


def test_strangers_tests_are_nobodys(tmp_path):
    save_npz(tmp_path / "mine.npz", [98, 99])
    result = run(small(data=str(tmp_path / "mine.npz"), partition="own", clients=3, rounds=1))
    assert result.rounds[-1]["personal_accuracy"] is None
    dealt_otherwise = run(small(data=str(tmp_path / "mine.npz"), rounds=1))
    assert dealt_otherwise.rounds[-1]["personal_accuracy"] is None


# ---- things of the user's own


def test_own_network():
    net = plain_net()
    before = weights(net)
    result = run(small(), model=net)
    assert same(before, weights(net))  # a copy was trained
    assert type(result.model) is nn.Sequential
    assert not same(before, weights(result.model))
    assert same(weights(run(small(), model=net).model), weights(result.model))


def test_own_data():
    digits = load("digits")
    few = np.arange(200)
    mine = Dataset("mine", digits.x_train[few], digits.y_train[few], *digits[3:5], None, None, 10, 0)
    result = run(small(clients=4, partition="iid", per_round=4), data=mine)
    assert inputs_of(small(clients=4, partition="iid"), data=mine).setting.fleet.examples.tolist() == [50] * 4
    assert same(weights(run(small(), data=digits).model), weights(run(small()).model))
    assert not same(weights(result.model), weights(run(small(clients=4, partition="iid", per_round=4)).model))


def test_own_method_object():
    method = Method(select=Uniform(3), optimiser=Sgd(rate=0.1), work=Work(epochs=1, batch=32))
    assert same(weights(run(small(), method=method).model), weights(run(small()).model))
    half = Method(select=Uniform(3), optimiser=Sgd(rate=0.05), work=Work(epochs=1, batch=32))
    assert not same(weights(run(small(), method=half).model), weights(run(small()).model))


def test_own_files(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from torch import nn
        from fedloom import Method
        from fedloom.parts.local.prox import Prox

        def proximal(mu: float = 0.5) -> Method:
            return Method(local=Prox(mu))

        class Net(nn.Sequential):
            def __init__(self, width: int = 5) -> None:
                super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        """)
    )
    mine = run(small(method={"name": f"{tmp_path}/mine.py:proximal", "settings": {"mu": 1.0}}))
    assert same(weights(mine.model), weights(run(small(method={"name": "fedprox", "settings": {"mu": 1.0}})).model))
    assert not same(weights(mine.model), weights(run(small()).model))
    net = run(small(model={"name": f"{tmp_path}/mine.py:Net", "settings": {"width": 7}})).model
    assert net[1].out_features == 7
    again = run(small(model={"name": f"{tmp_path}/mine.py:Net", "settings": {"width": 7}})).model
    assert same(weights(net), weights(again))  # its weights come from the seed


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ({"method": "fedprox"}, ("method", "str", "Method")),
        ({"method": Method}, ("method", "Method")),
        ({"model": nn.Linear}, ("model", "nn.Module")),
        ({"model": "mlp"}, ("model", "str", "nn.Module")),
        ({"data": "digits"}, ("data", "str", "Dataset")),
    ],
)
def test_own_things_of_another_kind_are_refused(mine, words, tmp_path):
    with pytest.raises((BadExperiment, BadModel)) as refused:
        run(small(), out=tmp_path / "run", **mine)
    for word in words:
        assert word in str(refused.value)
    assert not (tmp_path / "run").exists()


def spoilt(**changes: Any) -> Dataset:
    """The digits with some arrays changed."""
    data = load("digits")
    return data._replace(**{name: change(getattr(data, name).copy()) for name, change in changes.items()})


def put(row: int, value: float) -> Any:
    """A change of one row."""

    def change(array: np.ndarray) -> np.ndarray:
        array[row] = value
        return array

    return change


SPOILT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a pixel that is no number": ({"x_train": put(5, np.nan)}, ("x_train", "row 5", "nan")),
    "an infinite pixel": ({"x_test": put(7, np.inf)}, ("x_test", "row 7", "inf")),
    "a label too high": ({"y_train": put(3, 10)}, ("y_train", "row 3", "10", "0 to 9")),
    "a label below 0": ({"y_test": put(4, -1)}, ("y_test", "row 4", "-1", "0 to 9")),
    "a label too few": ({"y_train": lambda y: y[:-1]}, ("x_train", "1438", "y_train", "1437")),
    "no examples": ({"x_test": lambda x: x[:0], "y_test": lambda y: y[:0]}, ("x_test", "at least one")),
}


@pytest.mark.parametrize(("changes", "words"), SPOILT.values(), ids=SPOILT.keys())
def test_spoilt_data_are_refused(changes, words, tmp_path):
    with pytest.raises(BadData) as refused:
        run(small(), data=spoilt(**changes), out=tmp_path / "run")
    for word in words:
        assert word in str(refused.value)
    assert not (tmp_path / "run").exists()


class Nan(nn.Module):
    """A network that has diverged before it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """NaN for everything."""
        scores: Tensor = self.out(x.flatten(1)) / 0
        return scores * 0


class Pair(nn.Module):
    """A network that answers with two things."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, twice."""
        scores = self.out(x.flatten(1))
        return scores, scores


UNFIT: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "too few outputs": (plain_net(9), ("Sequential", "9", "10 classes")),
    "output of images": (nn.Conv2d(1, 10, 3), ("Conv2d", "[10, 6, 6]", "10 classes")),
    "two answers": (Pair(), ("Pair", "tuple", "10 classes")),
    "diverged": (Nan(), ("Nan", "NaN")),
    "wrong input": (nn.Sequential(nn.Flatten(), nn.Linear(65, 10)), ("Sequential", "[1, 8, 8]", "65")),
    "wrong number of channels": (nn.Conv2d(3, 10, 8), ("Conv2d", "[1, 8, 8]")),
    "nothing to train": (nn.Flatten(), ("Flatten", "no parameters")),
    "half precision": (plain_net().half(), ("1.weight", "float16", "float32")),
}


@pytest.mark.parametrize(("net", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_unfit_networks_are_refused(net, words, tmp_path):
    with pytest.raises(BadModel) as refused:
        run(small(), model=net, out=tmp_path / "run")
    for word in words:
        assert word in str(refused.value)
    assert not (tmp_path / "run").exists()


# ---- who takes part


@pytest.fixture
def scarce() -> tuple[Experiment, Dataset, list[np.ndarray]]:
    """Forty examples of ten classes for forty clients with one class each: some get nothing."""
    experiment = small(clients=40, per_round=40, rounds=1, partition={"name": "n-classes", "settings": {"n": 1}})
    data = load("digits")
    rows = np.concatenate([np.flatnonzero(data.y_train == label)[:4] for label in range(10)])
    data = data._replace(x_train=data.x_train[rows], y_train=data.y_train[rows])
    return experiment, data, partition("n-classes", data.y_train, 40, 0, n=1).clients


def test_empty_clients_are_left_out_and_said(scarce, tmp_path):
    experiment, data, dealt = scarce
    present = [client for client, own in enumerate(dealt) if len(own)]
    assert 0 < len(present) < 40

    inputs = inputs_of(experiment, data=data)
    assert inputs.clients == present
    assert inputs.setting.fleet.examples.tolist() == [len(dealt[client]) for client in present]

    run(experiment, data=data, out=tmp_path / "run")
    note = f"{40 - len(present)} of 40 clients empty."
    assert note in json.loads((tmp_path / "run" / "experiment.json").read_text())["partition"]
    assert note in (tmp_path / "run" / "log.txt").read_text()
    rows = rows_of(tmp_path / "run" / "clients.parquet")
    assert [row["examples"] for row in rows] == [len(dealt[client]) for client in present]


def test_clients_are_written_by_the_partitions_numbers(scarce, tmp_path):
    experiment, data, dealt = scarce
    run(experiment, data=data, out=tmp_path / "run")
    for row in rows_of(tmp_path / "run" / "clients.parquet"):
        assert row["examples"] == len(dealt[row["client"]])


def test_more_a_round_than_there_are():
    assert run(small(clients=3, per_round=50, rounds=1)).rounds[0]["clients"] == 3


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", (1, 0), (1, 0)),
        ("fedprox", (1, 0), (1, 0)),
        ("scaffold", (2, 1), (2, 0)),  # the server's control and a size go down, the change of control comes up
        ("feddyn", (1, 1), (1, 0)),
    ],
)
def test_bytes(name, down, up):
    result = run(small(method=name))
    total = numbers(result.model)
    for row in result.rounds:
        # a header each, whatever is in it
        assert 0 < row["bytes_down"] - 3 * 4 * (down[0] * total + down[1]) < 3 * 700
        assert 0 < row["bytes_up"] - 3 * 4 * (up[0] * total + up[1]) < 3 * 700


# ---- stopping


def stop_after(rounds: int) -> Any:
    """A watcher that presses Ctrl-C."""

    def watch(row: dict[str, Any]) -> None:
        if row["round"] == rounds:
            raise KeyboardInterrupt

    return watch


@dataclass(frozen=True)
class Fails(LocalRule):
    """A rule that goes wrong in the middle of a round."""

    round: int
    problem: type[BaseException] = KeyboardInterrupt

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Not in this round."""
        if task.round == self.round:
            raise self.problem("the disk is full")
        return last, {}, state


def fails(round: int, problem: type[BaseException] = KeyboardInterrupt) -> Method:
    """The method of `small`, failing in one round."""
    return Method(select=Uniform(3), local=Fails(round, problem), work=Work(epochs=1, batch=32))


def test_an_interrupt_between_rounds_keeps_what_was_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=50), out=tmp_path / "run", watch=stop_after(3))
    straight = run(small(rounds=3))
    kept = rows_of(tmp_path / "run" / "rounds.parquet")
    assert [{k: v for k, v in row.items() if k not in CLOCK} for row in kept] == untimed(straight)
    assert len(rows_of(tmp_path / "run" / "clients.parquet")) == 9
    assert same(load_file(tmp_path / "run" / "model.safetensors"), weights(straight.model))
    assert not [file for file in (tmp_path / "run").iterdir() if file.name.startswith(".")]


def test_the_log_says_that_it_was_interrupted(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "run", watch=stop_after(1))
    assert "stopped: KeyboardInterrupt" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError])
def test_trouble_within_a_round_keeps_those_before(problem, tmp_path):
    with pytest.raises(problem):
        run(small(rounds=5), method=fails(3, problem), out=tmp_path / "run")
    straight = run(small(rounds=2))
    assert [row["round"] for row in rows_of(tmp_path / "run" / "rounds.parquet")] == [1, 2]
    assert same(load_file(tmp_path / "run" / "model.safetensors"), weights(straight.model))
    assert "stopped: the disk is full" in (tmp_path / "run" / "log.txt").read_text()


def test_trouble_in_the_first_round_leaves_a_readable_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(small(), method=fails(1), out=tmp_path / "run")
    assert rows_of(tmp_path / "run" / "rounds.parquet") == rows_of(tmp_path / "run" / "clients.parquet") == []
    start = inputs_of(small())
    assert same(load_file(tmp_path / "run" / "model.safetensors"), start.setting.layout.split(start.model))


@pytest.mark.parametrize(
    ("changes", "failing"),
    [({}, 1), ({"evaluate_every": 2}, 2), ({"split": (0.7, 0.0, 0.3)}, 2)],
    ids=["no round", "not evaluated", "own split"],
)
def test_tables_have_the_same_columns_however_far_a_run_came(changes, failing, tmp_path, finished):
    with pytest.raises(KeyboardInterrupt):
        run(small(**changes), method=fails(failing), out=tmp_path / "run")
    tables = ["rounds.parquet"] if failing == 1 else ["rounds.parquet", "clients.parquet"]  # replies decide on the last
    for table in tables:
        assert pq.read_schema(tmp_path / "run" / table).equals(pq.read_schema(finished.folder / table))


def test_a_failing_client_is_named_by_the_loop(tmp_path):
    with pytest.raises(RunStopped, match=r"client \d+ failed in round 2: the disk is full"):
        run(small(engine="loop"), method=fails(2, OSError), out=tmp_path / "run")
    assert [row["round"] for row in rows_of(tmp_path / "run" / "rounds.parquet")] == [1]


@dataclass(frozen=True)
class Muted(Select):
    """Everybody trains and nobody may reply."""

    def __call__(self, memory: State, setting: Setting, chance: Any) -> tuple[Cohort, State]:
        """All, none of them authorised."""
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.zeros_like(ids, dtype=torch.bool)), memory


def test_where_no_reply_arrives_the_model_stays(tmp_path):
    experiment = small()
    result = run(experiment, method=Method(select=Muted(), work=Work(epochs=1, batch=32)), out=tmp_path / "run")
    start = inputs_of(experiment)
    assert same(weights(result.model), start.setting.layout.split(start.model))
    for row in result.rounds:
        assert (row["arrived"], row["bytes_up"], row["training_loss"]) == (0, 0, None)
    assert rows_of(tmp_path / "run" / "rounds.parquet") == result.rounds


def test_a_diverging_run_goes_on_and_says_so(tmp_path):
    result = run(small(training={"rate": 1e30, "epochs": 1, "batch": 32}), out=tmp_path / "run")
    rows = rows_of(tmp_path / "run" / "rounds.parquet")
    assert [row["rejected"] for row in rows] == [row["rejected.value"] for row in rows] == [3, 3]
    assert all(value.isfinite().all() for value in result.model.state_dict().values())


def test_a_run_that_admits_everything_diverges_and_goes_on(tmp_path):
    training = {"rate": 1e30, "epochs": 1, "batch": 32}
    result = run(small(training=training, admit="everything"), out=tmp_path / "run")
    assert result.accuracy == 0
    assert result.rounds[-1]["per_class"] == [0.0] * 10
    assert np.isnan(result.rounds[-1]["loss"])
    assert len(rows_of(tmp_path / "run" / "rounds.parquet")) == 2


def test_evaluations_by_virtual_seconds():
    seconds = 4.0
    result = run(small(fleet="iot", rounds=12, evaluate_seconds=seconds))
    made = np.concatenate([[0], np.cumsum([row["virtual_seconds"] for row in result.rounds])])
    due = (made[1:] // seconds > made[:-1] // seconds).tolist()
    assert [row["score"] is not None for row in result.rounds] == [*due[:-1], True]
    assert 1 < sum(due) < 11
    with pytest.raises(BadExperiment, match="evaluate_every is 3 \\(rounds\\) and evaluate_seconds 4"):
        small(fleet="iot", evaluate_seconds=4, evaluate_every=3)
    with pytest.raises(BadExperiment, match="without devices nothing takes virtual time"):
        run(small(evaluate_seconds=4))
