"""FedAvg, FedProx, SCAFFOLD and FedDyn against numbers that a public code gave; FedDC against its formulas.

`feddyn_tiny_linear.json` holds inputs and results of the code of alpemreacar/FedDyn: softmax regression from 4 numbers
to 3 classes, 4 clients of 6, 10, 8 and 4 examples, full batches, 3 steps, 3 rounds, for two rates of participation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.core.optimiser import Sgd
from fedloom.core.types import Examples, Setting
from fedloom.core.work import Work
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddc import feddc
from fedloom.methods.feddyn import feddyn
from fedloom.methods.fedprox import fedprox
from fedloom.methods.scaffold import scaffold
from pieces import Forced
from worlds import World, fleet_of, play, states_of

METHODS = {
    "FedAvg": fedavg(),
    "FedProx": fedprox(mu=0.5),
    "SCAFFOLD": scaffold(),
    "FedDyn": feddyn(alpha=0.05),
}
RATE, DECAY, WEIGHT_DECAY, STEPS = 0.1, 0.998, 0.001, 3


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "feddyn_tiny_linear.json").read_text())
    return found


@cache
def here() -> World:
    """The file's fleet and first model."""
    x, y = ([torch.tensor(one) for one in vectors()[name]] for name in "xy")
    data = Examples(torch.cat(x), torch.cat(y).flatten().long())
    shards = Shards(list(torch.arange(len(data.y)).split([len(one) for one in x])), torch.device("cpu"))
    module = nn.Linear(4, 3)
    setting = Setting(fleet_of(data, shards), module, layout_of(module), classes(), data.x[:2])
    return World(setting, data, shards, torch.tensor(vectors()["init"]))


def tuned(method: Method, rounds: list[dict[str, Any]]) -> Method:
    """The method with the file's optimiser, work and selections."""
    return replace(
        method,
        select=Forced(tuple(tuple(one["selected"]) for one in rounds)),
        optimiser=Sgd(rate=RATE, decay=DECAY, weight_decay=WEIGHT_DECAY, clip=10.0),
        work=Work(epochs=STEPS, batch=0),
    )


def near(ours: Tensor, theirs: Any) -> None:
    """Within 1e-6 of the file."""
    expected = torch.as_tensor(np.asarray(theirs), dtype=torch.float64)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-6)


def test_the_file_is_what_the_tests_assume() -> None:
    setup = vectors()["setup"]
    assert (setup["lr"], setup["lr_decay_per_round"], setup["weight_decay"]) == (RATE, DECAY, WEIGHT_DECAY)
    assert (setup["epochs"], setup["batch"], setup["sizes"]) == (STEPS, "full", here().shards.sizes)
    assert vectors()["runs"]["FedProx_act1.0"]["hyper"] == {"mu": 0.5}
    assert vectors()["runs"]["FedDyn_act1.0"]["hyper"] == {"alpha_coef": 0.05}


@pytest.mark.parametrize("kind", ["local", "loop"])
@pytest.mark.parametrize("participation", ["1.0", "0.5"])
@pytest.mark.parametrize("name", METHODS)
def test_meets_the_reference(name: str, participation: str, kind: str) -> None:
    rounds = vectors()["runs"][f"{name}_act{participation}"]["rounds"]
    method = tuned(METHODS[name], rounds)
    for number, expected in enumerate(rounds, 1):
        engine = here().loop(method) if kind == "loop" else here().local(method)
        run = play(here(), method, engine, rounds=number)
        reply, ids = run.replies[-1], [str(client) for client in expected["selected"]]
        near(run.tasks[-1].model, expected["client_start"][ids[0]])
        near(reply.params, [expected["client_end"][client] for client in ids])
        near(run.model, expected["cloud" if name == "FedDyn" else "avg_selected"])
        states = states_of(engine, [0, 1, 2, 3], here().model)
        if name == "SCAFFOLD":
            *controls, control = expected["state_param_list"]
            near(states["control"], controls)
            near(run.memory["local"]["control"], control)
        if name == "FedDyn":
            near(states["drift"], expected["local_param_list"])
            near(run.memory["local"]["drift"], np.mean(expected["local_param_list"], 0))


# FedDC, written out from its formulas


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of softmax regression; `w` is the matrix row by row, then the bias."""
    scores = x @ w[:12].reshape(3, 4).T + w[12:]
    odds = np.exp(scores - scores.max(1, keepdims=True))
    error = (odds / odds.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
    return np.concatenate(((error.T @ x).reshape(-1), error.sum(0)))


def feddc_by_hand(
    alpha: float, cohorts: list[list[int]]
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Models after every round, every client's drift and control, and the server's control."""
    xs = [np.array(one) for one in vectors()["x"]]
    ys = [np.array(one).reshape(-1).astype(int) for one in vectors()["y"]]
    sizes = np.array([len(one) for one in ys]) / np.mean([len(one) for one in ys])
    model = np.array(vectors()["init"])
    drift, control, server = np.zeros((4, 15)), np.zeros((4, 15)), np.zeros(15)
    models = []
    for number, cohort in enumerate(cohorts):
        rate, ends, changes = RATE * DECAY**number, [], []
        for i in cohort:
            w = model.copy()
            for _ in range(STEPS):
                step = gradient(w, xs[i], ys[i])
                step = step + alpha / sizes[i] * (w - (model - drift[i])) - control[i] + server / sizes[i]
                w = w - rate * (step + WEIGHT_DECAY * w)
            new = control[i] - server / sizes[i] - (w - model) / (STEPS * RATE)
            changes.append((new - control[i]) * sizes[i])
            drift[i] += w - model
            control[i] = new
            ends.append(w)
        server = server + np.sum(changes, 0) / 4
        model = np.mean(ends, 0) + drift.mean(0)
        models.append(model)
    return models, drift, control, server


@pytest.mark.parametrize("kind", ["local", "loop"])
@pytest.mark.parametrize("participation", ["1.0", "0.5"])
def test_feddc_follows_its_formulas(participation: str, kind: str) -> None:
    rounds = vectors()["runs"][f"FedAvg_act{participation}"]["rounds"]
    method = tuned(feddc(alpha=0.05), rounds)
    engine = here().loop(method) if kind == "loop" else here().local(method)
    run = play(here(), method, engine)
    models, drift, control, server = feddc_by_hand(0.05, [one["selected"] for one in rounds])
    for ours, theirs in zip(run.models, models, strict=True):
        near(ours, theirs)
    states = states_of(engine, [0, 1, 2, 3], here().model)
    near(states["drift"], drift)
    near(states["control"], control)
    near(run.memory["local"]["control"], server)
    near(run.memory["local"]["drift"], drift.mean(0))
