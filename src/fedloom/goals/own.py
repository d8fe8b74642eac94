"""Goals with a loss and metrics of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedloom.core.goal import Goal, Loss, Targets
from fedloom.core.metric import Mean, as_metric

if TYPE_CHECKING:
    from fedloom.core.metric import Weigh
    from fedloom.data.dataset import Dataset


def number_of_classes(data: Dataset) -> int:
    """The classes of the data, or the numbers of a target."""
    return data.classes


def own(
    loss: Loss,
    metrics: Sequence[Any] = (),
    *,
    targets: Targets | None = None,
    outputs: Callable[[Dataset], int] = number_of_classes,
    weigh: Weigh | None = None,
    strata: bool = False,
    name: str = "own",
) -> Goal:
    """A goal of your own.

    Args:
        loss: `(outputs [B, ...], targets [B, ...]) -> [B]`, one loss per example.
        metrics: `fedloom.Mean`, `Sums`, `Whole` or torchmetrics objects; the first is the score. The loss if empty.
        targets: what targets look like; by default of any shape, whole numbers as int64 and others as float32.
        outputs: the width of the answer, which networks by name are told as their number of classes.
        weigh: the weight of an example from its target; None: every example counts 1.
        strata: whether targets [n] are classes that partitions can deal by.
        name: what tables call the goal.
    """
    found = tuple(as_metric(one) for one in metrics) or (Mean("test_loss", loss, "low", weigh=weigh),)
    shape = targets or Targets("any", None)
    return Goal(name, loss, shape, found, outputs, "any", weigh=weigh, strata=strata)


def changed(goal: Goal, loss: Loss | None, metrics: Sequence[Any] | None) -> Goal:
    """The goal with a loss or metrics of the user's own."""
    if loss is not None:
        goal = replace(goal, loss=loss, head=None)
    return goal if metrics is None else replace(goal, metrics=tuple(as_metric(one) for one in metrics))
