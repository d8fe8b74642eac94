"""FedAvgM (Hsu, Qi and Brown, arXiv:1909.06335): momentum on the server.

`v <- server_momentum * v + D`, `w <- w + server_rate * v`, with D the mean of the clients' changes by examples. Hsu's
is said to be Nesterov's, which is `nesterov`. Without momentum and at a rate of 1 it is FedAvg to the bit. A number
that nobody sent in a round stays, and so does its velocity; the paper has whole models alone.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerSgd
from fedloom.parts.aggregate.stepped import Stepped


@paper("Hsu, Qi and Brown, arXiv:1909.06335", 2019, "none: whole models")
def fedavgm(server_rate: float = 1.0, server_momentum: float = 0.9, nesterov: bool = False) -> Method:
    """`server_rate` is the length of the server's steps, `server_momentum` how much of the velocity stays."""
    return Method(aggregate=Stepped(CoverageMean(), ServerSgd(server_rate, server_momentum, nesterov)))
