"""Sparse masks against `fedpruning_tiny.json`: densities of layers, step sizes, first masks, prune and grow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.sparsity import Sparsity, exchanged, places_of, prunable
from fedloom.core.types import Setting
from fedloom.goals import classes
from fedloom.layout import layout_of
from worlds import world


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "fedpruning_tiny.json").read_text())
    return found


class Net(nn.Module):
    """The file's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(2, 4, 3), nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Never run here."""
        raise NotImplementedError


@cache
def setting() -> Setting:
    """Around the file's layers."""
    module = Net()
    return Setting(world("mlp").setting.fleet, module, layout_of(module), classes(), torch.zeros(2, 2, 5, 5))


def flat(tensors: dict[str, Any]) -> Tensor:
    """Tensors by name as a vector; ones where none is given."""
    found = []
    for name, shape in zip(setting().layout.names, setting().layout.shapes):
        found.append(torch.tensor(tensors[name]).flatten() if name in tensors else torch.ones(shape).flatten())
    return torch.cat([one.to(found[0].dtype) for one in found])


@pytest.mark.parametrize("number", range(len(vectors()["densities"])))
def test_densities(number: int) -> None:
    case = vectors()["densities"][number]
    assert setting().layout.trained == case["numbers"]
    kind = case["distribution"].lower()
    found = Sparsity(case["target"], kind).densities(setting())
    names = [span.name for span in prunable(setting())]
    assert found == pytest.approx([case["density"][name] for name in names], abs=1e-6)


@pytest.mark.parametrize("case", vectors()["decay"], ids=lambda case: str(case["t"]))
def test_step_size(case: dict[str, Any]) -> None:
    after = case["t"] > case["T_end"]  # the file's cosine rises again; ours stays at 0
    wanted = 0.0 if after else case["value"]
    assert Sparsity(alpha=case["alpha"], until=case["T_end"]).part(case["t"] + 1) == pytest.approx(wanted)


def test_counts_of_the_first_mask() -> None:
    """The file's mask is not of the largest of its weights, so that only its counts are compared."""
    case = vectors()["initial"]

    @dataclass(frozen=True)
    class Given(Sparsity):
        """The file's densities."""

        def densities(self, setting: Setting) -> list[float]:
            return [case["density"][span.name] for span in prunable(setting)]

    model, wanted = flat(case["weights"]), flat(case["mask"]).bool()
    found = Given().largest(setting(), model)
    for span in prunable(setting()):
        assert int(found[span.place].sum()) == int(wanted[span.place].sum())
        size = model[span.place].abs()
        assert size[found[span.place]].min() >= size[~found[span.place]].max()


@pytest.mark.parametrize("case", vectors()["prune_and_grow"], ids=lambda case: str(case["t"]))
def test_prune_and_grow(case: dict[str, Any]) -> None:
    schedule = Sparsity(alpha=case["alpha"], until=case["T_end"])
    weights, gradients, mask = flat(case["weights"]), flat(case["gradients"]), flat(case["mask"]).bool()
    rows = [one[None] for one in (weights, mask, gradients)]
    places = places_of(setting(), weights.device)
    found = exchanged(rows[0], rows[1], rows[2], places, schedule.part(case["t"] + 1))[0]
    assert torch.equal(found, flat(case["new_mask"]).bool())
    for span in prunable(setting()):
        assert int((mask[span.place] & ~found[span.place]).sum()) <= case["moved"][span.name]
        assert int(found[span.place].sum()) == int(mask[span.place].sum())
