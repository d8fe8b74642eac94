"""Changes of training examples by name, or by a function in a file of the user's own."""

from __future__ import annotations

from typing import Any

from fedloom.core.goal import Transform
from fedloom.data.augment import TRANSFORMS, Own
from fedloom.errors import BadExperiment, unknown
from fedloom.runs.own_function import OwnFunction
from fedloom.runs.settings import make


def transform_of(name: str, settings: dict[str, Any], own: OwnFunction | None) -> Transform:
    """The change of examples; a user's own function is one itself: `f(x, y, keys, **settings)`."""
    if own is not None:
        return Own(own.load("augment"), tuple(sorted(settings.items())))
    if name not in TRANSFORMS:
        raise BadExperiment(unknown("augment", name, TRANSFORMS))
    made: Transform = make(f"augment '{name}'", TRANSFORMS[name], settings)
    return made
