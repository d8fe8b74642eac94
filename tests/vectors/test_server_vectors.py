"""Server optimisers against Flower's strategies, FedNova against its authors' code.

`server_momentum_adam.json`: 15 numbers, 5 rounds of given changes. `fednova_tiny_linear.json`: softmax regression, four
clients with different numbers of full-batch steps, 3 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Reply
from fedloom.core.work import Batches, Work
from fedloom.methods.fednova import fednova
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerAdam, ServerOptimiser, ServerSgd
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.parts.select.everyone import Everyone
from linear_vectors import fleet_in, near, vectors
from worlds import play

SERVER: dict[str, tuple[ServerOptimiser, dict[str, str]]] = {
    "fedavgm momentum 0.9 lr 1": (ServerSgd(1.0, 0.9), {"velocity": "momentum_vector"}),
    "fedavgm momentum 0.9 lr 0.3": (ServerSgd(0.3, 0.9), {"velocity": "momentum_vector"}),
    "fedavgm momentum 0 lr 0.5": (ServerSgd(0.5), {}),
    "fedadam eta 0.1 b1 0.9 b2 0.99 tau 1e-3": (ServerAdam(0.1, correct="flower"), {"first": "m_t", "second": "v_t"}),
}


@pytest.mark.parametrize("name", SERVER)
def test_server_optimisers(name: str) -> None:
    file, (optimiser, moments) = vectors("server_momentum_adam"), SERVER[name]
    here = fleet_in(vectors("fednova_tiny_linear"), nn.Linear(4, 3).double())
    model, part = torch.tensor(file["model"], dtype=torch.float64), Stepped(CoverageMean(), optimiser)
    memory, examples = part.init(here.setting, model), torch.tensor(file["examples"])
    rounds = zip(file["selected"], file["changes"], file["runs"][name]["rows"])
    for selected, changes, expected in rounds:
        ids = torch.tensor(selected)
        rows = model + torch.tensor(changes, dtype=torch.float64)[ids]
        report = {"examples": examples[ids]}
        reply = Reply(ids, rows, None, {}, report, torch.ones(len(ids), dtype=torch.bool))
        model, memory = part(memory, here.setting, model, reply)
        near(model, expected["model"])
        for ours, theirs in moments.items():
            sign = -1 if theirs == "momentum_vector" else 1  # Flower's is of the gradient, which points the other way
            near(sign * memory[f"step.{ours}"], expected[theirs])


@dataclass(frozen=True)
class Listed(Work):
    """Full-batch steps of clients by round, one client at a time."""

    table: tuple[tuple[int, ...], ...] = ()

    def plan(self, ids: Tensor, examples: Tensor, sizes: list[int], chance: Chance) -> Batches:
        """As many as the table says."""
        steps = self.table[chance.round - 1][int(ids[0])]
        return Work(steps=steps, batch=0).plan(ids, examples, sizes, chance)


NOVA: dict[str, dict[str, Any]] = {
    name: run["settings"] for name, run in vectors("fednova_tiny_linear")["runs"].items()
}


@pytest.mark.parametrize("name", NOVA)
def test_fednova(name: str) -> None:
    file, settings = vectors("fednova_tiny_linear"), NOVA[name]
    here, expected = fleet_in(file, nn.Linear(4, 3)), file["runs"][name]["rounds"]
    method = fednova(settings["momentum"], settings["mu"])
    aggregate = method.aggregate
    if settings["gmf"]:
        aggregate = Stepped(aggregate, ServerSgd(momentum=settings["gmf"]))
    method = replace(
        method,
        aggregate=aggregate,
        select=Everyone(),
        optimiser=Sgd(rate=file["lr"], momentum=settings["momentum"], weight_decay=settings["weight_decay"]),
        work=Listed(table=tuple(tuple(own) for own in file["steps"])),
    )
    run = play(here, method, here.loop(method))
    for number, (reply, model, theirs) in enumerate(zip(run.replies, run.models, expected)):
        lengths = fednova(settings["momentum"], settings["mu"]).aggregate.lengths(
            reply.report["steps"].double(), reply.rate
        )
        assert reply.report["steps"].tolist() == file["steps"][number]
        near(lengths, theirs["a"])
        near(reply.params, theirs["last"])
        near(model, theirs["model"])
