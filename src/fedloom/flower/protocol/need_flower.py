"""The error where Flower is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from fedloom.errors import BadExperiment


def need_flower() -> None:
    """Raise an error that says what to install, unless Flower is there."""
    if find_spec("flwr") is None:
        raise BadExperiment("this needs Flower, which is not installed; pip install 'fedloom[flower]' installs it.")
