"""FedDD (Feng et al., arXiv:2308.16835, IEEE TMC): each client drops rows of its upload at its own rate.

All clients train their own whole model. Each sends the `1 - D_n` most important rows of every layer (Eq. 20, 21), a
number becomes the mean over the clients that sent it (Eq. 4), and the next download overwrites the same rows of the
client's model (Eq. 5); after every `every` rounds the whole model is sent (Eq. 6). The rates D solve a linear programme
over latency and loss (Eq. 13-17), from the second round on; in the first, nothing is dropped.

Where the paper is silent or contradicts itself, this is what we do:
- `N_l * (1 - D)` rows of a layer, rounded half up and at least 1 (algorithm 2 prints `N_l * D`); rows carry bias, batch
  norm and statistics, and the output layer drops as well unless `outputs` is false. Numbers that nobody sent stay.
- Eq. 20 divides by single weights. Ours are kept away from 0 by a `floor` of 0.01 of the layer's largest: with 1e-8 or
  less, single weights that happen to be near 0 decide which rows are sent. `mode=aggregate` divides norms of whole
  rows, as the only public code does. The unnamed norm is l2.
- `delta` adds seconds to a number without unit, and its value is not given. Ours is relative, in units of `t_full /
  mean_n re_n`, where `t_full` is the duration of a round in which all clients send everything; `relative=false` takes
  seconds. At 0.01 the importance of 100 clients is worth one such round; at 1, links would hardly matter.
- The programme counts 32 bits per number, downloads like uploads, every example of every epoch as one sample, and a
  client that never answered with the mean loss. Actual downloads are priced as sent, whole models included.
- With `models`, clients own the leading neurons of the global network: `het-a` and `het-b` are the paper's families on
  top of the models het-a-1 and het-b-1, numbers are shares of every layer. Client n has tier n modulo their number.
"""

from __future__ import annotations

from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.models.conv import HET_A, HET_B
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.keep_own_part import KeepOwnPart
from fedloom.parts.mask.last_sent import LastSent
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.upload.importance import Importance

Family = Literal["het-a", "het-b"] | tuple[float, ...] | None  # the networks that clients own; None: the whole one
FAMILIES = {
    name: LeadingNeurons(tuple((*(conv.width for conv in net.convs), *net.dense) for net in nets))
    for name, nets in (("het-a", HET_A), ("het-b", HET_B))
}


@paper("Feng et al., IEEE TMC", 2023, "rows of the upload by importance, and the same rows of the next download")
def feddd(
    budget: float = 0.6,
    most: float = 0.8,
    delta: float = 0.01,
    every: int = 5,
    select_by: Literal["importance", "random", "largest", "most-changed", "ordered"] = "importance",
    norm: Literal["l2", "l1"] = "l2",
    mode: Literal["elementwise", "aggregate"] = "elementwise",
    floor: float = 0.01,
    outputs: bool = True,
    relative: bool = True,
    class_term: bool = True,
    models: Family = None,
) -> Method:
    """`budget` is the fraction of all models that is sent up, `most` the highest dropout rate; needs devices."""
    sizes = networks_of(models)
    return Method(
        select=Everyone(),
        allocate=LatencyAndLoss(budget, most, delta, relative, class_term, models=sizes),
        mask=LastSent(every, sizes),
        local=KeepOwn() if sizes is None else KeepOwnPart(),
        upload=Importance(select_by, norm, mode, outputs, floor, sizes),
    )


def networks_of(models: Family) -> LeadingNeurons | None:
    """The networks of a family by name, or of shares of every layer."""
    if isinstance(models, tuple):
        return LeadingNeurons(models)
    return None if models is None else FAMILIES[models]


def over(models: Family) -> Method:
    """FedAvg over networks of unequal size: FedDD with nothing dropped, and everything sent in every round."""
    return Method() if models is None else feddd(budget=1.0, every=1, models=models)
