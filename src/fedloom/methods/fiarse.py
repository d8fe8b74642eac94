"""FIARSE (Wu et al., NeurIPS 2024): a client trains the largest numbers of the model, chosen anew at every step.

A client is sent the share of the numbers of layers (weights and biases, the output layer's too) with the greatest
magnitude in the current model; norm layers are always sent. The least of these magnitudes, `theta`, stays fixed for the
round. At every step the numbers with `|x| >= theta` run, the others are 0, and the gradient of a number that runs is
multiplied by `1 + 2 theta |x| / (|x| + theta)^2`, which drives it away from the cut-off. A number becomes the plain
mean over the clients that have it, and stays if none has. A client is served by the share that it can use.

Where the code (HarliWu/FIARSE) and the paper disagree, or are silent:
- In the code the factor is always 1, since autograd does not differentiate through its mask; `factor=False` does so.
- A share of 1 has `theta = 0`, so that whole models are FedAvg; the code takes the least magnitude (`exact_cut`).
- The code averages a number over the clients that changed it, which leaves out dead neurons (`count="changed"`).
- Numbers that equal `theta` are all kept. Shares are of numbers: widths of equal size keep their square roots.
- Its stages of a ResNet are `scope="stage"`. Its batch norm has no running statistics; ours has, and averages them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.method import Method
from fedloom.neurons.weights import Layer
from fedloom.parts.aggregate.changed_mean import ChangedMean
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.largest import Largest, above, groups_of

Scope = Literal["layer", "stage", "model"]


@dataclass(frozen=True)
class Thresholded(LocalRule):
    """Numbers below the least magnitude that was sent do not run, and gradients near it are enlarged."""

    scope: Scope = "model"
    factor: bool = True
    exact_cut: bool = False

    @property
    def traits(self) -> Traits:
        """The cut-off is found in the model that came down."""
        return Traits(corrects=True, reads_model=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The share that the client had last."""
        return {"share": model.new_ones(())}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The group of each number [C, P], counted from 1, with one row for all clients; 0 is of no layer."""
        groups = _groups(setting.layers, setting.layout.total, self.scope, ids.device)
        count = 1 + len(list(groups_of(setting.layers, self.scope)))
        cuts = torch.zeros(count, dtype=groups.dtype, device=ids.device)  # whose length is the number of groups
        return {"groups": groups.expand(len(ids), -1), "cuts": cuts.expand(len(ids), -1)}

    def view(self, task: Task, params: Tensor) -> Tensor:
        """The numbers that run."""
        return torch.where(params.abs() >= self._cut(task), params, 0)

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The chain rule through the mask."""
        cut, size = self._cut(task), params.abs()
        if self.factor:
            total = (size + cut).square()
            grads = grads * (1 + 2 * cut * size / total.masked_fill(total == 0, 1))
        return torch.where(size >= cut, grads, 0)

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Remember the share."""
        return last, {}, {"share": task.share.to(last.dtype)}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The largest numbers of the global model, as many as the client used last."""
        share = state["share"]
        return torch.where(above(setting.layers, model.expand(len(share), -1), share, self.scope), model, 0)

    def _cut(self, task: Task) -> Tensor:
        """The cut-off of every number [C, P]; 0 for those of no layer."""
        groups = task.extras["groups"].long()
        size = task.model.abs().expand(groups.shape)
        size = size if task.mask is None else torch.where(task.mask, size, torch.inf)
        least = size.new_full((len(size), task.extras["cuts"].shape[1]), torch.inf).scatter_reduce(
            1, groups, size, "amin"
        )
        if not self.exact_cut:
            least = torch.where(task.share[:, None] >= 1, 0, least)
        return torch.where(groups > 0, least.gather(1, groups), 0)


@lru_cache(maxsize=8)
def _groups(layers: tuple[Layer, ...], total: int, scope: Scope, device: torch.device) -> Tensor:
    """The group of each number [P]; whole numbers of this type do not travel, since clients know them."""
    found = torch.zeros(total, dtype=torch.int32)
    for number, places in enumerate(groups_of(layers, scope), 1):
        for place in places:
            found[place] = number
    return found.to(device)


@paper("Wu et al., NeurIPS", 2024, "the largest numbers of all layers in the current model, and at every step")
def fiarse(
    shares: tuple[float, ...] = (0.04, 0.16, 0.36, 0.64, 1.0),
    scope: Scope = "model",
    factor: bool = True,
    exact_cut: bool = False,
    count: Literal["mask", "changed"] = "mask",
) -> Method:
    """`shares` are the capacity tiers, in numbers of layers; `scope` says which are ranked together."""
    return Method(
        allocate=Tiers(shares),
        mask=Largest(scope),
        local=Chain((SubModel(own_part=False), Thresholded(scope, factor, exact_cut))),
        aggregate=CoverageMean("uniform") if count == "mask" else ChangedMean(),
    )
