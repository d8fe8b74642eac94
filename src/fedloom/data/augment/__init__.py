"""Transforms of batches (augmentation): by name, of the user's own, and how they are checked.

A transform is called with examples, their targets and one random key for each example, after a batch was gathered. One
that treats examples one by one is called for the examples of many clients at once; one with the attribute
`mixes = True` is called per client on its real examples.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedloom.core.goal import Goal, Transform
from fedloom.data.augment.check import check_transform
from fedloom.data.augment.images import Crop, Cutout, Flip, Noise
from fedloom.data.augment.mixing import Mixup, Seeded
from fedloom.data.augment.several import Own, Several, mixes, shares, transform_of
from fedloom.data.augment.tokens import DropTokens

__all__ = [
    "FACTS",
    "TRANSFORMS",
    "Crop",
    "Cutout",
    "DropTokens",
    "Flip",
    "Mixup",
    "Noise",
    "Own",
    "Seeded",
    "Several",
    "build_transform",
    "check_transform",
    "facts_of",
    "mixes",
    "shares",
    "transform_of",
]

TRANSFORMS: dict[str, type[Any]] = {
    "flip": Flip,
    "crop": Crop,
    "noise": Noise,
    "cutout": Cutout,
    "mixup": Mixup,
    "drop-tokens": DropTokens,
}
FACTS = ("classes", "targets", "fill")  # facts of goal and data, not settings


def facts_of(goal: Goal, classes: int) -> dict[str, Any]:
    """What transforms need to know: the number of classes, whether a target is an image, its class for nothing."""
    behind = goal.targets.shape
    return {
        "classes": classes,
        "targets": behind is not None and len(behind) == 2,
        "fill": 0 if goal.targets.ignore is None else goal.targets.ignore,
    }


def build_transform(name: str, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> Transform:
    """The transform with this name, with the settings given and the facts it takes."""
    kind = TRANSFORMS[name]
    takes = {one.name for one in fields(kind)}
    made: Transform = kind(**settings, **{fact: value for fact, value in facts.items() if fact in takes})
    return made
