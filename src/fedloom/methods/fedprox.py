"""FedProx (Li et al., arXiv:1812.06127): FedAvg with a proximal term in the local loss.

Equation 2 with the usual 1/2: the correction is `mu * (w - w_global)`. Weighted by examples like FedAvg; the paper's
alternative sampling (by size, plain mean) is not used, so that `mu = 0` is FedAvg exactly.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.local.prox import Prox


@paper("Li et al., MLSys", 2020, "none: whole models")
def fedprox(mu: float = 0.01) -> Method:
    """`mu` weighs the pull towards the global model."""
    return Method(local=Prox(mu))
