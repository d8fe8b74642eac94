"""FedMef (Huang et al., CVPR 2024): FedTiny whose clients shrink weights before they are dropped.

As FedTiny; in a round that ends with an exchange each client's loss has `extrude * ||w_low||^2` added, where `w_low`
are the smallest weights in use of each layer, as many as will be dropped, so that dropping them changes little.

Different from the paper's code (FedPruning/FedPruning): there the norm is not squared, its weight `lambda` is not used,
and the smallest are taken over a whole tensor, so that at density 0.1 they are the zeros outside of the mask. Left out:
the raised learning rate of that phase, whose ceiling of 0.01 lies below our rates, and the pruning of activations,
which saves memory on a device and is off by default there.
"""

from __future__ import annotations

from fedloom.core.paper import paper
from fedloom.core.sparsity import Sparsity, Spread
from fedloom.method import Method
from fedloom.parts.local.candidates import Candidates
from fedloom.parts.mask.sparse import Sparse


@paper("Huang et al., CVPR", 2024, "single weights of a sparse model that all share, exchanged by mean gradients")
def fedmef(
    density: float = 0.2,
    extrude: float = 0.01,
    spread: Spread = "erk",
    alpha: float = 0.2,
    every: int = 10,
    until: int = 300,
) -> Method:
    """`extrude` weighs the squared norm of the weights that are about to be dropped; the rest is as in FedTiny."""
    sparsity = Sparsity(density, spread, alpha, every, until)
    return Method(mask=Sparse(sparsity), local=Candidates(sparsity, extrude=extrude))
