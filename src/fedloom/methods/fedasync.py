"""FedAsync (Xie, Koyejo and Gupta, arXiv:1903.03934): every reply makes a step, however old the model it started from.

The server sends its model `x_t` to clients now and then. From the `x_b` that it was sent a client minimises its loss
plus `(rho / 2) * ||x - x_b||^2` and sends the result `x_new`. The server mixes it in at once:

    x_(t+1) = (1 - alpha_t) * x_t + alpha_t * x_new,    alpha_t = alpha * s(tau)

where `tau` is the number of steps since the client was sent the model and `s` a discount; sample counts play no part.
Ours is the paper's polynomial, `s = (1 + tau) ** -exponent`; `--set stale=model` with `stale.discount` has the others.

Different from the paper: a reply to the model as it is has `tau` 0, not 1, so that its discount is 1. Staleness comes
of the devices' seconds, with `in_flight` clients training at a time (10: its mean is 9), where the paper draws it up to
4 or 16. The published experiments halve `alpha` late in training; ours stays. With masks a client's part of the model
is mixed in, and staleness is that of each number.

A step has the work of one client: 500 steps are as much as 50 rounds of ten.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.prox import Prox
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Polynomial


@paper("Xie, Koyejo and Gupta, arXiv:1903.03934", 2019, "none: whole models")
def fedasync(alpha: float = 0.6, exponent: float = 0.5, rho: float = 0.005, in_flight: int = 10) -> Method:
    """`alpha` is how far the model goes to a fresh reply, `rho` weighs the pull towards the model that was sent."""
    return Method(
        local=Prox(rho),
        aggregate=CoverageMean("uniform"),
        stale=AsModel(alpha, Polynomial(exponent)),
        pace=Buffered(1, in_flight),
    )
