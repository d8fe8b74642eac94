"""FedAvg (McMahan et al., arXiv:1602.05629): the mean of the clients' models, weighted by examples."""

from fedloom.core.paper import paper
from fedloom.method import Method


@paper("McMahan et al., AISTATS", 2017, "none: whole models")
def fedavg() -> Method:
    """All defaults."""
    return Method()
