"""In which way does a cohort take its steps? It follows from the rule, the optimiser, the network and the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloom.client import Examples, Gradient
from fedloom.engine.stacked import StackedGradient
from fedloom.local.optimiser import Sgd
from fedloom.machine import own_kernels
from fedloom.method import Method

if TYPE_CHECKING:
    from fedloom.engine.chain import Link


def ways(method: Method, gradient: Gradient) -> tuple[bool, bool]:
    """Is the step part of the backward pass? Or one with momentum, tensor by tensor?"""
    rule, optimiser = method.local, method.optimiser
    if rule.corrects or not isinstance(gradient, StackedGradient):
        return False, False
    heavy = isinstance(optimiser, Sgd) and optimiser.momentum > 0 and optimiser.clip is None and optimiser.fresh
    return optimiser.plain, heavy


def links_of(method: Method, gradient: Gradient, data: Examples) -> tuple[Link, ...] | None:
    """The layers, where kernels of ours take whole steps of a chain of linear ones."""
    if not (any(ways(method, gradient)) and own_kernels(data.x.device.type)):
        return None
    from fedloom.engine.linked import fits

    assert isinstance(gradient, StackedGradient)
    links = None if gradient.low else gradient.chain
    return links if links and fits(links, gradient, data) else None
