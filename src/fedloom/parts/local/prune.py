"""Local: sparse models; every client chooses by itself which single weights to keep, and the rest is zero."""

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

if TYPE_CHECKING:
    from fedloom.method import Method

REMASKS = ("every-round", "first-round")
NEED_DATA = ("snip", "grasp")
SLOW = ("snip", "grasp", "synflow")  # scoring takes longer than waiting for a GPU to say whether it is needed


@dataclass(frozen=True)
class Prune(LocalRule):
    """Keep the share of weights that the pruner `by` ranks highest in the model that came down, and train only those.

    The weights are chosen in every round, or once in the client's first round. `snip` and `grasp` use `per_class`
    examples of each of the client's classes. In a chain with `KeepOwn` the rest has the client's own values, not zeros.
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
        """Clients choose; they look at examples only if the pruner needs data."""
        return Traits(chooses=True, looks=self.per_class if self.by in NEED_DATA else 0)

    def clash(self, method: Method) -> str | None:
        """Refuse uploads of what the server sent, which is not what the client chose."""
        if not method.upload.sends_what_came:
            return None
        return "clients choose what they train, which the server must be told; put AsTrained() into upload."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The weights chosen in the first round, if they are kept."""
        if self.remask == "every-round":
            return {}
        chosen = torch.zeros(setting.layout.total, dtype=torch.bool, device=model.device)
        return {"chosen": chosen, "met": torch.zeros((), dtype=torch.bool, device=model.device)}

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """Choose the weights to keep among the numbers sent."""
        met = state.get("met")
        if met is not None and (met.device.type == "cpu" or self.by in SLOW) and bool(met.all()):
            chosen = state["chosen"]
        else:
            model = task.model.expand(len(ids), -1)  # shared memory: pruners without data score it once
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
        """The weights chosen."""
        return task.mask
