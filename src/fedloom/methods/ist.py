"""IST (Yuan et al., arXiv:1910.02120): the network is divided, and every client trains a disjoint sub-network.

The hidden neurons of every layer are dealt to the cohort anew every round, in `parts` of equal size. Numbers that only
one client has are copied back from it; those of several are averaged, as the output layer's bias, which all have.
Weights between neurons of two parts stay. If a layer has fewer neurons than parts, some neurons are dealt to several
clients and averaged (the paper assumes more neurons). A cohort of one client has the whole network, as in FedAvg.

In the paper every client has a part of its own: `parts=none`. Its networks have thousands of neurons, and batch norm by
the batch behind every layer, so that a network of ten times as many neurons answers in numbers of the same size as its
parts. Without that, the answers of ten parts that learnt by themselves add up when they are put together: on the
embedded digits ten clients end at an accuracy of 0.3. Two parts, each dealt to half of the cohort, are the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.paper import paper
from fedloom.core.part import Allocate
from fedloom.core.types import Setting, State
from fedloom.method import Method
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.share_out import ShareOut


@dataclass(frozen=True)
class Evenly(Allocate):
    """An equal part of the model, one of `parts`, for each client of the cohort; None: of as many as it has clients."""

    parts: int | None = None

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Return `1 / parts` [C]."""
        parts = len(ids) if self.parts is None else min(self.parts, len(ids))
        return torch.full(ids.shape, 1 / parts, device=ids.device), memory


@paper("Yuan et al., arXiv:1910.02120", 2019, "disjoint neurons for every client of the cohort")
def ist(parts: int | None = 2) -> Method:
    """`parts` of equal size, dealt anew every round; none is a part for each client, as in the paper."""
    return Method(allocate=Evenly(parts), mask=ShareOut(parts), local=SubModel())
