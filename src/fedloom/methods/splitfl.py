"""SplitFL (after SplitFed, Thapa et al., arXiv:2004.12088): all clients train the same part of the network.

As in the RA-Fed paper's table, where it is one sub-structure on all clients: one set of regions is drawn from the run's
seed and trained by all clients in every round, together with the output layer; the rest stays frozen at its first
values on every client and takes part in the forward pass. Different from the original, which trains the rest on the
server. With a share of 1 it is FedAvg.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.mask.regions import Regions


@paper("Thapa et al., AAAI", 2022, "one set of regions for all clients; the rest is frozen", reading="the RA-Fed paper")
def splitfl(share: float = 0.5, count: int = 4) -> Method:
    """`share` of the `count` regions of hidden neurons is trained."""
    return Method(
        allocate=Tiers((share,)),
        mask=Regions(count, full_first=False, period=1),  # the last regions, always
        local=KeepOwn(freeze=True),
    )
