"""`for_goal`: the targets of a dataset as a goal takes them, or an error that says what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.goal import Goal, Targets
from fedloom.data.dataset import Dataset, refuse_fractions, refuse_row
from fedloom.data.sampling import Ints
from fedloom.errors import BadData

MAX_CLASSES = 1_000_000
Client = NDArray[Any] | None


def for_goal(data: Dataset, goal: Goal, file: str) -> Dataset:
    """The dataset with targets of the goal's kind: checked, derived from inputs where the goal says so, and counted.

    A dataset that was made ready before comes back as it is. `file` names the data in errors.
    """
    if goal.derive is not None:
        data = _derived(data, goal, file)
    elif goal.targets.kind == "number" and data.class_names is not None:
        some = ", ".join(repr(name) for name in data.class_names[:3])
        raise BadData(
            f"{file}: array y_train holds texts ({some}, ...); goal '{goal.name}' needs {expected(goal)}; targets like "
            "these are for goal classes"
        )
    y_train, y_test = (
        _fitted(f"{file}: array y_{part}", y, goal, client)
        for part, y, client in (
            ("train", data.y_train, data.client_train),
            ("test", data.y_test, data.client_test),
        )
    )
    if y_train.shape[1:] != y_test.shape[1:]:
        shapes = f"{y_train.shape[1:]} and {y_test.shape[1:]}"
        raise BadData(f"{file}: rows of arrays y_train and y_test have shapes {shapes}; expected equal ones")
    classes = _classes(data, goal, y_train)
    if y_train.dtype == np.int64:
        for part, y, client in (("train", y_train, data.client_train), ("test", y_test, data.client_test)):
            _refuse_outside(f"{file}: array y_{part}", y, classes, goal, client)
    return data._replace(y_train=y_train, y_test=y_test, classes=classes)


def strata_of(data: Dataset, goal: Goal) -> Ints | None:
    """What partitions by class deal by [n]: the data's own strata, else the classes of a goal that has some."""
    if data.stratum_train is not None:
        return data.stratum_train
    return data.y_train if goal.strata else None


def check_targets(where: str, y: NDArray[Any], goal: Goal) -> None:
    """Refuse targets of the wrong kind or shape, and classes below 0, before they are split."""
    fitted = _fitted(where, y, goal, None)
    if goal.targets.kind == "class":
        refuse_row((fitted < 0) & (fitted != goal.targets.ignore), where, y, None, "expected a class, from 0")


def expected(goal: Goal) -> str:
    """The targets that a goal takes, for an error message."""
    what = {"class": "classes, whole numbers from 0,", "number": "numbers", "any": "numbers"}[goal.targets.kind]
    if _is_yes_or_no(goal):
        what = "0 or 1"
    shape = goal.targets.shape
    sizes = "[n, ...]" if shape is None else f"[{', '.join(['n', *('k' if s is None else str(s) for s in shape)])}]"
    return f"{what} {sizes}"


def _derived(data: Dataset, goal: Goal, file: str) -> Dataset:
    """Targets made from inputs; labels that the data have besides become their strata."""
    assert goal.derive is not None
    if not data.vocabulary:
        raise BadData(
            f"{file}: goal '{goal.name}' makes targets from tokens, and inputs are {data.x_train.dtype} "
            f"{list(data.x_train.shape)}; expected whole numbers [n, length], 0 for padding"
        )
    strata, y = data.stratum_train, data.y_train
    made = goal.derive(data.x_train)
    labels = y.ndim == 1 and y.dtype.kind in "iu" and len(y) == len(data.x_train) and bool((y != y[0]).any())
    if strata is None and labels:
        strata = np.unique(y, return_inverse=True)[1].astype(np.int64)
    return data._replace(
        y_train=made, y_test=goal.derive(data.x_test), stratum_train=strata, classes=data.vocabulary, class_names=None
    )


def _fitted(where: str, y: NDArray[Any], goal: Goal, client: Client) -> NDArray[Any]:
    """Targets with the shape and the type of the goal."""
    targets = goal.targets
    if not y.size:
        raise BadData(f"{where} is missing; goal '{goal.name}' needs {expected(goal)}")
    if targets.shape == () and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if not _has_shape(y, targets):
        hint = _better_goal(y)
        raise BadData(f"{where} has shape {y.shape}; goal '{goal.name}' needs {expected(goal)}{hint}")
    if targets.kind == "class" or (targets.kind == "any" and y.dtype.kind in "iub"):
        try:
            refuse_fractions(where, y, client)
        except BadData as problem:
            raise BadData(f"{problem}; goal '{goal.name}' needs {expected(goal)}{_better_goal(y)}") from None
        return y.astype(np.int64, copy=False)
    if y.dtype.kind == "f":
        refuse_row(~(np.abs(y) <= np.finfo(np.float32).max), where, y, client, "expected finite float32 numbers")
    return y.astype(np.float32, copy=False)


def _has_shape(y: NDArray[Any], targets: Targets) -> bool:
    """Whether targets [n, ...] have the shape that the goal names."""
    if targets.shape is None:
        return y.ndim > 0
    behind = y.shape[1:]
    return y.ndim > 0 and len(behind) == len(targets.shape) and all(
        size is None or size == found for size, found in zip(targets.shape, behind)
    )  # fmt: skip


def _is_yes_or_no(goal: Goal) -> bool:
    """Whether targets are 0 or 1: classes that are answered by one number each."""
    return goal.targets.kind == "class" and goal.answer == "numbers"


def _classes(data: Dataset, goal: Goal, y: NDArray[Any]) -> int:
    """How many classes there are, or how many numbers an example has."""
    if y.dtype != np.int64:
        return 1 if y.ndim == 1 else int(np.prod(y.shape[1:]))
    if _is_yes_or_no(goal):
        return 2
    if data.classes:
        return data.classes
    if goal.targets.ignore is not None:
        y = y[y != goal.targets.ignore]
    return min(max(int(y.max(initial=0)) + 1, 1), MAX_CLASSES)


def _refuse_outside(where: str, y: Ints, classes: int, goal: Goal, client: Client) -> None:
    """Refuse classes that do not exist."""
    if goal.targets.kind == "any":
        return
    outside = (y < 0) | (y >= classes)
    ignored = ""
    if goal.targets.ignore is not None:
        outside &= y != goal.targets.ignore
        ignored = f", or {goal.targets.ignore} for what does not count"
    refuse_row(outside, where, y, client, f"expected a label from 0 to {classes - 1}{ignored}")


def _better_goal(y: NDArray[Any]) -> str:
    """The goals that targets like these are for."""
    names = {
        ("f", 1): "numbers", ("f", 2): "numbers", ("i", 1): "classes",
        ("i", 2): "labels (0 or 1) or tokens (a class at every place)", ("i", 3): "pixels",
    }  # fmt: skip
    found = names.get(("f" if y.dtype.kind == "f" else "i", y.ndim))
    return "" if found is None else f"; targets like these are for goal {found}"
