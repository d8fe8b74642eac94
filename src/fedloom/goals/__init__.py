"""Goals by name: what a run trains for."""

from collections.abc import Callable

from fedloom.core.goal import Goal
from fedloom.goals.classes import classes
from fedloom.goals.logits import binary, labels
from fedloom.goals.numbers import numbers
from fedloom.goals.own import own
from fedloom.goals.places import next_token, pixels, tokens

__all__ = ["GOALS", "binary", "classes", "labels", "next_token", "numbers", "own", "pixels", "tokens"]

GOALS: dict[str, Callable[..., Goal]] = {
    "classes": classes,
    "labels": labels,
    "binary": binary,
    "numbers": numbers,
    "tokens": tokens,
    "next-token": next_token,
    "pixels": pixels,
}
