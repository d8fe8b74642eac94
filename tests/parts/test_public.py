"""`fedloom.parts` and `fedloom.methods` export every part and every method, and list all that they export."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import fedloom.methods
import fedloom.parts
from fedloom.core import optimiser, pace, part, rule, stale
from fedloom.core.part import Part
from fedloom.core.rule import LocalRule
from fedloom.methods import METHODS

ROOMS = pytest.mark.parametrize("room", [fedloom.parts, fedloom.methods], ids=["parts", "methods"])


def written_in(room: ModuleType) -> dict[str, type]:
    """Every public part class that a module of the room defines, by name."""
    found = {}
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        if module.name.endswith("_kernel"):  # needs Triton
            continue
        for name, thing in vars(importlib.import_module(module.name)).items():
            own = inspect.isclass(thing) and thing.__module__ == module.name
            if own and issubclass(thing, Part | LocalRule) and not name.startswith("_"):
                assert name not in found, f"two parts are called {name}"
                found[name] = thing
    return found


@ROOMS
def test_every_part_is_exported(room: ModuleType) -> None:
    parts = written_in(room)
    assert parts
    for name, thing in parts.items():
        assert getattr(room, name) is thing
        assert name in room.__all__


@ROOMS
def test_what_is_listed_is_what_there_is(room: ModuleType) -> None:
    public = {name for name, thing in vars(room).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
    assert public - {"Callable", "Method"} == set(room.__all__)
    assert len(set(room.__all__)) == len(room.__all__)
    for name in set(room.__all__) - {"METHODS", "State"}:
        assert getattr(room, name).__doc__


def test_every_method_is_exported() -> None:
    for name, make in METHODS.items():
        assert getattr(fedloom.methods, name.replace("-", "_")) is make
        assert make.__name__ in fedloom.methods.__all__


@pytest.mark.parametrize(
    "module", [part, pace, rule, stale, optimiser], ids=["part", "pace", "rule", "stale", "optimiser"]
)
def test_the_contracts_of_slots_are_exported(module: ModuleType) -> None:
    contracts = {n for n, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
    assert contracts
    assert contracts <= set(fedloom.parts.__all__)


def test_parts_print_as_they_are_written() -> None:
    for make in METHODS.values():
        method = make()
        names = {**vars(fedloom.parts), **vars(fedloom.methods), "Method": type(method)}
        assert eval(repr(method), names) == method  # noqa: S307  our own words
