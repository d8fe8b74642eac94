"""Settings of methods, models, data and partitions: what a function takes, and checks of what is given."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedloom.core.section import refuse_boolean
from fedloom.errors import BadExperiment, FedloomError, unknown


def settings_of(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
    """The settings of a function by name, without those in `skip`, which the caller supplies."""
    return {name: p for name, p in _inspected(function)[0].items() if name not in skip}


@lru_cache(maxsize=512)  # inspection takes longer than the rest of a check
def _inspected(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """A function's settings, and the types of those that are annotated."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p for p in parameters if p.kind in kinds}, get_type_hints(function)


@lru_cache(maxsize=512)
def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """The validator of a setting's type."""
    return TypeAdapter(_inspected(function)[1].get(name, Any))


def fit(
    what: str, function: Callable[..., Any], given: Mapping[str, Any], skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The given settings, checked against the function's names and types."""
    takes, hints = settings_of(function, skip), _inspected(function)[1]
    fitted = {}
    for name, value in given.items():
        if name not in takes:
            raise BadExperiment(
                unknown(f"setting of {what}", name, takes) if takes else f"{what} takes no settings; got '{name}'."
            )
        kind = hints.get(name, Any)
        refuse_boolean(f"setting '{name}' of {what}", value, kind)
        try:
            fitted[name] = _adapter(function, name).validate_python(value)
        except ValidationError as problem:
            expected = getattr(kind, "__name__", str(kind))
            detail = problem.errors()[0]["msg"]
            raise BadExperiment(f"setting '{name}' of {what} is {value!r}; expected {expected} ({detail}).") from None
        if isinstance(fitted[name], float) and not isfinite(fitted[name]):
            raise BadExperiment(f"setting '{name}' of {what} is {value!r}; expected a finite number.")
    for name, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise BadExperiment(f"setting '{name}' of {what} has no default; give it a value.")
    return fitted


def make(what: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """The function's result for these settings; an exception in it becomes a `BadExperiment` that names `what`."""
    fitted = fit(what, function, given)
    try:
        return function(**fitted)
    except FedloomError:
        raise
    except Exception as problem:
        raise BadExperiment(f"{what} failed: {type(problem).__name__}: {problem}") from problem


def parse_value(text: str) -> Any:
    """A setting's value as typed on the command line: parsed if it is JSON, else the text itself."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or numbers too long and nesting too deep for any setting
        return text
