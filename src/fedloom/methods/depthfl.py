"""DepthFL (Kim et al., ICLR 2023): clients have the first stages of a network, with an exit after each.

A client with share s has the first `ceil(s * D)` of the network's D stages with their exits, for good. It minimises the
sum of its exits' losses; with `distil` each exit i learns from each other one of the client's d, by `c / (d - 1) *
KL(softmax(z_j) + 1e-7 || softmax(z_i))` with z_j held fixed and c rising to 1 at round `ramp`. Each tensor becomes the
plain mean over the clients that have it, and stays if nobody has. The model's answer is the mean of its exits'.

Different from the paper: its dynamic regularisation is left out (chain `DynamicRegulariser` for an approximation whose
server half is not by tensor); exits are the network's own, such as one dense layer each, not its attention and
separable convolutions. A network that declares no stages is trained whole by all, which is FedAvg with equal weights.
"""

from __future__ import annotations

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.exits import Exits
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.stages import Stages


@paper("Kim et al., ICLR", 2023, "the first stages of the network, with their exits")
def depthfl(shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0), distil: bool = True, ramp: int = 300) -> Method:
    """`shares` are the capacity tiers, in stages; exits teach each other fully from round `ramp` on."""
    return Method(
        allocate=Tiers(shares),
        mask=Stages(),
        local=Chain((SubModel(own_part=False), Exits(distil, ramp))),
        aggregate=CoverageMean("uniform"),
    )
