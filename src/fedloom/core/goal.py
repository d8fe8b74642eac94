"""The goal of a run: loss per example, the weight of an example, metrics, and what targets and answers look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.metric import Mean, Metric, Sums, Weigh
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, ...], targets [B, ...]) -> one loss per example [B]
# (inputs [n, ...], targets [n, ...], one random key per example [n]) -> inputs and targets of the same length
Transform = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Targets(NamedTuple):
    """What targets look like."""

    kind: Literal["class", "number", "any"] = "class"  # int64, float32, or whichever of the two the data have
    shape: tuple[int | None, ...] | None = ()  # behind n; None in a place: any size; None altogether: any shape
    ignore: int | None = None  # a class that counts for nothing


class Head(NamedTuple):
    """A loss in plain values, for code that computes its gradient itself."""

    kind: Literal["softmax", "squared", "binary"]
    weights: tuple[float, ...] | None = None  # of classes (softmax), or one for positive targets (binary)
    smoothing: float = 0.0  # of classes (softmax)


@dataclass(frozen=True)
class Goal:
    """What a run trains for and is judged by. Goals are compared by value: losses and metrics are values too."""

    name: str
    loss: Loss
    targets: Targets
    metrics: tuple[Metric, ...]  # the first is the score
    outputs: Callable[[Dataset], int]  # the width of the network's answer; what models are told as `classes`
    # the answer has scores for every class along `axis`, or as many numbers as a target; "any" is not checked
    answer: Literal["scores", "numbers", "any"] = "scores"
    axis: int = 1
    weigh: Weigh | None = None  # of an example, from its target; None: every example counts 1
    strata: bool = False  # whether targets [n] are themselves the strata that partitions deal by
    derive: Callable[[NDArray[Any]], NDArray[Any]] | None = None  # targets from inputs
    head: Head | None = None  # the loss in plain values, if it is one of those that `Head` can say

    def __post_init__(self) -> None:
        if not self.metrics:
            raise BadExperiment(f"goal '{self.name}' has no metrics; its first one is the score of the run.")

    @property
    def logits(self) -> bool:
        """Whether the answer's numbers are scores before a softmax or a sigmoid."""
        return self.answer == "scores" or (self.head is not None and self.head.kind == "binary")

    @property
    def one_class(self) -> bool:
        """Whether an example has one class, for which the answer has a score: only then do outputs stand for strata."""
        return self.strata and self.answer == "scores"

    @property
    def score(self) -> Metric:
        """The metric that drives targets, comparisons, charts and personal scores."""
        return self.metrics[0]

    @property
    def personal(self) -> Sums | Mean:
        """The metric by which clients' own models are scored: the first one of sums, or the loss if there is none."""
        sums = (one for one in self.metrics if isinstance(one, Sums | Mean))
        return next(sums, Mean("loss", self.loss, "low", weigh=self.weigh))
