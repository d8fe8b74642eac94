"""FedSelect (Tamirisa et al., CVPR 2024): a growing part of each client's weights becomes its own.

At first all numbers are global. Passes over a client's data take turns, the first moves its personal numbers, the next
the global ones; both parts run. The server takes the plain mean of every number over the clients for which it is
global, and clients start from it there. After every `every`-th participation but the first, in each tensor of weights
whose personal share is at most `bound`, of the m weights that are still global those become personal for good that
moved most since the last growth: from the `round((1 - grow) m)`-th smallest change on. Biases stay global. The new mask
acts from the next round on: its weights are overwritten by the mean once more. A client is served by its own model.

As the published code has it: the bound is tested before growth, and so may be overshot; `grow` is a share of what is
still global. Running statistics are never averaged. Different: clients count their own participations, since a cohort
may be drawn anew every round (there, ten clients are drawn once); the whole model goes down, although clients do not
read the personal part; while nothing is personal, every other pass is idle. One local epoch there is two passes here
(`epochs=10`). With `every` beyond the last round this is FedAvg with equal weights and half of the passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Batch, Setting, State, Task, column
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.layout import Layout
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.upload.as_trained import AsTrained


@dataclass(frozen=True)
class GrowOwn(LocalRule):
    """Clients keep the weights that move most, ever more of them, and train them in passes of their own."""

    grow: float = 0.25
    bound: float = 0.8
    every: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.grow <= 1:
            raise BadExperiment(f"grow (share of the global weights) is {self.grow}; it lies above 0 and at most at 1.")
        if self.every < 1:
            raise BadExperiment(f"every (participations between growths) is {self.every}; it is at least 1.")

    @property
    def traits(self) -> Traits:
        """The whole network runs, and clients choose what they send."""
        return Traits(corrects=True, turns=True, needs_whole=True, chooses=True)

    def clash(self, method: Method) -> str | None:
        """Refuse uploads of what the server sent, and a single pass, in which nothing global would be trained."""
        if method.upload.sends_what_came:
            return "clients choose what they send, which the server must be told; put AsTrained() into upload."
        if method.work.steps is None and method.work.epochs < 2:
            return "passes over the data train its own and the global numbers by turns; set epochs to at least 2."
        return None

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The model as it came, none of which is personal but running statistics."""
        personal = torch.arange(len(model), device=model.device) >= setting.layout.trained
        none = torch.zeros((), dtype=torch.int64, device=model.device)
        return {"own": model, "anchor": model, "kept": personal, "personal": personal, "taken": none}

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """Grow what is personal by what the last participations moved, and send the rest."""
        own, personal, past = state["own"], state["personal"], state["taken"] - 1
        due = column((past > 0) & (past % self.every == 0), own)
        grown = self.grown(setting.layout, (own - state["anchor"]).abs(), personal)
        new = torch.where(due, grown, personal)
        anchor = torch.where(due, own, state["anchor"])
        return ~new, {**state, "anchor": anchor, "kept": personal, "personal": new}

    def grown(self, layout: Layout, moved: Tensor, personal: Tensor) -> Tensor:
        """The personal numbers after growth [C, P]."""
        new, spread, start = personal.clone(), torch.where(personal, torch.inf, moved), 0
        for name, size in zip(layout.names, layout.sizes):
            place = slice(start, start + size)
            start += size
            if not name.endswith("weight"):
                continue
            free = (~personal[:, place]).sum(1, keepdim=True)
            cut = torch.round((1 - self.grow) * free.double()).long().clamp(max=size - 1)
            least = spread[:, place].sort(1).values.gather(1, cut)
            small = (size - free) <= self.bound * size
            new[:, place] |= (moved[:, place] >= least) & (small & (free > 0))
        return new

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The mean, and the client's own numbers where they were personal in its last round."""
        return torch.where(state["kept"], state["own"], params)

    def turn(self, task: Task, state: State, epoch: Tensor) -> Tensor:
        """The personal numbers in even passes, the global ones in odd ones."""
        return state["personal"] ^ (epoch % 2 == 1)[:, None]

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Keep the trained model, whether the reply arrives or not."""
        return last, {}, {**state, "own": last, "taken": state["taken"] + 1}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The global model with the client's own numbers in it."""
        return torch.where(state["personal"], state["own"], model)


@paper("Tamirisa et al., CVPR", 2024, "all but the weights that moved most at each client, which it keeps")
def fedselect(grow: float = 0.25, bound: float = 0.8, every: int = 3) -> Method:
    """A share `grow` of the global weights becomes personal at `every` third participation, up to about `bound`."""
    mean = CoverageMean("uniform")
    return Method(local=GrowOwn(grow, bound, every), upload=AsTrained(), aggregate=mean, work=Work(epochs=10))
