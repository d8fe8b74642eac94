"""RA-Fed (Wang et al., KDD 2023): clients train arbitrary regions of the model.

Algorithm 1 (doi:10.1145/3580305.3599521). All clients take part. Client n draws regions, mask `m_n`, and starts from
`theta_n0 = theta * m_n`: what it did not draw is zero, not frozen. Every local step is masked, and
`Delta_n = (theta_n0 - theta_nT) / rate`. A region that G clients trained moves by
`theta <- theta - (rate / G) * sum of Delta_n`; one that no client trained stays. Since `theta_n0` is `theta` on what
was trained, this is the plain mean of the weights sent, number by number.

What we do where the paper is silent:
- Regions are equal groups of every hidden layer's neurons, drawn once a run; a number belongs to the region of its
  output neuron, the output layer to a rest that all clients train. `mode=element` splits the weights of hidden layers
  one by one, which with `redraw` is what the published code does in effect (it does so for the first layer only, and
  compares argsort indices as if they were ranks, so that its quartiles of weights are random).
- The first round trains everything on every client, as in that code; the paper demands it for RAM-Fed only.
- Level L trains half of the regions, S a quarter; at MIX every second client is an L, the others are S. The sets are
  drawn anew every round, uniformly; every `period` rounds all take the last regions, and the others stay untrained.
- The paper's least coverage is `coverage` clients of every region that is trained, its number of trained regions is
  `trained`, and how long a client may go without a region is `deal`: by `turns` it trains each of four regions within
  four rounds, with a `fixed` one it never sees the others after the first round.
- Every step is masked, as in the algorithm; the published code trains zeroed weights too and masks the result.
- Momentum, if any, is reset every round. The compressor C is the identity.
With lost replies G counts those that arrived. If every client may use everything this is FedAvg with equal weights.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.regions import LEVELS, Regions
from fedloom.parts.select.everyone import Everyone


@paper("Wang et al., KDD", 2023, "regions of every hidden layer, drawn every round")
def ra_fed(
    level: str = "L",
    regions: int = 4,
    mode: Literal["neuron", "element"] = "neuron",
    period: int = 10,
    redraw: bool = False,
    coverage: int | None = None,
    trained: int | None = None,
    deal: Literal["drawn", "fixed", "turns"] = "drawn",
) -> Method:
    """`level` L, S or MIX: how many `regions` each client trains; every `period` rounds (0: never) all the same."""
    if level not in LEVELS:
        raise BadExperiment(unknown("level", level, LEVELS))
    return Method(
        select=Everyone(),
        allocate=Tiers(LEVELS[level]),
        mask=Regions(regions, mode, redraw, period=period, coverage=coverage, trained=trained, deal=deal),
        local=SubModel(own_part=mode == "neuron"),
        aggregate=CoverageMean("uniform"),
    )
