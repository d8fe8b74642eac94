"""FlexLoRA (Bai et al., NeurIPS 2024, arXiv:2402.11505): adapters of several ranks, averaged as products.

1. The server averages products, `D = sum p_k s_k B_k A_k`, with p_k by examples. 2. `D = U S V` by singular values.
3. A client of rank r is sent `A = V[:r]` and `B = U[:, :r] S[:r] / s`. The server keeps the factors in this order, so
the leading r components of its model are what a client of rank r is sent.

What we do where the paper is silent or another way:
- The factor s is `alpha / rank` of the largest rank for all clients, where the official code has one for each rank.
- The decomposition is of the stacked factors where they are small, in float64; the largest entry of every row of A is
  positive.
- What lies beyond the largest rank is lost, as in the official code. Heads have the mean by examples.
The official repository's baseline called HetLoRA weighs by examples and its penalty has no gradient.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.refactored import Refactored
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked


@paper("Bai et al., NeurIPS 2024", 2024, "leading rank components that a client is sent and trains")
def flexlora(shares: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)) -> Method:
    """`shares` of the adapters' rank are the capacity tiers, rounded up to whole components."""
    return Method(allocate=Tiers(shares), mask=Ranked("ordered", "ceil"), local=SubModel(), aggregate=Refactored())
