"""FedSelect against `fedselect_tiny.json`: four rounds of three clients by the published code."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Examples, Setting
from fedloom.core.work import Work
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.method import Method
from fedloom.methods.fedselect import fedselect
from fedloom.parts.select.everyone import Everyone
from worlds import World, fleet_of, play, small, states_of


@cache
def vectors() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "fedselect_tiny.json").read_text())
    return found


class Net(nn.Module):
    """The file's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.h, self.fc = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.fc(torch.relu(self.h(x)))
        return scores


def flat(tensors: dict[str, Any]) -> Tensor:
    """Tensors by name as a vector, in the file's order, which is ours."""
    return torch.cat([torch.tensor(one).flatten() for one in tensors.values()])


@cache
def here() -> World:
    """The file's clients and first model."""
    clients = vectors()["data"]
    x, y = (torch.cat([torch.tensor(one[name]) for one in clients]) for name in "xy")
    sizes = [len(one["y"]) for one in clients]
    data, shards = Examples(x, y), Shards(list(torch.arange(sum(sizes)).split(sizes)), torch.device("cpu"))
    module = Net()
    assert list(vectors()["initial"]) == list(layout_of(module).names)
    setting = Setting(fleet_of(data, shards), module, layout_of(module), classes(), data.x[:2])
    return World(setting, data, shards, flat(vectors()["initial"]))


def made() -> Method:
    """FedSelect with the file's settings."""
    said = vectors()["settings"]
    assert (said["rounds"], said["first_mask_round"], said["full_batch"]) == (4, 1, True)
    return small(
        fedselect(said["rate_of_growth"], said["bound"], said["mask_every"]),
        select=Everyone(), optimiser=Sgd(rate=said["rate"]), work=Work(epochs=2 * said["local_epochs"], batch=0),
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_rounds(engine: str) -> None:
    method, world = made(), here()
    own = world.local(method) if engine == "local" else world.loop(method)
    run = play(world, method, own, rounds=4)
    for number, wanted in enumerate(vectors()["rounds"]):
        reply, clients = run.replies[number], wanted["clients"]
        assert reply.mask is not None
        used = torch.stack([flat(one["mask_used"]) for one in clients])
        assert torch.equal(~reply.mask, used)
        sent = torch.stack([flat(one["trained"]) for one in clients])
        torch.testing.assert_close(reply.params[~used], sent[~used], rtol=0, atol=1e-6)
        if "global_mean" in wanted:  # not of the last round
            sends = reply.mask.any(0)  # what all keep is 0 in the file and stays here; nobody reads it
            mean = flat(wanted["global_mean"])
            torch.testing.assert_close(run.models[number][sends], mean[sends], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_clients_after(rounds: int) -> None:
    method, world = made(), here()
    own = world.local(method)
    run = play(world, method, own, rounds)
    state, wanted = states_of(own, [0, 1, 2], world.model), vectors()["rounds"][rounds - 1]["clients"]
    trained, start, grown = (
        torch.stack([flat(one[name]) for one in wanted]) for name in ("trained", "start_of_next_round", "mask_next")
    )
    torch.testing.assert_close(state["own"], trained, rtol=0, atol=1e-6)
    served = method.local.personal(world.setting, run.model, state)
    torch.testing.assert_close(served, start, rtol=0, atol=1e-6)
    task = run.tasks[-1]
    left, _ = method.local.narrow(world.setting, torch.arange(3), task, state, [], Chance(1, rounds + 1))
    assert left is not None
    assert torch.equal(~left, grown)
