"""FIARSE against `fiarse_tiny.json`: two rounds of the published code, and of its functions with the factor acting."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedloom.core.optimiser import Sgd
from fedloom.core.types import Examples, Setting, Task
from fedloom.core.work import Work
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.methods.fiarse import Thresholded, fiarse
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.select.everyone import Everyone
from worlds import World, fleet_of, play, small


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "fiarse_tiny.json").read_text())
    return found


@cache
def here() -> World:
    """The file's clients and first model."""
    widths = (4, 6, 5, 5, 4, 4, 3)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    module, clients = nn.Sequential(*layers[:-1]), vectors()["data"]
    data = Examples(
        torch.cat([torch.tensor(one["x"]) for one in clients]), torch.cat([torch.tensor(one["y"]) for one in clients])
    )
    sizes = [len(one["y"]) for one in clients]
    shards = Shards(list(torch.arange(sum(sizes)).split(sizes)), torch.device("cpu"))
    setting = Setting(fleet_of(data, shards), module, layout_of(module), classes(), data.x[:2])
    return World(setting, data, shards, torch.tensor(vectors()["initial"]))


@pytest.mark.parametrize("engine", ["local", "loop"])
@pytest.mark.parametrize(("rule", "factor"), [("official", False), ("equation", True)])
def test_rounds(rule: str, factor: bool, engine: str) -> None:
    method = small(
        fiarse(tuple(vectors()["shares"]), factor=factor, exact_cut=True, count="changed"),
        select=Everyone(), optimiser=Sgd(rate=0.1), work=Work(steps=3, batch=0),
    )  # fmt: skip
    world = here()
    run = play(world, method, world.local(method) if engine == "local" else world.loop(method), rounds=2)
    for number, wanted in enumerate(vectors()["model_wise"][rule]):
        reply, before = run.replies[number], run.tasks[number].model
        ends = torch.stack([torch.tensor(one["end"]) for one in wanted["clients"]])
        masks = torch.tensor([one["mask"] for one in wanted["clients"]])
        mask = run.tasks[number].mask
        assert mask is not None
        assert torch.equal(mask, masks)
        torch.testing.assert_close(torch.where(mask, reply.params, 0), torch.where(masks, ends, 0), rtol=0, atol=1e-6)
        torch.testing.assert_close(run.models[number], torch.tensor(wanted["global"]), rtol=0, atol=1e-6)
        by_mask, _ = CoverageMean("uniform")({}, world.setting, before, reply)
        independent = torch.tensor(wanted["global_by_mask_independent"])
        torch.testing.assert_close(by_mask, independent, rtol=0, atol=1e-6)
        assert not torch.equal(independent, torch.tensor(wanted["global"]))  # some neurons are dead


@pytest.mark.parametrize("rule", ["official", "equation"])
def test_factor(rule: str) -> None:
    case = vectors()["factor"]
    weights, upstream = torch.tensor(case["weights"]), torch.tensor(case["upstream"])
    thresholded, task = Thresholded(factor=rule == "equation"), at(torch.tensor([case["threshold"]]))
    view = thresholded.view(task, weights[None])[0]
    torch.testing.assert_close(view, torch.tensor(case["effective"]), rtol=0, atol=1e-6)
    found = thresholded.correct(task, {}, weights[None], weights[None], upstream[None])[0]
    torch.testing.assert_close(found, torch.tensor(case[f"gradient_{rule}"]), rtol=0, atol=1e-6)


def test_a_cut_off_of_zero_changes_nothing() -> None:
    case = vectors()["factor"]["threshold_zero"]
    weights, upstream = torch.tensor([case["weights"]]), torch.tensor([case["upstream"]])
    task = at(torch.tensor([1.0]))._replace(share=torch.ones(1))
    found = Thresholded().correct(task, {}, weights, weights, upstream)
    assert torch.equal(found, torch.tensor([case["gradient_equation"]]))


def at(cut: torch.Tensor) -> Task:
    """A task whose least magnitude is the cut-off."""
    none = torch.zeros(1)
    groups = {"groups": torch.ones(1, 1, dtype=torch.int32), "cuts": torch.zeros(1, 2, dtype=torch.int32)}
    return Task(cut, None, None, none, none.bool(), groups, 1, 0.1, 0.1, 1)
