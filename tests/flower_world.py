"""A tiny fleet on a fake network and in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.chance import Chance
from fedloom.flower import client_app
from fedloom.flower.node.hosted_clients import build_clients
from fedloom.flower.server.play import serve
from fedloom.layout import flatten, layout_of
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import play
from fedloom.runs.result import Result
from flower_fake import FakeGrid

SIZES = (2, 30, 7, 12, 3, 4, 18, 5)
NODES = {11: {"clients": "0-2"}, 12: {"clients": "3,4"}, 13: {"clients": "5-7"}}


def tiny_data(folder: Path) -> str:
    """Write a data set whose clients have `SIZES` examples; the file's name."""
    chance, total = Chance(3, 0), sum(SIZES)
    pixels = chance.uniform("pixels", torch.arange(total + 20)[:, None], torch.arange(36))
    y = (chance.uniform("classes", torch.arange(total + 20)) * 4).long().numpy()
    x = pixels.view(-1, 1, 6, 6).numpy().astype(np.float32)
    file, owner = folder / "tiny.npz", np.repeat(np.arange(len(SIZES)), SIZES)
    np.savez(file, x_train=x[:total], y_train=y[:total], x_test=x[total:], y_test=y[total:], client_train=owner)
    return str(file)


def tiny(data: str, **changes: Any) -> Experiment:
    """An experiment of three rounds on that data."""
    values = {
        "data": data, "partition": "own", "clients": len(SIZES), "rounds": 3, "seed": 5, "device": "cpu",
        "split": (0.7, 0.0, 0.3), "fleet": "table4", "model": {"name": "mlp", "settings": {}},
    }  # fmt: skip
    return Experiment(**{**values, **changes})


def config_of(experiment: Experiment, **config: Any) -> dict[str, Any]:
    """The run config of an experiment."""
    text = json.dumps(experiment.model_dump(mode="json"))
    return {"experiment": text, "deadline": 30.0, "patience": 5.0, **config}


def fake(experiment: Experiment, **config: Any) -> FakeGrid:
    """A network with three nodes."""
    build_clients.cache_clear()
    return FakeGrid(client_app(), config_of(experiment, **config), {node: {**own} for node, own in NODES.items()})


def served(grid: FakeGrid, experiment: Experiment, **config: Any) -> Result:
    """Run an experiment on that network."""
    return serve(grid, config_of(experiment, **config), interval=0.005)  # type: ignore[arg-type]


def simulated(experiment: Experiment) -> Result:
    """Run an experiment in the simulator, without a simulated world."""
    prepared = prepare(experiment)
    wire = prepared.engine.engine if experiment.fleet.name != "none" else prepared.engine
    return play(experiment, prepared._replace(engine=wire))


def weights(result: Result) -> torch.Tensor:
    """The trained model's numbers [P]."""
    return flatten(result.model, layout_of(result.model))


def assert_same(ours: Result, theirs: Result, tolerance: float = 1e-5) -> None:
    """Models and rows of the table are equal."""
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=tolerance)
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        for name in ("round", "clients", "arrived", "rejected"):
            assert one[name] == other[name], name
        for name in ("score", "personal_score", "training_loss", "loss"):
            assert (one[name] is None) == (other[name] is None), name
            if one[name] is not None:
                assert abs(one[name] - other[name]) < 1e-4 * max(1, abs(other[name])), name
