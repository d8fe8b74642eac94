"""Fleets and first models of files with inputs and results of public codes, and what their tests share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.types import Examples, Setting
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of, load
from worlds import World, fleet_of


@cache
def vectors(name: str) -> dict[str, Any]:
    """The file of this name."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / f"{name}.json").read_text())
    return found


def fleet_in(file: dict[str, Any], module: nn.Module) -> World:
    """The file's clients and first model, for a network with as many numbers."""
    x, y = ([torch.tensor(one) for one in file[name]] for name in "xy")
    data = Examples(torch.cat(x), torch.cat([one.flatten() for one in y]).long())
    shards = Shards(list(torch.arange(len(data.y)).split([len(one) for one in x])), torch.device("cpu"))
    layout, model = layout_of(module), torch.tensor(file["model"])
    load(module, layout, model)  # clients begin with it
    return World(Setting(fleet_of(data, shards), module, layout, classes(), data.x[:2]), data, shards, model)


def near(ours: Tensor, theirs: Any) -> None:
    """Within 1e-6 of the file."""
    expected = torch.as_tensor(np.asarray(theirs), dtype=torch.float64)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-6)
