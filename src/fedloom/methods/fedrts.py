"""FedRTS (Huang et al., NeurIPS 2025): a sparse model whose weights are drawn by Thompson sampling.

All clients train the same weights, of a fixed density as in FedTiny. For each weight the server keeps a Beta posterior
(A, B), at first (1, 1), of belonging to the network. Of the K weights in use of a layer, `kappa = K - k` are voted for:
the largest of the mean model (v) and of each client (v_k), where k is the number that an exchange would drop. After
every round `X = (1 - gamma) v + gamma sum p_k v_k`, with `p_k` by examples, and for the weights in use `A += strength *
X`, `B += strength * (1 - X)`. In rounds with an exchange clients send the places of their k highest gradients among the
weights that are not in use (u_k), and the same update is made there with `X = (1 - gamma) / 2 + gamma sum p_k u_k`.
Then a number is drawn from each posterior, and the K highest of each layer are the next mask. New weights start from 0.

Different from the published code (FedPruning/FedPruning, not the authors' own repository, which was not found): there
the first client's vote is the mean's, and whole gradients are sent where places are expected.
"""

from __future__ import annotations

from fedloom.core.paper import paper
from fedloom.core.sparsity import Sparsity, Spread
from fedloom.method import Method
from fedloom.parts.local.candidates import Candidates
from fedloom.parts.mask.posterior import Posterior


@paper("Huang et al., NeurIPS", 2025, "single weights of a sparse model that all share, by Thompson sampling")
def fedrts(
    density: float = 0.2,
    gamma: float = 0.5,
    strength: float = 10.0,
    spread: Spread = "erk",
    alpha: float = 0.2,
    every: int = 10,
    until: int = 300,
) -> Method:
    """`gamma` weighs clients' votes against the mean model's, `strength` (lambda) all votes against chance."""
    sparsity = Sparsity(density, spread, alpha, every, until)
    return Method(mask=Posterior(sparsity, gamma, strength), local=Candidates(sparsity, values=False))
