"""Steps by our kernels for chains of linear layers against the plain walk. On a GPU, or with TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

import fedloom.engine.course as course
import fedloom.engine.ways as ways
from fedloom.chance import Chance
from fedloom.data.dataset import Dataset
from fedloom.engine.replay import Replays
from fedloom.experiment import Experiment
from fedloom.round import play_round
from fedloom.simulation import Simulation, prepare

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAVY = {"momentum": 0.5, "weight_decay": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"method": "fedavg"},
    "decay": {"method": "fedavg", "training": {"weight_decay": 1e-2}},
    "momentum": {"method": "fedavg", "training": HEAVY},
    "wide": {"method": "fedavg", "training": {"batch": 70}},  # more examples than a tile has rows
    "lone": {"method": "fedavg", "training": {"batch": 1}},
    "frozen": {"method": "fedspu", "training": HEAVY},
    "masked": {"method": "federated-dropout", "execution": "masked"},
    "sliced": {"method": "federated-dropout", "training": HEAVY},
    "ordered": {"method": "fjord", "training": {"weight_decay": 1e-2}},
    "dealt": {"method": "ist"},
    "one size": {"method": {"name": "federated-dropout", "settings": {"shares": (0.5,)}}},
}


def _prepared(case: dict[str, Any]) -> Simulation:
    """A few examples, dealt unequally, so that clients take unequally many steps."""
    training = {"epochs": 1, "batch": 10, **case.get("training", {})}
    draw, count = np.random.default_rng(0), 3 * max(10, training["batch"])
    y = draw.integers(0, 3, count)
    x = (draw.standard_normal((count, 1, 3, 7)) + y[:, None, None, None]).astype(np.float32)
    data = Dataset("few", x, y, x[:9], y[:9], None, None, 3, 0)
    settings = {"model": "mlp", "clients": 3, "per_round": 3, "partition": "dirichlet"}
    return prepare(Experiment(device=DEVICE, **{**settings, **case, "training": training}), data=data)


def _played(here: Simulation) -> tuple[Tensor, Tensor]:
    """The model after two rounds, and the second round's losses."""
    here.engine.walk = Replays(capture=False)
    model, memory = here.model, here.method.init(here.setting, here.model)
    for number in (1, 2):
        chance = Chance(0, number, model.device)
        model, memory, _, reply = play_round(here.method, memory, model, here.setting, here.engine, chance)
    return model, reply.report["loss"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_take_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(ways, "own_kernels", lambda device: False)
    wanted = _played(_prepared(CASES[name]))
    monkeypatch.setattr(ways, "own_kernels", lambda device: True)
    linked = course.Course._linked
    monkeypatch.setattr(course.Course, "_linked", lambda self: made.append(linked(self)) or made[-1])
    found = _played(_prepared(CASES[name]))
    assert made
    assert all(one is not None for one in made)
    assert {one.course.narrow is not None for one in made} == {name in ("sliced", "ordered", "dealt", "one size")}
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_dropout_breaks_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "own_kernels", lambda device: True)
    here = _prepared({"method": "fedavg", "model": "ra-mlp"})
    here.engine.walk = walk = Replays(capture=False)
    play_round(here.method, here.method.init(here.setting, here.model), here.model, here.setting, here.engine,
               Chance(0, 1, here.model.device))  # fmt: skip
    assert [one.linked for one in walk._courses.values()] == [None]
