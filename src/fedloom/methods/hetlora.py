"""HetLoRA (Cho et al., EMNLP 2024, arXiv:2401.06432): adapters of several ranks, padded with zeros.

1. The server keeps adapters of the largest rank; client k is sent the first r_k rows of A and columns of B.
2. The client adds `penalty * sum over layers ||B[:, q:]|| ||A[q:, :]||` to its loss,
   `q = max(r_min, floor(gamma r_k))`.
3. If that sum is smaller after training, its rank is q from then on, and it sends no more than that.
4. Client k weighs `||B_k A_k||`, layer by layer, as a share of the sum over clients.
5. `A = sum weight_k pad(A_k)`, and B likewise, padding with zeros.

What we do where the paper is silent (it has no official code):
- Norms weigh per layer; `weigh=joint` takes one norm over all layers, `weigh=examples` weighs by examples. Where all
  norms are 0 examples decide. Heads have the mean by examples.
- The penalty's weight is that of FlexLoRA's repository; its gradient is 0 where a norm is 0.
- q is rounded down: rounded to the nearest, no rank up to 50 would ever fall with the paper's gamma.
- Ranks are tiers of the adapters' rank; the paper draws them between 5 and 50.
Padding with zeros makes components small that few clients have; a coverage mean (`fjord`) does not.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.padded_mean import PaddedMean
from fedloom.parts.allocate.learnt_ranks import LearntRanks
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.shrink_tail import ShrinkTail
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.upload.as_sent import AsSent
from fedloom.parts.upload.leading_rank import LeadingRank


@paper("Cho et al., EMNLP 2024", 2024, "leading rank components that a client is sent, trains and sends back")
def hetlora(
    shares: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0),
    r_min: int = 1,
    gamma: float = 0.99,
    penalty: float = 1e-3,
    prune: bool = True,
    weigh: Literal["norm", "joint", "examples"] = "norm",
) -> Method:
    """`shares` of the adapters' rank are the capacity tiers that clients begin with; `prune` lets ranks fall."""
    tiers = Tiers(shares)
    return Method(
        allocate=LearntRanks(tiers) if prune else tiers,
        mask=Ranked("ordered", "ceil"),
        local=ShrinkTail(penalty, gamma, r_min, prune) if prune or penalty else SubModel(),
        upload=LeadingRank() if prune else AsSent(),
        aggregate=PaddedMean(weigh),
    )
