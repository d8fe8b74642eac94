"""FedMP (Jiang et al., IEEE TMC 2023): every client trains a sub-model pruned by the L1 norm of its own neurons.

As the FedSPU paper reads it: at its first participation a client trains the whole model (sent and counted in full);
of the weights it returns, the share of neurons with the largest L1 norm in every layer is its sub-model for good.
The rest is zero on the client, and a number is averaged over the clients that have it. Different from the original,
where a bandit on the server chooses every pruning ratio anew and the pruned residual is added back before averaging.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.own_scores import OwnScores


@paper("Jiang et al., IEEE TMC", 2023, "each client's strongest neurons by its first reply", reading="the FedSPU paper")
def fedmp(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=OwnScores("l1"), local=SubModel())
