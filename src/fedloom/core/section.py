"""`Section`, the base of all validated settings."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedloom.errors import BadExperiment


def told(description: str, unit: str = "", within: str = "", default: Any = None, **limits: Any) -> Any:
    """A field with its unit, and its range in words where it is not checked by `limits` but later."""
    return Field(default, description=description, json_schema_extra={"unit": unit, "within": within}, **limits)


class Section(BaseModel):
    """Frozen, validated settings: unknown names, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_booleans(cls, values: Any) -> Any:
        """Refuse true and false as numbers."""
        for name, value in values.items() if isinstance(values, dict) else ():
            if name in cls.model_fields:
                refuse_boolean(name, value, cls.model_fields[name].annotation)
        return values


def refuse_boolean(what: str, value: Any, kind: Any) -> None:
    """Refuse true and false where a number is expected: Python takes them for 1 and 0."""
    if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)} and bool not in get_args(kind):
        raise BadExperiment(f"{what} is {value}; expected a number.")
