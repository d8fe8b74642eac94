"""DepthFL against `depth_exits_tiny.json`: what exits learn from each other, and rounds with and without it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Examples, Setting
from fedloom.core.work import Work
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.methods.depthfl import depthfl
from fedloom.models.staged import Staged
from fedloom.parts.local.exits import Exits, divergence
from fedloom.parts.select.everyone import Everyone
from fedloom.round import play_round
from worlds import World, fleet_of, small


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "depth_exits_tiny.json").read_text())
    return found


def network() -> Staged:
    """The file's network."""
    widths = ((4, 5), (5, 5), (5, 4))
    return Staged([nn.Sequential(nn.Linear(*w), nn.ReLU()) for w in widths], [nn.Linear(w[1], 3) for w in widths])


def flat(setting: Setting, tensors: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Tensors by the file's names as a vector in our order, and which numbers it has."""
    parts, known = [], []
    for name, shape in zip(setting.layout.names, setting.layout.shapes):
        kind, stage, *_, last = name.split(".")
        theirs = f"{kind[0]}{int(stage) + 1}.{last}"
        parts.append(torch.tensor(tensors[theirs]) if theirs in tensors else torch.zeros(shape))
        known.append(torch.full(shape, theirs in tensors))
    return torch.cat([one.flatten() for one in parts]), torch.cat([one.flatten() for one in known])


@cache
def here() -> World:
    """The file's clients and first model."""
    clients, module = vectors()["data"], network()
    x, y = (torch.cat([torch.tensor(one[name]) for one in clients]) for name in "xy")
    sizes = [len(one["y"]) for one in clients]
    data, shards = Examples(x, y), Shards(list(torch.arange(sum(sizes)).split(sizes)), torch.device("cpu"))
    setting = Setting(fleet_of(data, shards), module, layout_of(module), classes(), data.x[:2])
    return World(setting, data, shards, flat(setting, vectors()["initial"])[0])


def test_divergence() -> None:
    case = vectors()["kl"]
    said = torch.tensor(case["prediction"], requires_grad=True)
    outputs = torch.stack([said, torch.tensor(case["target"])], 1)
    found = divergence(outputs, torch.full((len(said),), 1 / len(said)))[0, 1]
    found.backward()
    assert found.item() == pytest.approx(case["value"], abs=1e-6)
    torch.testing.assert_close(said.grad, torch.tensor(case["gradient"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", vectors()["consistency_weight"], ids=lambda case: str(case["round_from_0"]))
def test_ramp(case: dict[str, Any]) -> None:
    assert Exits().weight(case["round_from_0"] + 1) == pytest.approx(case["value"], abs=1e-6)


@pytest.mark.parametrize("engine", ["local", "loop"])
@pytest.mark.parametrize(("name", "distil"), [("depthfl_fedavg", False), ("depthfl_fedavg_distilled", True)])
def test_rounds(name: str, distil: bool, engine: str) -> None:
    case, world = vectors()[name], here()
    assert [one["depth"] for one in vectors()["data"]] == [1, 2, 3, 2]
    method = small(
        depthfl((1 / 3, 2 / 3, 1.0, 2 / 3), distil),
        select=Everyone(), work=Work(steps=case["steps"], batch=0),
        optimiser=Sgd(rate=case["rate"], weight_decay=case["weight_decay"]),
    )  # fmt: skip
    own = world.local(method) if engine == "local" else world.loop(method)
    model, memory = world.model, method.init(world.setting, world.model)
    for wanted in case["rounds"]:
        number = wanted["round_from_0"] + 1
        model, memory, task, reply = play_round(method, memory, model, world.setting, own, Chance(7, number))
        assert task.mask is not None
        for row, client in enumerate(wanted["clients"]):
            trained, known = flat(world.setting, client["trained"])
            assert (known | ~task.mask[row]).all()
            mine = task.mask[row]
            torch.testing.assert_close(reply.params[row, mine], trained[mine], rtol=0, atol=1e-6)
        torch.testing.assert_close(model, flat(world.setting, wanted["global"])[0], rtol=0, atol=1e-6)


def test_the_exits_own_losses_are_cross_entropies() -> None:
    world = here()
    outputs = world.setting.module.train()(world.data.x[:6])
    assert outputs.shape == (6, 3, 3)
    wanted = sum(F.cross_entropy(outputs[:, stage], world.data.y[:6], reduction="none") for stage in range(3))
    torch.testing.assert_close(world.setting.loss(outputs, world.data.y[:6]), wanted)
    mean = world.setting.module.eval()(world.data.x[:6])
    torch.testing.assert_close(mean, outputs.mean(1))
    last = replace(world.setting, module=network())
    assert last.stages[1] == ("blocks.1.0.weight", "blocks.1.0.bias", "exits.1.weight", "exits.1.bias")
