"""Train a sparse model: every client chooses by itself the single weights worth keeping, and the rest is zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.pruning import PRUNERS, SCOPES, Scope, pruned
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Batch, Setting, State, Task
from fedloom.errors import BadExperiment, unknown
from fedloom.parts.upload.as_sent import AsSent

if TYPE_CHECKING:
    from fedloom.method import Method

REMASKS = ("every-round", "first-round")
NEED_DATA = ("snip", "grasp")
SLOW = ("snip", "grasp", "synflow")  # scoring takes longer than asking a GPU whether it is needed


@dataclass(frozen=True)
class Prune(LocalRule):
    """Keep the share of weights that the pruner `by` ranks highest in the model that came down, and train only those.

    The weights are chosen anew at every contact, or for good at the first one. `snip` and `grasp` look at `per_class`
    of the client's own examples. In a chain with `KeepOwn` the client's own numbers stand where zeros would.
    """

    by: str = "mag"
    scope: Scope = "global"
    remask: str = "every-round"
    per_class: int = 10

    def __post_init__(self) -> None:
        for kind, name, names in (
            ("pruner", self.by, PRUNERS),
            ("scope of pruning", self.scope, SCOPES),
            ("time of pruning (remask)", self.remask, REMASKS),
        ):
            if name not in names:
                raise BadExperiment(unknown(kind, name, names))
        if self.per_class < 1:
            raise BadExperiment(f"per_class is {self.per_class}; a client looks at 1 example per class at least.")

    @property
    def traits(self) -> Traits:
        """Clients choose, without looking at data unless the pruner needs some."""
        return Traits(chooses=True, looks=self.per_class if self.by in NEED_DATA else 0)

    def clash(self, method: Method) -> str | None:
        """The server does not know what a client chose."""
        if not isinstance(method.upload, AsSent):
            return None
        return "clients choose what they train, which the server must be told; put AsTrained() into upload."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The weights chosen at the first contact, if they stay."""
        if self.remask == "every-round":
            return {}
        chosen = torch.zeros(setting.layout.total, dtype=torch.bool, device=model.device)
        return {"chosen": chosen, "met": torch.zeros((), dtype=torch.bool, device=model.device)}

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """The weights to keep, of those that were sent."""
        met = state.get("met")
        if met is not None and (met.device.type == "cpu" or self.by in SLOW) and bool(met.all()):
            chosen = state["chosen"]
        else:
            model = task.model.expand(len(ids), -1)  # one memory for all: what needs no data is scored once
            model = model if task.mask is None else torch.where(task.mask, model, 0)
            chosen = pruned(self.by, setting, model, task.share, look, ids, chance, self.scope)
        if met is not None:
            chosen = torch.where(met[:, None], state["chosen"], chosen)
            state = {"chosen": chosen, "met": torch.ones_like(met)}
        return chosen if task.mask is None else chosen & task.mask, state

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The chosen weights; the others are zero."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """What was chosen."""
        return task.mask
