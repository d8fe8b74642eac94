"""IST (Yuan et al., arXiv:1910.02120): the network is divided, and every client trains a disjoint sub-network.

The hidden neurons of every layer are dealt to the cohort anew every round. Numbers that only one client has are copied
back from it; the output layer's bias, which all have, is averaged, and weights between neurons of two clients stay. If
a layer has fewer neurons than the cohort has clients, some neurons are dealt to several clients and averaged (the paper
assumes more neurons).
A cohort of one client has the whole network, as in FedAvg.
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
    """An equal part of the model for each client of the cohort."""

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Return `1 / C` [C]."""
        return torch.full(ids.shape, 1 / len(ids), device=ids.device), memory


@paper("Yuan et al., arXiv:1910.02120", 2019, "disjoint neurons for every client of the cohort")
def ist() -> Method:
    """Equal parts, dealt anew every round."""
    return Method(allocate=Evenly(), mask=ShareOut(), local=SubModel())
