"""Federated dropout (Caldas et al., arXiv:1812.07210): random neurons, new for every client and round.

Sub-models are cut out and sent; numbers that a client was not sent keep their global values. Different from the paper:
each client has its own share, and no lossy compression is added.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked


@paper("Caldas et al., arXiv:1812.07210", 2018, "random neurons, drawn for every client and round")
def federated_dropout(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=Ranked("random"), local=SubModel())
