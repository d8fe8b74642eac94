"""FedRolex (Alam et al., arXiv:2212.01548): the window of neurons moves by one every round.

The window starts at neuron `round - 1` of every layer and wraps around; `ceil(share * width)` neurons, as in HeteroFL.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked


@paper("Alam et al., NeurIPS", 2022, "a window of neurons that moves by one every round")
def fedrolex(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=Ranked("rolling", "ceil"), local=SubModel())
