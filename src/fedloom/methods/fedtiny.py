"""FedTiny (Huang et al., ICDCS 2023): one sparse model, whose weights are exchanged by the clients' gradients.

All clients train the same weights, of a fixed `density` of the model; at first they are the largest of each layer, and
layers are as dense as `spread` says (`erk`: smaller layers are denser). After every `every`-th round, up to round
`until`, a part `alpha / 2 * (1 + cos(pi t / until))` of each layer's weights is exchanged: clients send their highest
gradients among the weights that are not in use, as many, taken at the trained weights on one batch. The server averages
weights and gradients by examples, drops the smallest weights and takes in those of the highest mean gradient, which
start from 0; a weight that was just dropped may return. Biases and norms are always dense.

Different from the paper: the first mask is not chosen among several by their losses with averaged batch-norm
statistics, but is that of the largest weights. Its order of blocks is not known to us: `blocks=3` exchanges every
third layer at a time, 1 all of them as in FedPruning/FedPruning. There the filter of uploaded gradients keeps wrong
places, and the last step leaves values outside the mask in what is sent; here not. `growth="random"` is a control.
"""

from __future__ import annotations

from typing import Literal

from fedloom.core.paper import paper
from fedloom.core.sparsity import Sparsity, Spread
from fedloom.method import Method
from fedloom.parts.local.candidates import Candidates
from fedloom.parts.mask.sparse import Sparse


@paper("Huang et al., ICDCS", 2023, "single weights of a sparse model that all share, exchanged by mean gradients")
def fedtiny(
    density: float = 0.2,
    spread: Spread = "erk",
    alpha: float = 0.2,
    every: int = 10,
    until: int = 300,
    blocks: int = 1,
    growth: Literal["gradient", "random"] = "gradient",
) -> Method:
    """`density` is of all numbers; `alpha` of a layer's weights are exchanged at first, every `every` rounds."""
    sparsity = Sparsity(density, spread, alpha, every, until, blocks)
    return Method(mask=Sparse(sparsity, growth), local=Candidates(sparsity))
