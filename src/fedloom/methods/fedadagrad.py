"""FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295): Adagrad on the server.

Algorithm 2: with D the mean of the clients' changes `v <- v + D^2`, `w <- w + server_rate * D / (sqrt(v) + tau)`; its
`beta1` is 0. Different from the paper: v starts at 0, as in the authors' runs, and not at `tau^2` or above (`start`),
and the mean is by examples, as in their experiments. A number that nobody sent stays, and so does its v.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerAdagrad
from fedloom.parts.aggregate.stepped import Stepped


@paper("Reddi et al., ICLR 2021", 2021, "none: whole models")
def fedadagrad(server_rate: float = 0.1, tau: float = 1e-3, start: float = 0.0) -> Method:
    """`server_rate` is the length of a first step; `tau` bounds how small changes are enlarged."""
    return Method(aggregate=Stepped(CoverageMean(), ServerAdagrad(server_rate, tau, start)))
