"""What an experiment has where it was left open and its method makes a model for each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedloom.method import Method

SPLIT = (0.8, 0.0, 0.2)  # a fifth of each client's examples, to try its own model on
NORMED = {"name": "mlp", "settings": {"norm": "batch"}}


def left_to_rule(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """Examples kept back, and a network with norm layers for a rule that is about them."""
    traits, found = method.local.traits, dict[str, Any]()
    if traits.personal and "split" not in given:
        found["split"] = SPLIT
    if traits.norms and "model" not in given and "goal" not in given:
        found["model"] = NORMED
    return found
