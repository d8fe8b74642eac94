"""FedAvg (McMahan et al., arXiv:1602.05629): the mean of the clients' models, weighted by examples."""

from fedloom.method import Method


def fedavg() -> Method:
    """All defaults."""
    return Method()
