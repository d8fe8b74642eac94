"""FedDD against `feddd_tiny.json`: Eq. 4 and scores of a public code, Eq. 20 and five programmes solved elsewhere.

The network is a convolution (2 to 4 channels, 3x3), and dense layers 6-5 and 5-3. Both public and independent scores
are of weights without biases, so that the network here has none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Reply, Setting, Task
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.budget import Fleet, by_filling, by_linear_programme
from fedloom.parts.upload.importance import Importance
from fedloom.round import read_unsent_as_unchanged
from worlds import world


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "feddd_tiny.json").read_text())
    return found


def flat(tensors: dict[str, Any], biases: bool = True) -> Tensor:
    """The file's tensors as one vector, in its order."""
    return torch.cat([torch.tensor(v).flatten() for name, v in tensors.items() if biases or "weight" in name])


class Bare(nn.Module):
    """The file's layers without biases; the convolution gives 4 of the dense layer's 6 inputs, the image 2."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(2, 4, 3, bias=False)
        self.f1 = nn.Linear(6, 5, bias=False)
        self.f2 = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images [B, 2, 3, 3]."""
        seen = torch.relu(self.c(x)).flatten(1)
        joined = torch.cat((seen, x[:, 0, 0, :2]), 1)
        scores: Tensor = self.f2(torch.relu(self.f1(joined)))
        return scores


def setting() -> Setting:
    """Around the bare network."""
    module = Bare()
    return Setting(world("mlp").setting.fleet, module, layout_of(module), classes(), torch.zeros(2, 2, 3, 3))


def test_equation_4() -> None:
    case = vectors()["eq4_aggregation"]
    model, clients = flat(case["before"]), case["clients"]
    reply = Reply(
        ids=torch.arange(len(clients)),
        params=torch.stack([flat(one["after"]) for one in clients]),
        mask=torch.stack([flat(one["mask"]) for one in clients]).bool(),
        extras={},
        report={"examples": torch.tensor([one["m"] for one in clients])},
        arrived=torch.ones(len(clients), dtype=torch.bool),
    )
    new, _ = CoverageMean()({}, setting(), model, read_unsent_as_unchanged(model, reply))
    torch.testing.assert_close(new, flat(case["global_after"]), rtol=0, atol=1e-6)
    unsent = ~reply.mask.any(0)  # type: ignore[union-attr]
    assert unsent.any()
    assert torch.equal(new[unsent], model[unsent])


def scores(part: Importance) -> list[OrderedDict[str, Tensor]]:
    """Of every client's rows, by layer."""
    case, here = vectors()["eq4_aggregation"], setting()
    first = flat(case["before"], biases=False).expand(len(case["clients"]), -1)
    last = torch.stack([flat(one["after"], biases=False) for one in case["clients"]])
    share = torch.tensor([1 - one["dropout"] for one in case["clients"]], dtype=torch.float64)
    task = Task(first[0], None, None, share, share > 0, {}, 2, 0.1, 0.1, len(first[0]))
    found = part.scores(here, task, first, last, Chance(0, 2))
    return [OrderedDict(zip(("c", "f1", "f2"), own.split([4, 5, 3]))) for own in found]


def test_importance_of_single_numbers() -> None:
    expected = vectors()["importance"]["independent_eq20_elementwise_weight_only"]
    for norm in ("l1", "l2"):
        for ours, theirs in zip(scores(Importance(norm=norm, floor=1e-12)), expected, strict=True):  # type: ignore[arg-type]
            for layer, found in ours.items():
                torch.testing.assert_close(found, torch.tensor(theirs[layer][norm]), rtol=1e-5, atol=1e-6)


def test_importance_of_whole_rows() -> None:
    for ours, one in zip(
        scores(Importance(norm="l1", mode="aggregate")), vectors()["eq4_aggregation"]["clients"], strict=True
    ):
        for layer, found in ours.items():
            torch.testing.assert_close(found, torch.tensor(one["channel_score"][layer]), rtol=1e-5, atol=1e-6)


def test_rows_that_the_public_code_sends() -> None:
    case, here = vectors()["eq4_aggregation"], setting()
    for one in case["clients"]:
        first, last = (flat(one_, biases=False)[None] for one_ in (case["before"], one["after"]))
        share = torch.tensor([1 - one["dropout"]], dtype=torch.float64)
        task = Task(first[0], None, None, share, share > 0, {}, 2, 0.1, 0.1, first.shape[1])
        mask = Importance(norm="l1", mode="aggregate")(here, task, {}, first, last, Chance(0, 2))
        assert mask is not None
        theirs = {name: torch.tensor(one["mask"][f"{name}.weight"]) for name in ("c", "f1", "f2")}
        for name, own in here.layout.split(mask[0]).items():
            kept = theirs[name.removesuffix(".weight")].bool()
            halves = (len(kept) * share + 0.5).floor()  # they round to even, we half up
            if int(kept.flatten(1).any(1).sum()) == int(halves):
                assert torch.equal(own, kept)


@pytest.mark.parametrize("number", range(5))
def test_programmes(number: int) -> None:
    case = vectors()["allocation_lp"][number]
    size, up, down, compute, told = (
        torch.tensor(case[name], dtype=torch.float64) for name in ("U_params", "r_up", "r_down", "t_cmp", "re")
    )
    bits = case["bits_per_param"] * size
    fleet = Fleet(size, compute, bits / up + bits / down, case["delta"] * told)
    for solve in (by_filling, by_linear_programme):
        share = solve(fleet, case["A_server"], 1 - case["D_max"])
        objective = fleet.slowest(share) + case["delta"] * (told * (1 - share)).sum()
        assert float(objective) == pytest.approx(case["objective"], rel=1e-9)
        assert float((size * share).sum() / size.sum()) == pytest.approx(case["A_server"])
        assert float(share.min()) >= 1 - case["D_max"] - 1e-9
        assert float(share.max()) <= 1 + 1e-12
