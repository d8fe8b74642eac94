"""Tables of settings for `fedloom list`: default, unit, range, meaning, and methods with another default."""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedloom.core.section import Section
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.report.group import plain
from fedloom.runs.experiment import GROUPS, SECTIONS, Experiment

MOST = 2**62  # larger limits are those of a number's bits
SIGNS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
LISTED = {"data": "data", "admit": "checks", "stale": "staleness"}  # lists that are not named by the plural
ELSEWHERE = {  # what other descriptions leave to the option's help
    "clients": "clients in the fleet",
    "device": "auto, cpu, cuda, cuda:1 ...",
    "engine": "the cohort at once, one after another, or under torchrun",
}


class SettingRow(NamedTuple):
    """A setting."""

    name: str
    default: str
    unit: str
    range: str
    about: str


def setting_rows(kind: str) -> list[SettingRow]:
    """The settings of one group, of an `experiment`, or of both (`settings`), with the group's name before each."""
    if kind in GROUPS:
        return _rows(GROUPS[kind], kind)
    found = _rows(Experiment, "")
    if kind == "experiment":
        return found
    for name, group in GROUPS.items():
        found += [row._replace(name=f"{name}.{row.name}") for row in _rows(group, name)]
    return found


def _rows(group: type[Section], name: str) -> list[SettingRow]:
    """The settings of a group; those that are groups themselves are left out."""
    found = []
    for key, field in group.model_fields.items():
        if key in GROUPS and not name:
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        about = field.description or ELSEWHERE.get(key, "")
        if key in SECTIONS and not name:
            about = f"a name: fedloom list {LISTED.get(key, f'{key}s')}"
        default, others = _default(field), ""
        if name == "training":
            default, others = training_defaults(key)
        found.append(
            SettingRow(
                key, default, str(extra.get("unit", "")), _range(field, extra), about + (others and f"; {others}")
            )
        )
    return found


def _default(field: FieldInfo) -> str:
    """A default as typed; a name alone for a choice."""
    value = field.default
    return "" if value is PydanticUndefined else plain(getattr(value, "name", value)).replace("null", "none")


def _range(field: FieldInfo, extra: Any) -> str:
    """The values that are allowed, in words."""
    within = str(extra.get("within", ""))
    if within:
        return within
    limits = [(sign, getattr(one, sign, None)) for one in field.metadata for sign in SIGNS]
    words = [f"{SIGNS[sign]} {value:g}" for sign, value in limits if value is not None and abs(value) < MOST]
    kinds = [field.annotation, *get_args(field.annotation)]
    words += [" or ".join(map(str, get_args(one))) for one in kinds if get_origin(one) is Literal][:1]
    words += ["true or false"] if bool in kinds else []
    return ", ".join(filter(None, words))


def training_defaults(key: str) -> tuple[str, str]:
    """What most methods have, and which methods have something else."""
    values: dict[str, list[str]] = {}
    for name, maker in METHODS.items():
        if all(p.default is not inspect.Parameter.empty for p in inspect.signature(maker).parameters.values()):
            try:
                values.setdefault(_own(maker(), key), []).append(name)
            except BadExperiment:
                continue
    usual = max(values, key=lambda value: len(values[value]))
    others = [f"{', '.join(names)}: {value}" for value, names in values.items() if value != usual]
    return usual, "; ".join(others)


def _own(method: Method, key: str) -> str:
    """A method's own value of a training setting."""
    if key == "stop_early":
        return "none"
    if key == "optimiser":
        return type(method.optimiser).__name__.lower()
    value = getattr(method.work if key in ("epochs", "steps", "batch") else method.optimiser, key)
    return "none" if value is None else plain(value)
