"""FedVARP (Jhunjhunwala et al., arXiv:2207.14130): latest updates of absent clients reduce the variance of the mean.

`v = mean_n u_n + (1/|S|) * sum over the cohort S of (Delta_n - u_n)`, `theta <- theta - rate * v`, `u_n <- Delta_n` for
those in S; `u_n = 0` before the first reply. This is RAM-Fed's aggregation with the whole model as one region. The
server's own step size is 1. With all clients in every round it is FedAvg with equal weights.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.latest_updates import LatestUpdates


@paper("Jhunjhunwala et al., UAI", 2022, "none: whole models")
def fedvarp(dtype: Literal["float32", "float16"] = "float32", folder: str | None = None) -> Method:
    """Updates are remembered as `dtype`, in memory or in a file in `folder`."""
    return Method(aggregate=LatestUpdates(dtype, folder))
