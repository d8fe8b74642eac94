"""Metrics: scores of a model on a test set, from sums over examples that add up over pieces, ranks and nodes.

`Mean`, and `Sums` where a mean is not enough, are summed on the device, piece by piece, and have a value for every
client. `ByClass` counts within classes. `Whole` and `FromTorchmetrics` see outputs on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedloom.errors import BadExperiment

Best = Literal["high", "low"]
Limits = tuple[float, float]
ANY: Limits = (-inf, inf)
SHARE: Limits = (0.0, 1.0)
POSITIVE: Limits = (0.0, inf)
MOST_GATHERED = 2**30  # bytes of outputs that `Whole` keeps on the host

PerExample = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, ...], targets [B, ...]) -> [B] or [B, k]
Weigh = Callable[[Tensor], Tensor]  # targets [B, ...] -> [B], not negative


class Metric(Protocol):
    """What every kind of metric says of itself."""

    @property
    def name(self) -> str:
        """The column in tables."""

    @property
    def best(self) -> Best:
        """Which direction is better."""

    @property
    def limits(self) -> Limits:
        """The smallest and the largest value that there can be."""


@dataclass(frozen=True)
class Sums:
    """A metric from k numbers of each example, which are summed; `finish` turns sums [..., k] into values [...]."""

    name: str
    terms: PerExample  # -> [B, k]
    finish: Callable[[Tensor], Tensor]
    best: Best = "high"
    limits: Limits = ANY

    def totals(self, output: Tensor, target: Tensor) -> Tensor:
        """The sums over a batch [k] (float64)."""
        return self.terms(output, target).to(torch.float64).sum(0)


@dataclass(frozen=True)
class Mean:
    """The mean of `f(output, target)` over examples, each counted once or by `weigh(target)`, and `then` of that mean.

    `then` is, for example, `torch.exp` for a perplexity or `torch.sqrt` for a root.
    """

    name: str
    f: PerExample  # -> [B]
    best: Best = "high"
    then: Callable[[Tensor], Tensor] | None = None
    weigh: Weigh | None = None
    limits: Limits = ANY

    def terms(self, output: Tensor, target: Tensor) -> Tensor:
        """The value times the weight, and the weight, of each example [B, 2]."""
        value = self.f(output, target).to(torch.float64)
        if value.shape != (len(target),):
            raise BadExperiment(
                f"metric '{self.name}' gave numbers of shape {list(value.shape)} for {len(target)} examples; expected "
                f"one each, [{len(target)}]. One number for all examples is fedloom.Whole('{self.name}', f)."
            )
        weight = torch.ones_like(value) if self.weigh is None else self.weigh(target).to(torch.float64)
        return torch.stack((torch.where(weight > 0, value * weight, 0), weight), 1)

    def totals(self, output: Tensor, target: Tensor) -> Tensor:
        """The sums over a batch [2] (float64)."""
        return self.terms(output, target).sum(0)

    def finish(self, totals: Tensor) -> Tensor:
        """The value [...] of sums [..., 2]."""
        value = totals[..., 0] / totals[..., 1]
        return value if self.then is None else self.then(value)


@dataclass(frozen=True)
class ByClass:
    """The part of each class's examples that are right [classes]; NaN where a class has no example. Never the score."""

    name: str
    right: PerExample  # -> [B] bool
    best: Best = "high"
    limits: Limits = SHARE

    def totals(self, output: Tensor, target: Tensor) -> Tensor:
        """Right examples and all examples of each class, one after the other [2 * classes]."""
        none = torch.zeros(output.shape[1], dtype=torch.float64, device=output.device)
        hits = self.right(output, target).to(torch.float64)
        return torch.cat([none.index_add(0, target, own) for own in (hits, torch.ones_like(hits))])

    def finish(self, totals: Tensor) -> Tensor:
        """Shares [classes]."""
        hits, seen = totals.chunk(2)
        return hits / seen


Summed = Sums | Mean | ByClass


@dataclass(frozen=True)
class Whole:
    """A metric from the outputs of all examples at once, `f(outputs [n, ...], targets [n, ...])`, on the host."""

    name: str
    f: Callable[[Tensor, Tensor], Any]  # -> a number
    best: Best = "high"
    limits: Limits = ANY

    def begin(self) -> list[tuple[Tensor, Tensor]]:
        """No examples yet."""
        return []

    def add(self, seen: list[tuple[Tensor, Tensor]], output: Tensor, target: Tensor) -> None:
        """Keep a piece on the host."""
        seen.append((output.cpu(), target.cpu()))
        size = sum(own.nbytes for own, _ in seen)
        if size > MOST_GATHERED:
            raise BadExperiment(
                f"metric '{self.name}' needs all outputs at once, and {len(torch.cat([y for _, y in seen]))} examples "
                f"already take {size / 2**30:.1f} GiB; write it as sums over examples: fedloom.Sums or fedloom.Mean."
            )

    def value(self, seen: list[tuple[Tensor, Tensor]]) -> float:
        """The metric of all examples."""
        return float(self.f(torch.cat([own for own, _ in seen]), torch.cat([y for _, y in seen])))


@dataclass(frozen=True)
class FromTorchmetrics:
    """A metric object of torchmetrics (or with its `update` and `compute`); the object itself never changes."""

    name: str
    metric: Any
    best: Best
    limits: Limits = ANY

    def begin(self) -> Any:
        """A fresh copy."""
        own = deepcopy(self.metric)
        own.reset()
        return own

    def add(self, seen: Any, output: Tensor, target: Tensor) -> None:
        """Show a piece to the copy."""
        device = getattr(seen, "device", None)
        seen.update(*((output, target) if device is None else (output.to(device), target.to(device))))

    def value(self, seen: Any) -> float:
        """The metric of all examples."""
        return float(seen.compute())


Gathered = Whole | FromTorchmetrics


def as_metric(given: Any) -> Metric:
    """A metric, or a torchmetrics object, as a metric; plain functions are refused with what to write."""
    if isinstance(given, Summed | Gathered):
        return given
    if all(callable(getattr(given, name, None)) for name in ("update", "compute", "reset")):
        higher = getattr(given, "higher_is_better", None)
        kind = type(given).__name__
        if higher is None:
            raise BadExperiment(
                f"torchmetrics' {kind} does not say whether more is better; write fedloom.FromTorchmetrics"
                f"('{kind.lower()}', {kind}(...), best='low') or 'high'."
            )
        return FromTorchmetrics(kind.removeprefix("Binary").removeprefix("Multiclass").lower(), given,
                                "high" if higher else "low")  # fmt: skip
    name = getattr(given, "__name__", type(given).__name__)
    raise BadExperiment(
        f"metric {name} does not say which direction is better; write fedloom.Mean('{name}', {name}, best='low') if it "
        f"gives one number per example, or fedloom.Whole('{name}', {name}, best='low') if one for all ('high' if more "
        "is better)."
    )
