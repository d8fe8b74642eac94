"""The engine that trains one client after another in plain PyTorch: the oracle for all others."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedloom.accel.precision import Precision
from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task
from fedloom.engine.client import learn
from fedloom.engine.clients import Clients
from fedloom.engine.facts import facts_of
from fedloom.engine.gradient.fastest import Chosen, in_precision
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.personal import personal_score
from fedloom.engine.plan import plan_steps
from fedloom.engine.steps import Start
from fedloom.errors import RunStopped


class Loop:
    """One client after another; errors name the client."""

    def __init__(self, clients: Clients, precision: Precision = "default") -> None:
        self.clients = clients
        self.gradient = in_precision(Chosen(PlainGradient(clients.setting)), precision).gradient
        self.plan = plan_steps(facts_of(clients, self.gradient, sliced=False))

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort; replies stand in the order of `ids`."""
        listed = ids.tolist()
        ids = ids.to(task.model.device, non_blocking=True) if task.ids is None else task.ids
        replies = []
        for place, client in enumerate(listed):
            try:
                replies.append(self._play(ids, client, place, task, chance))
            except Exception as problem:
                raise RunStopped(f"client {client} failed in round {task.round}: {problem}") from problem
        whole = replies[0] if len(replies) == 1 else Reply.cat(replies)
        return whole._replace(ids=ids, arrived=task.authorised)

    def _play(self, ids: Tensor, client: int, place: int, task: Task, chance: Chance) -> Reply:
        """One client's part of the round."""
        chunk = self.clients.gather(ids, [client], [place], task, chance, ())
        start = Start(
            self.clients.method, self.clients.setting, self.gradient, self.plan, chunk.data, chunk.task, chunk.state,
            {}, chunk.params, chunk.batches,
        )  # fmt: skip
        learnt, state = learn(start)
        return self.clients.finish(chunk, learnt, state, self.gradient, chance)

    def personal(self, model: Tensor) -> Tensor | None:
        """The score of every client's own model [N]."""
        return personal_score(self.clients, self.gradient, model, 1)

    def settle(self, ids: list[int]) -> None:
        """New states of clients whose tasks have ended."""
        self.clients.settle(ids)

    def save(self) -> State:
        """The states of all clients that were met."""
        return self.clients.save()

    def load(self, state: State) -> None:
        """Put back what `save` gave."""
        self.clients.load(state)

    def describe(self) -> dict[str, Any]:
        """One client at a time."""
        return {"engine": "loop", "plan": self.plan.record()}
