"""FedUMF (Li, Chen and Yu, Mathematics 2022, 10, 3751): clients that may not send train too, and use that update later.

Algorithm 1: every round the model goes to all clients and `count` of them are authorised. Client i begins at `w_t`; if
it is authorised and was not last round, at `w_t + alpha * (rate_t / rate_{t-1}) * g_i`. After its training it stores
`g_i = w_end - w_start`, over what was there. The authorised send their models, whose plain mean is the next one. Round
1 is FedAvg, and so are all rounds if `alpha = 0` or all clients are authorised.

Where the paper is silent: the mean is uniform, by examples with `weigh`; `probability` authorises each client with
this probability, as the appendix does, instead of exactly `count`. Momentum is reset every round. How much
clients train is the experiment's choice: the paper has one local epoch in batches of 50, momentum 0.5 and weight decay
0.0005. Running statistics are averaged but not fused: a variance that fell could become negative. A client does
not learn that its upload was lost, and fuses nothing for it.
On FedDC, which the paper reports but does not define: all clients follow FedDC's local objective, and those that may
not send leave drift and control unchanged. The penalty and both states refer to `w_t`, or to the fused start by
`reference`; the server's half always refers to `w_t`, since the fused start is not sent.

All N clients train and download in every round, N / count times the work of FedAvg; `examples_trained` counts it. A
fused client moves up to `1 + alpha` times as far: compare it with FedAvg with twice the local epochs.
"""

from dataclasses import replace
from typing import Literal

from fedloom.core.paper import paper
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddc import feddc
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.select.everyone import SomeSend

BASES = ("fedavg", "feddc")


@paper("Li, Chen and Yu, Mathematics", 2022, "none: whole models")
def fedumf(
    alpha: float = 1.0,
    base: Literal["fedavg", "feddc"] = "fedavg",
    drift: float = 0.01,
    reference: Literal["global", "fused"] = "global",
    probability: float | None = None,
    weigh: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """`alpha` weighs the missed update; `drift` is FedDC's alpha where that is the `base`."""
    if base not in BASES:
        raise BadExperiment(unknown("base of fedumf", base, BASES))
    method = feddc(drift) if base == "feddc" else fedavg()
    return replace(
        method,
        select=SomeSend(probability=probability),
        local=FuseMissed(alpha, method.local, reference),
        aggregate=CoverageMean(weigh),
    )
