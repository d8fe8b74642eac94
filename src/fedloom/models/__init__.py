"""The networks of the papers, by name."""

from fedloom.models.table import MODELS, Entry, build, example, usual_input

__all__ = ["MODELS", "Entry", "build", "example", "usual_input"]
