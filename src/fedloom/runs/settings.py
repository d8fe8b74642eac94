"""Settings of methods, models, data and partitions: what a function takes, and checks of what is given."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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


PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "none"}
LISTS = {int: "a list of whole numbers, as [1,2]", float: "a list of numbers, as [0.5,1]", str: "a list of texts"}


@lru_cache(maxsize=512)
def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """The validator of a setting's type."""
    return TypeAdapter(_inspected(function)[1].get(name, Any))


def _in_words(kind: Any) -> str | None:
    """The values of a setting's type in words; None for types that few people set."""
    if kind in PLAIN:
        return PLAIN[kind]
    inside = get_args(kind)
    if get_origin(kind) is Literal:
        return _joined([repr(one) for one in inside])
    if get_origin(kind) in (Union, UnionType):
        words = [_in_words(one) for one in inside]
        return None if None in words else _joined([word for word in words if word])
    if get_origin(kind) in (tuple, list) and inside and inside[0] in LISTS:
        return LISTS[inside[0]]
    return None


def _joined(words: list[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


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
            words = _in_words(kind) or f"{getattr(kind, '__name__', kind)} ({problem.errors()[0]['msg']})"
            raise BadExperiment(f"setting '{name}' of {what} is {value!r}; expected {words}.") from None
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
    """A setting's value as typed on the command line: parsed if it is JSON or a list of names, else the text itself.

    A list of names is `[crop,flip]`; a name may have settings, as in `[crop(pad=2),flip]`, and may be a user's own
    function, as in `[my_aug.py:jitter]`.
    """
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    for read in (json.loads, _listed):
        try:
            return read(text)
        except (ValueError, RecursionError):  # another form, or numbers too long and nesting too deep for any setting
            continue
    return text


def split_at_commas(text: str) -> list[str]:
    """The pieces between commas outside of brackets and quotes, stripped; a `ValueError` where one stays open."""
    pieces, closing, start = [], [""], 0
    for place, sign in enumerate(_QUOTED.sub(lambda found: "_" * len(found[0]), text)):
        if sign in _BRACKETS:
            closing.append(_BRACKETS[sign])
        elif sign in _BRACKETS.values():
            if closing.pop() != sign:
                raise ValueError(f"'{sign}' closes nothing")
        elif sign == "," and len(closing) == 1:
            pieces.append(text[start:place].strip())
            start = place + 1
        elif sign == '"':
            raise ValueError("a quote stays open")
    if len(closing) > 1:
        raise ValueError("a bracket stays open")
    return [*pieces, text[start:].strip()]


_QUOTED = re.compile(r'"(\\.|[^"\\])*"', re.DOTALL)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_NAME = re.compile(r"(?P<name>[^][(){}\"',=]*[^][(){}\"',=\s])\s*(\((?P<settings>.*)\))?", re.DOTALL)


def _listed(text: str) -> list[Any]:
    """A list in brackets of names, names with settings, and numbers; a `ValueError` for any other text."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError("no list")
    return [_named(piece) for piece in split_at_commas(text[1:-1])]


def _named(text: str) -> Any:
    """A name, a name with its settings, or a number; a `ValueError` for any other text."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValueError("no name")
    if found["settings"] is None:
        return parse_value(text)
    if not found["settings"].strip():
        return found["name"]
    pairs = [piece.partition("=") for piece in split_at_commas(found["settings"])]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise ValueError("a setting without a value")
    return {"name": found["name"], "settings": {key.strip(): parse_value(value.strip()) for key, _, value in pairs}}
