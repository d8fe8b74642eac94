"""Goals with a loss and metrics of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedloom.core.goal import Goal, Loss, Targets
from fedloom.core.metric import Mean, Metric, as_metric
from fedloom.errors import BadExperiment

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
    found = metrics_of(metrics) or (Mean("test_loss", loss, "low", weigh=weigh),)
    check_loss(loss)
    shape = targets or Targets("any", None)
    return Goal(name, loss, shape, found, outputs, "any", weigh=weigh, strata=strata)


def changed(goal: Goal, loss: Loss | None, metrics: Sequence[Any] | None) -> Goal:
    """The goal with a loss or metrics of the user's own."""
    if loss is not None:
        check_loss(loss)
        goal = replace(goal, loss=loss, head=None)
    return goal if metrics is None else replace(goal, metrics=metrics_of(metrics))


def metrics_of(given: Any) -> tuple[Metric, ...]:
    """Several metrics, or one by itself, as metrics."""
    return tuple(as_metric(one) for one in (given if isinstance(given, list | tuple) else [given]))


def check_loss(loss: object) -> None:
    """Refuse what cannot be called with outputs and targets."""
    if isinstance(loss, type):
        raise BadExperiment(
            f"loss is the class {loss.__name__}; expected something to call with (outputs, targets), such as "
            f"{loss.__name__}(reduction='none')."
        )
    if not callable(loss):
        raise BadExperiment(
            f"loss is {loss!r} ({type(loss).__name__}); expected a function (outputs, targets) -> [B], one number per "
            "example; losses of goals by name are settings, as in goal.loss=huber."
        )
