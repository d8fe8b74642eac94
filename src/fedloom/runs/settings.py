"""Which settings does a function take, and do given ones fit? For methods, models, data and partitions alike."""

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
    """The settings of a function by name; `skip` names what the caller supplies."""
    return {name: p for name, p in _known(function)[0].items() if name not in skip}


@lru_cache(maxsize=512)  # looking takes longer than all else that a check does
def _known(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """A function's settings, and the types of what has one."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p for p in parameters if p.kind in kinds}, get_type_hints(function)


@lru_cache(maxsize=512)
def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """What checks a setting's type."""
    return TypeAdapter(_known(function)[1].get(name, Any))


def fit(
    what: str, function: Callable[..., Any], given: Mapping[str, Any], skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The given settings, checked against the function's names and types."""
    takes, hints = settings_of(function, skip), _known(function)[1]
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
    """What the function gives for these settings; its own failure is said as the setting's owner's."""
    fitted = fit(what, function, given)
    try:
        return function(**fitted)
    except FedloomError:
        raise
    except Exception as problem:
        raise BadExperiment(f"{what} failed: {type(problem).__name__}: {problem}") from problem


def parse_value(text: str) -> Any:
    """A setting's value as typed on the command line: JSON where it is JSON, else the text itself."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or numbers and nesting that no setting has
        return text
