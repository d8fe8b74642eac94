"""An engine of one's own, written against the protocol alone: a run on it is evaluated, saved, stopped and resumed."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.costs import Bytes, Costs
from fedloom.core.types import Reply, State, Task
from fedloom.engine.protocol import Engine
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import play
from fedloom.world.attack import Attacked
from fedloom.world.channel import Bernoulli
from fedloom.world.simulated import Simulated
from fedloom.world.wire import Wire

ROUNDS, STOP = 6, 3
PROMISED = [name for name in vars(Engine) if not name.startswith("_")]


class Counting:
    """Trains nothing: every client adds to the model how often it has been asked, in units of its number plus one."""

    def __init__(self, clients: int) -> None:
        self.counts = torch.zeros(clients, dtype=torch.int64)

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Count, and move every parameter by what was counted."""
        self.counts[ids] += 1
        moved = 1e-3 * self.counts[ids] * (ids + 1)
        report = {"examples": ids + 1, "steps": self.counts[ids], "loss": moved}
        none, trained = torch.zeros_like(ids), self.counts[ids] % 2 == 1
        costs = Costs(
            Bytes(none + 100, none, none + 10), Bytes(7 * (ids + 1), none, none), trained,
            columns={"mood": moved.double()}, duration=torch.tensor(2.5, dtype=torch.float64),
        )  # fmt: skip
        return Reply(ids, task.model + moved[:, None], None, {}, report, task.authorised, costs=costs)

    def personal(self, model: Tensor) -> Tensor | None:
        """Every client is right as often as it was asked, in tenths."""
        return self.counts.double() / 10

    def settle(self, ids: list[int]) -> None:
        """Nothing waits."""

    def save(self) -> State:
        """The counts."""
        return {"counts": self.counts}

    def load(self, state: State) -> None:
        """Put them back."""
        self.counts = state["counts"].clone()

    def describe(self) -> dict[str, Any]:
        """A name."""
        return {"engine": "counting"}


def experiment(method: str = "fedavg") -> Experiment:
    """A few clients with devices and a small network."""
    model, fixed = {"name": "mlp", "settings": {"widths": [4]}}, {"clients": 6, "per_round": 3, "rounds": ROUNDS}
    return Experiment(method=method, model=model, fleet="table4", training={"epochs": 1}, **fixed)


def prepared(method: str, lossy: bool = False) -> Prepared:
    """A run on an engine of one's own that has met nobody; `lossy`: in a world that loses messages."""
    here = prepare(experiment(method))
    engine: Engine = Counting(here.inputs.setting.fleet.size)
    if lossy:
        engine = Simulated(engine, here.inputs.method, here.inputs.setting, channel=Bernoulli(up=0.3, down=0.3))
    return here._replace(engine=engine, trainer=None)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """A table without what a clock says."""
    rows = pq.ParquetFile(file).read().to_pylist()
    return [
        {name: v for name, v in row.items() if name not in ("wall_seconds", "evaluation_seconds", "personal_seconds")}
        for row in rows
    ]


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for its clock; tensors as bytes."""
    tensors = {f.name: load_file(f) for f in sorted(folder.rglob("*.safetensors")) if f"round-{ROUNDS}-" in str(f)}
    tensors["model"] = load_file(folder / "model.safetensors")
    plain = {file: {name: v.numpy().tobytes() for name, v in own.items()} for file, own in tensors.items()}
    return plain | {file: rows_of(folder / file) for file in ("rounds.parquet", "clients.parquet")}


def stop(row: dict[str, Any]) -> None:
    """Half way."""
    if row["round"] == STOP:
        raise KeyboardInterrupt


@pytest.mark.parametrize("lossy", [False, True], ids=["by itself", "in a world"])
@pytest.mark.parametrize("method", ["fedavg", "fedvarp"])
def test_a_resumed_run_is_the_straight_one(method: str, lossy: bool, tmp_path: Path) -> None:
    straight, again = prepared(method, lossy), prepared(method, lossy)
    play(experiment(method), straight, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        play(experiment(method), prepared(method, lossy), tmp_path / "run", stop)
    play(experiment(method), again, tmp_path / "run", resume=True, checkpoints=Checkpoints(rounds=1))
    assert rows_of(tmp_path / "run" / "rounds.parquet")[-1]["round"] == ROUNDS
    assert left(tmp_path / "run") == left(tmp_path / "straight")
    assert {"engine.safetensors", "server.safetensors", "model"} <= left(tmp_path / "run").keys()
    assert torch.equal(again.engine.save()["counts"], straight.engine.save()["counts"])
    assert lossy or again.engine.save()["counts"].sum() == 3 * ROUNDS, "the rounds before the stop are counted too"


def test_the_run_is_what_the_engine_did(tmp_path: Path) -> None:
    here, counts = prepared("fedavg"), torch.zeros(6, dtype=torch.int64)
    model = here.inputs.model.clone()
    result = play(experiment(), here, tmp_path / "run")
    clients = rows_of(tmp_path / "run" / "clients.parquet")
    sizes = here.inputs.setting.fleet.examples
    for row in rows_of(tmp_path / "run" / "rounds.parquet"):
        mine = [one for one in clients if one["round"] == row["round"]]
        ids = torch.tensor([one["client"] for one in mine])
        counts[ids] += 1
        moved, odd = 1e-3 * counts[ids] * (ids + 1), counts[ids] % 2 == 1
        model = model + (moved * (ids + 1)).sum() / (ids + 1).sum()  # FedAvg weighs by the examples that are reported
        assert row["bytes_down"] == 110 * len(ids)
        assert row["bytes_up"] == 7 * int((ids + 1).sum())
        assert row["virtual_seconds"] == 2.5
        assert row["examples_trained"] == int((experiment().training.epochs * sizes[ids] * odd).sum())
        assert row["personal_accuracy"] == pytest.approx(float((counts.double() / 10).mean()))
        assert [one["mood"] for one in mine] == pytest.approx(moved.tolist())
        assert [one["bytes_up"] for one in mine] == (7 * (ids + 1)).tolist()
    weights = torch.cat([value.flatten() for value in result.model.state_dict().values()])
    torch.testing.assert_close(weights, model)
    about = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert about["engine"] == {"engine": "counting"}


def test_every_engine_keeps_the_promise() -> None:
    from fedloom.engine.distributed import Distributed
    from fedloom.engine.local import Local
    from fedloom.engine.loop import Loop

    assert PROMISED == ["train", "personal", "settle", "save", "load", "describe"]
    assert [name for name in vars(Counting) if not name.startswith("_")] == PROMISED
    for engine in (Counting, Local, Loop, Distributed, Attacked, Wire, Simulated):
        for name in PROMISED:
            assert signature(getattr(engine, name)) == signature(getattr(Engine, name)), f"{engine.__name__}.{name}"
