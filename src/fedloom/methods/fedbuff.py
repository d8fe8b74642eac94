"""FedBuff (Nguyen et al., AISTATS 2022, arXiv:2106.06639): a step of every few replies, while many clients train.

While fewer than M clients are in flight, another one is sampled and sent the model `w^t`. From the `w^b` that it was
sent a client trains to `y` and sends its change `y - w^b`. After K replies the server makes the step

    w^(t+1) = w^t + server_rate / K * sum_i s(tau_i) * (y_i - w^b_i),    s(tau) = (1 + tau) ** -exponent

with `tau` the number of steps since the client was sent the model, and begins a new buffer. All replies weigh the same,
and the division is by K, not by the sum of the discounts: a buffer of old replies makes a small step.

M is 100 to 1,000 in the paper, for fleets of thousands; ours is 20, for a hundred clients: the mean `tau` is about
`M / K - 1`. A client is in flight once, where public code that samples with replacement may have it in a buffer twice.
Refused replies (`admit`) are not replaced by others. With masks each number is divided by the replies that hold it, and
staleness is that of each number. `server_rate` other than 1 makes the aggregate `Stepped`.
"""

from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerSgd
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.discounts import Polynomial


@paper("Nguyen et al., AISTATS", 2022, "none: whole models")
def fedbuff(buffer: int = 10, in_flight: int = 20, exponent: float = 0.5, server_rate: float = 1.0) -> Method:
    """`buffer` is K, the replies of a step, and `in_flight` M, the clients that train at a time."""
    mean: Aggregate = CoverageMean("uniform")
    return Method(
        aggregate=mean if server_rate == 1 else Stepped(mean, ServerSgd(server_rate)),
        stale=AsChange(Polynomial(exponent)),
        pace=Buffered(buffer, in_flight),
    )
