"""Tables of names for `fedloom list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from fedloom.adapters import ADAPTERS
from fedloom.core.paper import PAPERS
from fedloom.core.part import ServerPart, Upload
from fedloom.core.rule import LocalRule
from fedloom.core.stale import Stale
from fedloom.data.augment import FACTS as UNTYPED, TRANSFORMS
from fedloom.data.load import DATASETS, settings_of as data_settings
from fedloom.data.partition import PARTITIONS, settings_of as partition_settings
from fedloom.goals import GOALS
from fedloom.methods import METHODS
from fedloom.models import MODELS
from fedloom.runs.experiment import CHANNELS, GIVEN, SUPPLIED
from fedloom.runs.named_paces import PACES, STALES
from fedloom.runs.named_parts import ADMITS, AGGREGATES, ATTACKS, FACTS
from fedloom.runs.settings import settings_of
from fedloom.world.fleets import FLEETS, TRANSPORTS

CHOSEN: dict[str, dict[str, Any]] = {
    "paces": PACES,
    "staleness": STALES,
    "aggregates": AGGREGATES,
    "checks": ADMITS,
    "attacks": ATTACKS,
}

CONTRACTS = tuple(f"fedloom.core.{name}" for name in ("part", "pace", "stale", "rule"))
ROOMS = ("fedloom.core.", "fedloom.parts.", "fedloom.methods.")  # of parts that a method is made of


class Row(NamedTuple):
    """One name, with its settings and what it is."""

    name: str
    settings: str
    about: str
    facts: tuple[tuple[str, str], ...] = ()  # of a method: its paper, year, mask and whether it is the paper's own

    def record(self) -> dict[str, str]:
        """Everything by name."""
        return {"name": self.name, "settings": self.settings, "about": self.about, **dict(self.facts)}

    @property
    def told(self) -> str:
        """What it is, and its facts on lines of their own."""
        return "\n".join([self.about, *(f"{name}: {value}" for name, value in self.facts)])


def catalogue(kind: str) -> list[Row]:
    """All names of one kind."""
    if kind == "methods":
        return [_method(name, maker) for name, maker in METHODS.items()]
    if kind == "models":
        return [Row(name, _settings(entry.make, SUPPLIED), entry.about) for name, entry in MODELS.items()]
    if kind == "adapters":
        return [Row(name, _settings(make, GIVEN), _about(inspect.getmodule(make))) for name, make in ADAPTERS.items()]
    if kind == "goals":
        return [Row(name, _settings(make), _about(make)) for name, make in GOALS.items()]
    if kind == "augment":
        return [Row(name, _settings(make, UNTYPED), _about(make)) for name, make in TRANSFORMS.items()]
    if kind == "partitions":
        return [Row(name, _defaults(partition_settings(name)), _about(make)) for name, make in PARTITIONS.items()]
    if kind == "data":
        return [Row(name, _defaults(data_settings(name)), about) for name, about in DATASETS.items()]
    if kind == "fleets":
        fleets = [Row(name, "any column", _about(make)) for name, make in FLEETS.items()]
        added = [name for name in TRANSPORTS if name != "none"]
        return fleets + [Row(f"transport={name}", "any fleet's", _about(TRANSPORTS[name])) for name in added]
    if kind == "channels":
        return [Row(name, _settings(make), _about(make)) for name, make in CHANNELS.items()]
    if kind in CHOSEN:
        return [Row(name, _settings(make, FACTS), _about(make)) for name, make in CHOSEN[kind].items()]
    return _parts()


def _method(name: str, make: Callable[..., Any]) -> Row:
    """A method with its paper."""
    from_paper = PAPERS[make]
    facts = (
        ("paper", from_paper.source or "none"),
        ("year", str(from_paper.year)),
        ("mask", from_paper.mask),
        ("origin", from_paper.origin),
    )
    return Row(name, _settings(make), _about(inspect.getmodule(make)), facts)


def _parts() -> list[Row]:
    """Every part that fills a slot, with the slot; `fedloom.methods` has imported them all."""
    found, waiting = [], [ServerPart, Upload, Stale, LocalRule]
    while waiting:
        part = waiting.pop()
        waiting += part.__subclasses__()
        if not inspect.isabstract(part) and part is not ServerPart and part.__module__.startswith(ROOMS):
            slot = next(base.__name__.lower() for base in part.__mro__ if base.__module__ in CONTRACTS)
            found.append(Row(f"{slot.replace('localrule', 'local')}: {part.__name__}", _settings(part), _about(part)))
    return sorted(found)


def _about(thing: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _settings(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> str:
    """A function's settings and their defaults, as text."""
    return _defaults({p.name: p.default for p in settings_of(function, skip).values()})


def _defaults(settings: dict[str, Any]) -> str:
    """Settings and their defaults, as text."""
    return ", ".join(
        name if value is inspect.Parameter.empty else f"{name}={value}" for name, value in settings.items()
    )
