"""Transforms of training examples by name, or by a function in a file of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedloom.core.goal import Goal, Transform
from fedloom.data.augment import FACTS, TRANSFORMS, Own, build_transform, facts_of, transform_of
from fedloom.errors import BadExperiment, unknown
from fedloom.goals import classes
from fedloom.runs.settings import fit

if TYPE_CHECKING:
    from fedloom.runs.choice import Choice


def check_augment(chosen: Sequence[Choice]) -> None:
    """Refuse names that do not exist and settings that a transform does not take."""
    for one in chosen:
        if one.own is not None:
            one.own.load("augment")
        elif one.name not in TRANSFORMS:
            raise BadExperiment(unknown("augment", one.name, TRANSFORMS))
        else:
            fitted = fit(f"augment '{one.name}'", TRANSFORMS[one.name], one.settings, FACTS)
            build_transform(one.name, fitted, facts_of(classes(), 2))


def every_transform(chosen: Sequence[Choice], given: Transform | None, goal: Goal, classes: int) -> Transform | None:
    """The experiment's transforms, and then the one that `run` was given; a file's function is one itself."""
    made: list[Transform] = []
    for one in chosen:
        if one.own is not None:
            made.append(Own(one.own.load("augment"), one.settings))
        else:
            fitted = fit(f"augment '{one.name}'", TRANSFORMS[one.name], one.settings, FACTS)
            made.append(build_transform(one.name, fitted, facts_of(goal, classes)))
    return transform_of([*made, *([] if given is None else [given])])
