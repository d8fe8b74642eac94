"""PruneFL (Jiang et al., arXiv:1909.12326): every client trains the sub-model of the neurons that moved it most.

As the FedSPU paper reads it: at its first participation a client trains the whole model (sent and counted in full); the
share of neurons whose weights changed most in L2 norm in every layer is its sub-model for good. The change of that
training replaces the gradient. The rest is zero on the client, and a number is averaged over the clients that have it.
Different from the original, which prunes the same single weights for all clients, and chooses them again now and then
by squared gradients over their cost in time.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.own_scores import OwnScores


@paper(
    "Jiang et al., IEEE TNNLS",
    2022,
    "the neurons that moved most in a client's first round",
    reading="the FedSPU paper",
)
def prunefl_fixed(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=OwnScores("change"), local=SubModel())
