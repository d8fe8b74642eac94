"""AdaptiveFL against `adaptivefl_tiny.json`: sizes of VGG16's pool, both tables after every event, one aggregation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.pool import Pool
from fedloom.core.types import Reply, Setting
from fedloom.core.unsent import read_unsent_as_unchanged
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.select.by_success import BySuccess
from worlds import world


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "adaptivefl_tiny.json").read_text())
    return found


def vgg16() -> nn.Module:
    """VGG16 with batch norm for CIFAR-10."""
    layers, inputs = list[nn.Module](), 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    dense = [nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def test_sizes_of_the_pool() -> None:
    wanted, module = vectors()["pools"]["vgg16_cifar10"], vgg16()
    assert wanted["first_layers_kept_whole"] == [4, 6, 8]
    setting = Setting(world("mlp").setting.fleet, module, layout_of(module), classes(), torch.zeros(2, 3, 32, 32))
    pool = Pool(tuple(wanted["widths"][:2]))
    assert setting.neurons.parameters(pool.keeps(setting.neurons)).tolist() == [
        one["parameters"] for one in wanted["models"]
    ]
    assert pool.level(torch.arange(7)).tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_tables() -> None:
    case, select = vectors()["tables"], BySuccess(Pool())
    clients = len(case["resource_table"])
    success, asked = torch.ones(clients, 7, dtype=torch.int64), torch.ones(clients, 3, dtype=torch.int64)
    sizes = torch.tensor(case["model_sizes"]).double()
    for event in case["events"]:
        at, sent = torch.tensor([event["client"]]), torch.tensor([event["dispatched"]])
        held = torch.minimum(sent, select.fitting(sizes, torch.tensor([event["resource"]]).double()))
        assert held.tolist() == [event["returned"]]
        success[at], asked[at] = select.counted(success[at], asked[at], sent, held)
        assert success[at[0]].tolist() == event["resource_table"]
        assert asked[at[0]].tolist() == event["count_table"]
    assert success.tolist() == case["resource_table"]
    assert asked.tolist() == case["count_table"]
    found = select.weights({"success": success, "asked": asked})
    torch.testing.assert_close(found, torch.tensor(case["reward"]).double(), rtol=0, atol=1e-6)


class Net(nn.Module):
    """The file's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.c(torch.relu(self.b(torch.relu(self.a(x)))))
        return scores


def test_aggregation() -> None:
    case, module = vectors()["aggregation"], Net()
    setting = Setting(world("mlp").setting.fleet, module, layout_of(module), classes(), torch.zeros(2, 3))

    def flat(tensors: dict[str, Any]) -> Tensor:
        return torch.cat([torch.tensor(tensors[name]).flatten() for name in setting.layout.names])

    model, clients, params, masks = flat(case["global"]), case["clients"], [], []
    for one in clients:
        first, second = one["widths"]
        keep = torch.cat([torch.arange(6) < first, torch.arange(5) < second])
        masks.append(setting.neurons.expand(keep))
        whole = {n: torch.full(s, torch.nan) for n, s in zip(setting.layout.names, setting.layout.shapes)}
        for name, values in one["state"].items():
            part = torch.tensor(values)
            whole[name][tuple(slice(size) for size in part.shape)] = part
        params.append(torch.cat([tensor.flatten() for tensor in whole.values()]))
        assert params[-1][masks[-1]].isfinite().all()
    reply = Reply(
        ids=torch.arange(len(clients)), params=torch.stack(params), mask=torch.stack(masks), extras={},
        report={"examples": torch.tensor([one["examples"] for one in clients])},
        arrived=torch.ones(len(clients), dtype=torch.bool),
    )  # fmt: skip
    new, _ = CoverageMean()({}, setting, model, read_unsent_as_unchanged(model, reply))
    torch.testing.assert_close(new, flat(case["new"]), rtol=0, atol=1e-6)


def test_rooms_and_networks_that_fit() -> None:
    sizes = torch.tensor([0.1, 0.2, 0.5, 1.0]).double()
    found = BySuccess.fitting(sizes, torch.tensor([0.05, 0.1, 0.3, 0.99, 2.0]).double())
    assert found.tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [{"widths": (0.5, 0.4)}, {"widths": (1.0,)}, {"whole": ()}, {"whole": (0.5, 0.1)}])
def test_wrong_pools_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected rising"):
        Pool(**wrong)
