"""Goal `classes`: one class of several, by softmax cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.goal import Goal, Head, Targets
from fedloom.core.metric import SHARE, ByClass, Mean
from fedloom.errors import BadExperiment
from fedloom.goals.constant import constant

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset


@dataclass(frozen=True)
class ClassWeights:
    """The weight of each example's class [B]."""

    weights: tuple[float, ...]

    def __call__(self, target: Tensor) -> Tensor:
        """Look the weights up."""
        return constant(self.weights, torch.float32, target.device)[target]


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy of each example.

    With class weights an example's loss is torch's weighted one divided by its class's weight, which is the example's
    weight in a batch: batch means are those of `F.cross_entropy(weight=..., label_smoothing=...)`. With `focal` g the
    loss is multiplied by `(1 - p) ** g`, where p is the probability of the right class. Targets [B, K] are shares.
    """

    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0
    focal: float = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The losses [B]."""
        weight = None if self.weights is None else constant(self.weights, output.dtype, output.device)
        if weight is not None and output.shape[1] > len(weight):
            weight = F.pad(weight, (0, output.shape[1] - len(weight)))
        how = {"reduction": "none", "label_smoothing": self.smoothing}
        loss: Tensor = F.cross_entropy(output, target, weight, **how)  # type: ignore[arg-type]
        if weight is not None and not target.is_floating_point():
            own = weight[target]
            loss = torch.where(own > 0, loss / own.clamp(min=torch.finfo(own.dtype).tiny), 0)
        if self.focal:
            if target.is_floating_point():
                raise BadExperiment("focal loss takes classes and no shares of them: leave mixup or goal.focal out.")
            right = output.log_softmax(1).gather(1, target[:, None])[:, 0].exp()
            loss = (1 - right) ** self.focal * loss
        return loss


def is_right(output: Tensor, target: Tensor) -> Tensor:
    """Which examples have the largest score at their class [B]; a model whose scores are not finite is never right."""
    return (output.argmax(1) == target) & output.isfinite().all(1)


def is_in_top5(output: Tensor, target: Tensor) -> Tensor:
    """Which examples have their class among the five largest scores [B]; ties as in argmax."""
    own, before = (
        output.gather(1, target[:, None]),
        torch.arange(output.shape[1], device=target.device) < target[:, None],
    )
    rank = ((output > own) | (output == own) & before).sum(1)  # classes before the label
    return (rank < 5) & output.isfinite().all(1)


ACCURACY = Mean("accuracy", is_right, limits=SHARE)
TOP5 = Mean("top5", is_in_top5, limits=SHARE)
PER_CLASS = ByClass("per_class", is_right)


def number_of_classes(data: Dataset) -> int:
    """The classes of the data."""
    return data.classes


def classes(weights: tuple[float, ...] | None = None, smoothing: float = 0.0, focal: float = 0.0) -> Goal:
    """One of several classes. `weights` of classes, label `smoothing`, and the exponent of a `focal` loss."""
    if weights is not None and (min(weights) < 0 or sum(weights) == 0):
        raise BadExperiment(f"weights is {weights}; expected a number for each class, 0 or more, not all 0.")
    if not 0 <= smoothing < 1:
        raise BadExperiment(f"smoothing is {smoothing}; expected 0 or more and less than 1, such as 0.1.")
    if focal < 0:
        raise BadExperiment(f"focal is {focal}; expected 0 or more, such as 2.")
    return Goal(
        name="classes",
        loss=CrossEntropy(weights, smoothing, focal),
        targets=Targets("class"),
        metrics=(ACCURACY, TOP5, PER_CLASS),
        outputs=number_of_classes,
        weigh=None if weights is None else ClassWeights(weights),
        strata=True,
        head=None if focal else Head("softmax", weights, smoothing),
    )
