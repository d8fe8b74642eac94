"""A resumed run is the undisturbed run, bit for bit; anything else than more rounds is refused."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import goal_worlds
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedloom.runs.folder
import worlds
from fault.resumes import assert_same, played, prepared, saved, start, untimed
from fedloom.codec import Codec
from fedloom.data.load import load
from fedloom.errors import BadData, BadExperiment, RunStopped
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.local.prox import Prox
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.checkpoint.snapshot import restore_snapshot, take_snapshot
from fedloom.runs.checkpoint.tensors import bytes_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import ledger_of, resume, run

# ---- every method, by its pieces: play two rounds, save, put back into fresh engines, play two more


@pytest.mark.parametrize("codec", [Codec(), Codec(values="int8", feedback=True)], ids=["float32", "int8-feedback"])
@worlds.every_method
def test_straight_equals_resumed(method, codec, tmp_path):
    check_resumed(method, codec, tmp_path, worlds.world("mlp"))


@pytest.mark.parametrize("name", goal_worlds.METHODS)
@pytest.mark.parametrize("case", goal_worlds.CASES)
def test_straight_equals_resumed_for_every_goal(case, name, tmp_path):
    check_resumed(dict(worlds.METHODS)[name](), Codec(), tmp_path, goal_worlds.goal_world(case))


def check_resumed(method: Method, codec: Codec, tmp_path: Path, here: worlds.World) -> None:
    """Two rounds, a checkpoint, and two more, by the same engines and by fresh ones."""
    straight = prepared(method, codec, here)
    ledger = ledger_of(straight.inputs)
    at = played(straight, ledger, start(straight), 2)
    path = saved(straight, ledger, at, tmp_path)
    at = played(straight, ledger, at, 2)

    other = prepared(method, codec, here)
    fresh = ledger_of(other.inputs)
    again = restore_snapshot(other, fresh, store.read(path))
    assert again.round == 2
    again = played(other, fresh, again, 2)
    assert_same(take_snapshot(straight, ledger, at), take_snapshot(other, fresh, again))


def test_a_table_in_a_file_goes_back_into_one(tmp_path):
    method = worlds.small(replace(fedavg(), aggregate=LatestUpdates(folder=str(tmp_path / "tables"))))
    check_resumed(method, Codec(), tmp_path, worlds.world("mlp"))


# ---- whole runs


def small(**changes: Any) -> Experiment:
    """A few clients with a small network, for four rounds."""
    given = {"model": {"name": "mlp", "settings": {"widths": [8]}}, "clients": 6, "per_round": 3, "rounds": 4}
    return Experiment(**{**given, "training": {"epochs": 1, "batch": 32}, **changes})


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for its clock."""
    rounds = pq.ParquetFile(folder / "rounds.parquet").read().to_pylist()
    clients = pq.ParquetFile(folder / "clients.parquet").read()
    model = {name: bytes_of(value).tobytes() for name, value in load_file(folder / "model.safetensors").items()}
    return {"rounds": untimed(rounds), "clients": clients, "model": model}


def stop_after(number: int, why: type[BaseException] = KeyboardInterrupt) -> Any:
    """A watcher that stops the run."""

    def watch(row: dict[str, Any]) -> None:
        if row["round"] == number:
            raise why

    return watch


KINDS = {
    "scaffold": {"method": "scaffold"},
    "a world": {"method": "oort", "fleet": "table4", "channel": {"name": "bursty", "settings": {"enter": 0.3}},
                "per_round": None},
    "early stopping": {"method": {"name": "fedspu", "settings": {"early_stopping": True}}, "split": (0.7, 0.0, 0.3)},
    "seldom evaluated": {"evaluate_every": 3},
    "in flight, personal models": {
        "method": "fedspu", "fleet": "table4", "split": (0.7, 0.0, 0.3), "per_round": None,
        "pace": {"name": "buffered", "settings": {"buffer": 1, "in_flight": 5}},
    },
    "in flight, evaluated by the virtual second": {
        "method": "fedbuff", "fleet": "table4", "per_round": None, "evaluate_seconds": 0.05,
        "pace": {"name": "buffered", "settings": {"buffer": 1, "in_flight": 5}},
    },
    "loop": {"engine": "loop", "training": {"momentum": 0.9, "fresh": False, "epochs": 1}},
    "safari": {"method": "safari", "fleet": "equal", "channel": {"name": "bernoulli", "settings": {"up": 0.5}},
               "per_round": None},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_bits(kind, tmp_path):
    run(small(**KINDS[kind]), out=tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        run(small(**KINDS[kind]), out=tmp_path / "stopped", watch=stop_after(2))
    told: list[str] = []
    result = run(small(**KINDS[kind]), out=tmp_path / "stopped", resume=True, tell=told.append)
    assert told[-1] == "resumed after round 2 of 4"
    assert left(tmp_path / "stopped") == left(tmp_path / "straight")
    assert [row["round"] for row in result.rounds] == [1, 2, 3, 4]


FEW = {"name": "buffered", "settings": {"buffer": 2, "in_flight": 4}}


@pytest.mark.parametrize(
    "evaluate",
    [
        {},
        {"evaluate_every": 3},
        {"fleet": "equal", "evaluate_seconds": 3.0},
        {"fleet": "iot", "evaluate_seconds": 3.0, "pace": FEW, "per_round": None},
    ],
    ids=["1", "3", "seconds", "in flight"],
)
def test_more_rounds_are_a_run_of_as_many(evaluate, tmp_path):
    run(small(rounds=5, **evaluate), out=tmp_path / "straight")
    run(small(rounds=2, **evaluate), out=tmp_path / "grown")
    resume(tmp_path / "grown", rounds=5)
    assert left(tmp_path / "grown") == left(tmp_path / "straight")
    about = json.loads((tmp_path / "grown" / "experiment.json").read_text())
    assert about["experiment"]["rounds"] == 5
    assert [one["round"] for one in about["resumed"]] == [2]
    with pytest.raises(BadExperiment, match="rounds was 5 when this run was begun and is 4 now"):
        resume(tmp_path / "grown", rounds=4)


def test_a_finished_run_says_so_and_stays_as_it_is(tmp_path):
    first, told = run(small(), out=tmp_path / "run"), []
    before, names = left(tmp_path / "run"), [path.name for path in store.list_all(tmp_path / "run" / "checkpoint")]
    again = resume(tmp_path / "run", tell=told.append)
    assert "this run is finished: all 4 rounds were played before" in told[-1]
    assert left(tmp_path / "run") == before
    assert [path.name for path in store.list_all(tmp_path / "run" / "checkpoint")] == names
    assert again.rounds == first.rounds
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters()))


class Warm(nn.Module):
    """Counts its batches, and lets through more with each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        return x * (1 - 1 / (1 + self.seen))


def test_batches_that_a_layer_counts_are_counted_on(tmp_path):
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), Warm(), nn.ReLU(), nn.Linear(6, 10))

    run(small(engine="loop"), model=net(), out=tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        run(small(engine="loop"), model=net(), out=tmp_path / "stopped", watch=stop_after(2))
    resume(tmp_path / "stopped", model=net())
    assert left(tmp_path / "stopped") == left(tmp_path / "straight")


def test_a_run_that_was_never_saved_starts_at_its_first_round(tmp_path):
    run(small(), out=tmp_path / "straight")
    told: list[str] = []
    run(small(), out=tmp_path / "new", resume=True, tell=told.append)  # nothing to resume is not a mistake
    assert not [note for note in told if not note.startswith("memory:")]
    assert left(tmp_path / "new") == left(tmp_path / "straight")


def test_an_error_in_a_round_keeps_the_last_checkpoint(tmp_path):
    class Breaks(nn.Linear):
        """Fails after some passes."""

        left = 10**9

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Until there are none left."""
            type(self).left -= 1
            if self.left < 0:
                raise OSError("a cable")
            return super().forward(x.flatten(1))

    experiment, when = small(engine="loop"), Checkpoints(rounds=1)
    torch.manual_seed(0)
    net = Breaks(64, 10)
    run(experiment, model=net, out=tmp_path / "straight")

    def tired(row: dict[str, Any]) -> None:
        Breaks.left = 12 if row["round"] == 2 else 10**9

    with pytest.raises(RunStopped, match="failed in round 3"):
        run(experiment, model=net, out=tmp_path / "run", watch=tired, checkpoints=when)
    Breaks.left = 10**9
    assert store.read(store.list_all(tmp_path / "run" / "checkpoint")[0]).facts["round"] == 2
    resume(tmp_path / "run", model=net)
    assert left(tmp_path / "run") == left(tmp_path / "straight")


# ---- what may not change


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A run that was stopped after two rounds; nobody may change it."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=folder, watch=stop_after(2))
    return folder


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 1}, "seed was 0 when this run was begun and is 1 now"),
    "a setting": ({"training": {"epochs": 2, "batch": 32}}, "training.epochs was 1 .* is 2 now"),
    "method": ({"method": "fedprox"}, "method.name was 'fedavg' .* is 'fedprox' now"),
    "method's setting": ({"method": {"name": "fedavg", "settings": {}}, "per_round": 4}, "per_round was 3"),
    "fewer rounds": ({"rounds": 3}, "rounds was 4 .* is 3 now"),
    "codec": ({"codec": {"values": "int8"}}, "codec.values was 'float32' .* is 'int8' now"),
    "fleet": ({"fleet": "equal"}, "fleet.name was 'none'"),
}


@pytest.mark.parametrize(("change", "said"), CHANGED.values(), ids=CHANGED.keys())
def test_another_setting_is_refused(change, said, begun):
    with pytest.raises(BadExperiment, match=said):
        run(small(**change), out=begun, resume=True)


def test_other_things_behind_the_same_names_are_refused(begun):
    data = load("digits")
    changed = data.x_train.copy()
    changed[5, 0, 0, 0] += 1
    with pytest.raises(BadExperiment, match=r"the data is not that of the run .* pass the same again"):
        resume(begun, data=data._replace(x_train=changed))
    torch.manual_seed(0)
    with pytest.raises(BadExperiment, match="the network is not that of the run"):
        resume(begun, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(BadExperiment, match=r"(?s)the method is not that of the run .*Prox\(mu=0.5\)"):
        resume(begun, method=Method(local=Prox(0.5)))


def test_own_things_are_asked_for_again(tmp_path):
    torch.manual_seed(0)
    mine = {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "method": Method(local=Prox(0.5))}
    run(small(per_round=None), **mine, out=tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        run(small(per_round=None), **mine, out=tmp_path / "run", watch=stop_after(1))
    with pytest.raises(BadExperiment, match="pass the same again"):
        resume(tmp_path / "run")
    resume(tmp_path / "run", **mine)
    assert left(tmp_path / "run") == left(tmp_path / "straight")


def test_an_edited_file_is_noticed(tmp_path):
    text = "from fedloom import Method\n\n\ndef mine() -> Method:\n    return Method()\n"
    (tmp_path / "mine.py").write_text(text)
    experiment = small(method=f"{tmp_path}/mine.py:mine", per_round=None)
    run(experiment, out=tmp_path / "run")
    (tmp_path / "mine.py").write_text(text + "# changed\n")
    with pytest.raises(BadExperiment, match="the method's file is not that of the run"):
        resume(tmp_path / "run", rounds=5)


def test_a_changed_fleet_file_is_noticed(tmp_path):
    table = np.array([(n, 1e6 * (n + 1), 1e6) for n in range(6)])
    header = "client,up,down"
    np.savetxt(tmp_path / "fleet.csv", table, delimiter=",", header=header, comments="", fmt="%d")
    experiment = small(fleet=str(tmp_path / "fleet.csv"))
    run(experiment, out=tmp_path / "run")
    table[3, 1] += 1
    np.savetxt(tmp_path / "fleet.csv", table, delimiter=",", header=header, comments="", fmt="%d")
    with pytest.raises(BadExperiment, match="the fleet is not that of the run"):
        resume(tmp_path / "run", rounds=5)


def test_another_version_is_said_and_written_down(begun, tmp_path, monkeypatch, caplog):
    shutil.copytree(begun, tmp_path / "run")
    true = fedloom.runs.folder.surroundings
    monkeypatch.setattr(fedloom.runs.folder, "surroundings", lambda device: true(device) | {"torch": "9.9.9"})
    with caplog.at_level(logging.WARNING, "fedloom"):
        resume(tmp_path / "run")
    assert "up to round 2 and is 9.9.9 now: the last bits may differ" in caplog.text
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["resumed"][0]["torch"] == "9.9.9"


def test_another_format_is_refused(begun, tmp_path, monkeypatch):
    shutil.copytree(begun, tmp_path / "run")
    monkeypatch.setattr(fedloom.runs.folder, "FORMAT", 4)
    with pytest.raises(RunStopped, match="has format 3, and this fedloom reads 4"):
        resume(tmp_path / "run")


def test_folders_that_are_no_runs_are_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadExperiment, match="not a run folder"):
        resume(tmp_path)
    with pytest.raises(BadExperiment, match="not a run folder"):
        run(small(), out=tmp_path, resume=True)
    with pytest.raises(BadExperiment, match="resume needs the run's folder"):
        run(small(), resume=True)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(BadData, match=r"experiment\.json"):
        resume(tmp_path)


def test_a_run_in_a_folder_is_not_overwritten(begun):
    with pytest.raises(BadExperiment, match="is not empty; name a new folder, or resume the run that is in it"):
        run(small(), out=begun)
