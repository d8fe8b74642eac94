"""Aggregate: the mean of adapters of several ranks, in which components that a client lacks count as zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.adapters import adapters_of, product_norm
from fedloom.core.means import as_sparse, coverage_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class PaddedMean(Aggregate):
    """`A = sum w_k pad(A_k)`, and B likewise; all other numbers have the mean of their senders by examples.

    `w_k` is client k's share of the norms `||B_k A_k||`, for every adapter by itself (`norm`) or of all together
    (`joint`), or of the `examples`. Where all norms are 0 examples decide.
    """

    weigh: Literal["norm", "joint", "examples"] = "norm"

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing; refuses a network without adapters."""
        adapters_of(setting, type(self).__name__)
        return {}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Average, counting zeros."""
        arrived = reply.arrived.to(model.dtype)
        examples = arrived * reply.report["examples"]
        new = coverage_mean(model, reply, examples)
        by_examples = examples / examples.sum().clamp(min=1)
        sent, pairs = as_sparse(reply), adapters_of(setting, type(self).__name__)
        factors = [(pair.a.of(sent), pair.b.of(sent)) for pair in pairs]
        norms = torch.stack([product_norm(a, b) for a, b in factors]) * arrived  # [L, C]
        if self.weigh == "joint":
            norms = norms.square().sum(0).sqrt().expand_as(norms)
        total = norms.sum(1, keepdim=True)
        weights = torch.where(total > 0, norms / total.clamp(min=torch.finfo(model.dtype).tiny), by_examples)
        if self.weigh == "examples":
            weights = by_examples.expand_as(norms)
        some = arrived.sum() > 0
        for pair, weight, rows in zip(pairs, weights, factors):
            for factor, own in zip((pair.a, pair.b), rows):
                mean = torch.einsum("c,crn->rn", weight, own)
                factor.put(new, torch.where(some, mean, factor.of(model)))
        return new, memory
