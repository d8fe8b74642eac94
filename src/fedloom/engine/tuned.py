"""Clients' models as they are after more training on their own examples, of which nothing is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rule import Tuning
from fedloom.core.types import Task, listed
from fedloom.core.work import Work
from fedloom.engine.clients import Clients
from fedloom.engine.facts import facts_of
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.plan import plan_steps
from fedloom.engine.steps import Start, take_steps
from fedloom.method import Method


class Tuner:
    """Trains clients' own models further, in the same order of examples at every evaluation."""

    def __init__(self, clients: Clients, gradient: Gradient, tuning: Tuning) -> None:
        was = clients.method
        work = Work(epochs=tuning.epochs, batch=was.work.batch)
        method = Method(local=tuning.rule, optimiser=was.optimiser, work=work)
        self.clients = Clients(method, clients.setting, clients.data, clients.shards)
        self.gradient, self.plan = gradient, plan_steps(facts_of(self.clients, gradient, sliced=False))

    def __call__(self, own: Tensor, ids: list[int]) -> Tensor:
        """The models [C, P] of clients `ids` after their training."""
        method, setting, model = self.clients.method, self.clients.setting, own[0]
        steps = method.work.steps_of([self.clients.shards.sizes[client] for client in ids])
        order = sorted(range(len(ids)), key=lambda place: -steps[place])
        turn = [ids[place] for place in order]
        here, at = listed(turn, own.device), listed(order, own.device)
        every = torch.ones(len(ids), dtype=torch.bool, device=own.device)
        task = Task(
            model, None, None, every.to(own.dtype), every, {}, 0, method.optimiser.rate, method.optimiser.rate,
            setting.layout.trained, here,
        )  # fmt: skip
        chunk = self.clients.gather(here, turn, list(range(len(ids))), task, Chance(0, 0, own.device), ())
        start = Start(method, setting, self.gradient, self.plan, chunk.data, chunk.task, {}, {}, own[at], chunk.batches)
        params, _ = take_steps(start)
        return torch.empty_like(params).index_copy(0, at, params)
