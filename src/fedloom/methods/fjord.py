"""FjORD (Horvath et al., arXiv:2102.13451): ordered dropout, as the FedSPU paper reads it.

Each client trains the leading share of every layer's neurons; a number is averaged over the clients that trained it,
and stays if none did. Different from the original: one fixed share per client instead of nested shares drawn at every
step, and no self-distillation.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked


@paper("Horvath et al., NeurIPS", 2021, "the leading neurons of every layer", reading="the FedSPU paper")
def fjord(shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)) -> Method:
    """`shares` are the capacity tiers, in neurons."""
    return Method(allocate=Tiers(shares), mask=Ranked("ordered"), local=SubModel())
