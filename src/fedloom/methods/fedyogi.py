"""FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295): Yogi on the server.

Algorithm 2: with D the mean of the clients' changes `m <- b1 m + (1 - b1) D`, `v <- v - (1 - b2) D^2 sign(v - D^2)`,
`w <- w + server_rate * m / (sqrt(v) + tau)`. Different from the paper: v starts at 0, as in the authors' runs, and not
at `tau^2` or above (`start`), and the mean is by examples, as in their experiments. The paper corrects no bias;
`correct` does as the authors' code (`keras`) or Flower's (`flower`, one step ahead). A number that nobody sent stays,
and so do its moments and its count of steps.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerYogi
from fedloom.parts.aggregate.stepped import Stepped


@paper("Reddi et al., ICLR 2021", 2021, "none: whole models")
def fedyogi(
    server_rate: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    start: float = 0.0,
    correct: Literal["keras", "flower"] | None = None,
) -> Method:
    """`server_rate` is about the length of a step; `tau` bounds how small changes are enlarged."""
    return Method(aggregate=Stepped(CoverageMean(), ServerYogi(server_rate, beta1, beta2, tau, start, correct)))
