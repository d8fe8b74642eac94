"""Types of an experiment's keys: a name with its settings, and the shares of a split."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedloom.core.section import Section
from fedloom.runs.own_function import OwnFunction, own_function


class Choice(Section):
    """A name with its settings."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def own(self) -> OwnFunction | None:
        """The user's own function, if the name stands for one."""
        return own_function(self.name)


def choice(value: Any) -> Any:
    """A name alone as a choice without settings."""
    return {"name": value} if isinstance(value, str) else value


def three_shares(value: Any) -> Any:
    """Refuse a split that does not have three shares."""
    if isinstance(value, list | tuple) and len(value) != 3:
        raise ValueError(
            f"{value} has {len(value)} shares; expected three, of training, validation and own test, such as "
            "[0.7,0,0.3]."
        )
    return value


Named = Annotated[Choice, BeforeValidator(choice)]
