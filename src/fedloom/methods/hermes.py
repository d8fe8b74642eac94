"""Hermes (Li et al., MobiCom 2021): every client trains the sub-model of its own strongest neurons.

As the FedSPU paper reads it: at its first participation a client trains the whole model (sent and counted in full);
of the weights it returns, the share of neurons with the largest L2 norm in every layer is its sub-model for good.
The rest is zero on the client, and a number is averaged over the clients that have it. Different from the original,
where clients prune step by step as long as their validation accuracy stays above a threshold.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.own_scores import OwnScores


@paper("Li et al., MobiCom", 2021, "each client's strongest neurons by its first reply", reading="the FedSPU paper")
def hermes(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=OwnScores("l2"), local=SubModel())
