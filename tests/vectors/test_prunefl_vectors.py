"""PruneFL against `prunefl_tiny.json`: reconfigurations by the published code, and by trying every subset."""

from __future__ import annotations

import json
from functools import cache
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.types import Setting
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.parts.mask.pruned_by_time import PrunedByTime
from worlds import world


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "prunefl_tiny.json").read_text())
    return found


class Net(nn.Module):
    """The file's layers."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(one, two) for one, two in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.c(torch.relu(self.b(torch.relu(self.a(x)))))
        return scores


def setting(*widths: int) -> Setting:
    """Around a network of these widths."""
    module = Net(*widths)
    return Setting(world("mlp").setting.fleet, module, layout_of(module), classes(), torch.zeros(2, widths[0]))


def flat(here: Setting, tensors: dict[str, Any], weights: bool = False) -> Tensor:
    """Tensors by name as a vector; of masks the biases are ones."""
    parts = []
    for name, shape in zip(here.layout.names, here.layout.shapes):
        key = name.removesuffix(".weight") if weights else name
        parts.append(torch.tensor(tensors[key]).flatten() if key in tensors else torch.ones(shape).flatten().bool())
    return torch.cat(parts)


@pytest.mark.parametrize("number", [0, 1])
def test_reconfiguration(number: int) -> None:
    case, here = vectors()["cases"][number], setting(6, 8, 5, 3)
    part = PrunedByTime(
        seconds=tuple(case["seconds_per_weight"]), constant=case["constant_seconds"], density=case["max_density"] or 1.0
    )
    squares = flat(here, case["squared_gradients"]).double()
    old, new = (flat(here, case[name], weights=True) for name in ("mask", "new_mask"))
    found = part.chosen(here, flat(here, case["weights"]), old, squares, case["prune_share"])
    assert torch.equal(found, new)
    assert not torch.equal(found, old)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_subset_reduces_more_per_second(seed: int) -> None:
    here, drawn = setting(2, 2, 2, 2), torch.Generator().manual_seed(seed)
    size = here.layout.total
    model, squares = torch.randn(size, generator=drawn), torch.rand(size, generator=drawn).double() ** 4
    weights = torch.cat([torch.arange(size)[span.place] for layer in here.layers for span in layer.weights])
    old = torch.ones(size, dtype=torch.bool)
    old[weights] = torch.rand(len(weights), generator=drawn) < 0.6
    seconds = (0.3, 0.1, 0.2)
    found = PrunedByTime(seconds=seconds, constant=0.7).chosen(here, model, old, squares, 0.5)
    t = torch.zeros(size).double()
    for layer, each in zip(here.layers, seconds):
        t[layer.weights[0].place] = each
    certain = PrunedByTime(seconds=seconds, constant=0.7).chosen(here, model, old, squares * 0, 0.5)
    rest = (~certain).nonzero().flatten().tolist()

    def worth(some: tuple[int, ...]) -> float:
        chosen = certain.index_fill(0, torch.tensor(some, dtype=torch.int64), True)
        return float(squares[chosen].sum() / (0.7 + t[chosen].sum()))

    best = max(map(worth, chain.from_iterable(combinations(rest, n) for n in range(len(rest) + 1))))
    assert worth(tuple(place for place in rest if found[place])) == pytest.approx(best, rel=1e-12)
    assert (certain <= found).all()


def test_nothing_is_removed_without_a_fraction_and_everything_kept_where_time_is_free() -> None:
    here = setting(6, 8, 5, 3)
    size = here.layout.total
    old, model, squares = torch.ones(size, dtype=torch.bool), torch.arange(size).float() - 40, torch.rand(size).double()
    assert PrunedByTime(seconds=(1, 1, 1), constant=0.1).chosen(here, model, old, squares * 0, 0.0).all()
    assert PrunedByTime(seconds=(1, 1, 1), constant=1e9).chosen(here, model, old, squares, 0.3).all()
    few = PrunedByTime(seconds=(1, 1, 1), constant=0.0).chosen(here, model, old, torch.ones(size).double(), 0.3)
    sizes = [span.stop - span.start for layer in here.layers for span in layer.weights]
    assert int((~few).sum()) == sum(int(0.3 * size) for size in sizes)
