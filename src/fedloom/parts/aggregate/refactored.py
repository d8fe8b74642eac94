"""Aggregate: the mean of the products of adapters, factored anew by its singular values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.adapters import adapters_of
from fedloom.core.means import as_sparse, coverage_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class Refactored(Aggregate):
    """`D = sum p_k B_k A_k = U S V`; then A is V and B is U S, largest singular values first, as far as ranks go.

    `p_k` is client k's share of the examples. The leading r components are the best product of rank r. All other
    numbers have the mean of their senders by examples.
    """

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing; refuses a network without adapters."""
        adapters_of(setting, type(self).__name__)
        return {}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Multiply, average, factor."""
        weight = reply.arrived.to(model.dtype) * reply.report["examples"]
        new = coverage_mean(model, reply, weight)
        share, sent = weight.double() / weight.sum().clamp(min=1), as_sparse(reply)
        some = reply.arrived.any()
        for pair in adapters_of(setting, type(self).__name__):
            a, b = (factor.of(sent).double() for factor in (pair.a, pair.b))
            rows, columns = factored((share[:, None, None] * a).flatten(0, 1), b.flatten(0, 1), pair.rank)
            for factor, own in ((pair.a, rows), (pair.b, columns)):
                factor.put(new, torch.where(some, own.to(model.dtype), factor.of(model)))
        return new, memory


def factored(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best factors [rank, n] and [rank, m] of the product `b^T a` [m, n]: orthonormal rows, and scaled columns.

    The largest entry of every row is positive, so that devices agree on signs. Components beyond the sizes of the
    product are zero.
    """
    if rank <= len(a) < min(a.shape[1], b.shape[1]):  # few components: the product is not made
        (one, left), (two, right) = torch.linalg.qr(b.T), torch.linalg.qr(a.T)
        u, s, v = torch.linalg.svd(left @ right.T)
        u, v = one @ u, v @ two.T
    else:
        u, s, v = torch.linalg.svd(b.T @ a, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], v[:rank]
    place = v.abs().argmax(1, keepdim=True)
    sign = torch.where(v.gather(1, place) < 0, -1.0, 1.0)
    rows, columns = a.new_zeros(rank, a.shape[1]), b.new_zeros(rank, b.shape[1])
    rows[: len(v)], columns[: len(v)] = v * sign, (u * s).T * sign
    return rows, columns
