"""loom: a mix of several systems for skewed data, five capacity tiers and half of the replies lost.

No paper: these parts did best among some 160 mixes, tried with two or three seeds in the scenario of
`benchmarks/loom.py`. That search chose the parts and `alpha`, and the distance was added afterwards, so the results
there are not from a fresh scenario. They show what each part adds.
- Each client trains random neurons of a whole model of its own, the rest frozen (FedSPU): a small sub-model does not
  have to replace neurons it lacks.
- A dynamic regulariser keeps clients from drifting to their few classes (FedDyn). Its state is of the part trained.
- A lost reply is replaced by that of a similar client (SAFARI), compared over the numbers that both sent, since random
  parts differ anyway; before two clients were compared, by the mean of the replies that arrived. A client updates its
  regulariser whether its reply arrives or not, so the server must count a reply either way.
- With `fuse` all clients train, and an update that could not be sent is added to the next start (FedUMF): fewer
  rounds, at N / 10 times the work, so it is off by default.
"""

from fedloom.core.paper import paper
from fedloom.core.part import Select
from fedloom.core.rule import LocalRule
from fedloom.method import Method
from fedloom.methods.feddyn import DynamicRegulariser
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.everyone import SomeSend
from fedloom.parts.select.uniform import Uniform


@paper("", 2026, "random neurons are trained; the rest of the client's own model is frozen")
def loom(
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0),
    alpha: float = 0.03,
    stand_ins: bool = True,
    fuse: float = 0.0,
) -> Method:
    """`shares` are the capacity tiers, in neurons; `alpha` weighs the regulariser, `fuse` the missed update."""
    local: LocalRule = Chain((KeepOwn(freeze=True), DynamicRegulariser(alpha)))
    select: Select = SomeSend() if fuse else Uniform()
    return Method(
        select=select,
        allocate=Tiers(shares),
        mask=Ranked("random"),
        local=FuseMissed(fuse, local) if fuse else local,
        repair=MostSimilar("shared", mask_aware=True) if stand_ins else Nothing(),
    )
