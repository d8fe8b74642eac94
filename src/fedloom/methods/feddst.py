"""FedDST (Bibikar et al., AAAI 2022): clients change the sparse model's mask by themselves, and the server merges them.

Clients train the same weights, at first the largest of each layer. In rounds with a change, every `every`-th up to
round `until`, a client drops a part `alpha / 2 * (1 + cos(pi t / until))` of the smallest weights of each layer after
its last step and takes in as many inactive ones with the highest gradients, which start from 0; it sends what it has,
with its mask. Each weight becomes the mean by examples over the clients that have it. After such a round the mask is
the union of theirs; where that is denser than the layer's count, the largest mean weights stay. The rest is 0.

Different from the published code (bibikar/feddst): there growth also takes weights that are in use, which it resets to
0, so that layers end below their budget; `alpha` does not decay, though the code computes its decay; layers share
sparsity instead of density (`spread`). The gradient is of the round's first batch, not the last; its network's
second softmax, its momentum and FedProx's term are settings of a run. Masks travel with every reply, changed or not.
"""

from __future__ import annotations

from fedloom.core.paper import paper
from fedloom.core.sparsity import Sparsity, Spread
from fedloom.method import Method
from fedloom.parts.local.regrow import Regrow
from fedloom.parts.mask.merged import Merged
from fedloom.parts.upload.own_mask import OwnMask


@paper("Bibikar et al., AAAI", 2022, "single weights of a sparse model, changed by clients and merged by the server")
def feddst(
    density: float = 0.2, spread: Spread = "erk", alpha: float = 0.2, every: int = 15, until: int = 300
) -> Method:
    """`density` is of all numbers; `alpha` of a layer's weights are changed at first, every `every` rounds."""
    sparsity = Sparsity(density, spread, alpha, every, until)
    return Method(mask=Merged(sparsity), local=Regrow(sparsity), upload=OwnMask())
