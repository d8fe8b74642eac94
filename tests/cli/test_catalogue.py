"""What `fedloom list` shows is what `fedloom run` understands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from importlib import import_module
from inspect import isabstract, signature
from pkgutil import iter_modules
from typing import Any

import pytest

from fedloom.adapters import ADAPTERS
from fedloom.cli.catalogue import catalogue
from fedloom.core.part import ServerPart, Upload
from fedloom.core.rule import LocalRule
from fedloom.core.stale import Stale
from fedloom.data.augment import TRANSFORMS
from fedloom.data.load import DATASETS
from fedloom.data.partition import PARTITIONS, settings_of as partition_settings
from fedloom.data.synthetic import synthetic
from fedloom.errors import BadExperiment
from fedloom.goals import GOALS
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.models import MODELS
from fedloom.parts import admit, aggregate, allocate, local, mask, pace, repair, select, stale, upload
from fedloom.runs.experiment import Experiment
from fedloom.runs.named_paces import PACES, STALES
from fedloom.runs.named_parts import ADMITS, AGGREGATES, ATTACKS

TABLES = {"methods": METHODS, "models": MODELS, "partitions": PARTITIONS, "data": DATASETS}
TABLES |= {"goals": GOALS, "augment": TRANSFORMS, "aggregates": AGGREGATES, "checks": ADMITS, "attacks": ATTACKS}
TABLES |= {"paces": PACES, "staleness": STALES, "adapters": ADAPTERS}
SECTIONS = {"methods": "method", "models": "model", "partitions": "partition", "goals": "goal"}
SLOTS = (select, allocate, mask, local, upload, admit, repair, stale, aggregate, pace)
PARTS = (ServerPart, Upload, Stale, LocalRule)
DEFAULTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "methods": lambda name: {p.name: p.default for p in signature(METHODS[name]).parameters.values()},
    "models": lambda name: {p.name: p.default for p in signature(MODELS[name].make).parameters.values()},
    "partitions": partition_settings,
    "goals": lambda name: {p.name: p.default for p in signature(GOALS[name]).parameters.values()},
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_is_listed_once(kind):
    assert [row.name for row in catalogue(kind)] == list(TABLES[kind])


@pytest.mark.parametrize("kind", [*TABLES, "parts"])
def test_every_row_says_what_it_is_in_one_line(kind):
    for row in catalogue(kind):
        assert len(row.about.split()) >= 2, row.name
        assert "\n" not in row.about, row.name


@pytest.mark.parametrize("kind", SECTIONS)
def test_listed_settings_are_accepted_and_no_others(kind):
    for row in catalogue(kind):
        names = [text.partition("=")[0] for text in re.split(r", (?=[a-z])", row.settings) if text]
        defaults = {name: DEFAULTS[kind](row.name)[name] for name in names}
        Experiment(**{SECTIONS[kind]: {"name": row.name, "settings": defaults}})
        with pytest.raises(BadExperiment, match="unlisted"):
            Experiment(**{SECTIONS[kind]: {"name": row.name, "settings": {**defaults, "unlisted": 1}}})


def test_listed_settings_are_all_of_them():
    rows = {row.name: row.settings for kind in ("methods", "models", "partitions") for row in catalogue(kind)}
    assert rows["fedavg"] == ""
    assert rows["fedprox"] == "mu=0.01"
    assert rows["mlp"] == "widths=(100, 64), norm=none"
    assert rows["cnn1"] == ""
    assert rows["dirichlet"] == "alpha=0.1, min_size=1"
    assert rows["own"] == ""


def test_settings_of_data_are_listed():
    rows = {row.name: row.settings for row in catalogue("data")}
    assert rows["digits"] == ""
    for name in signature(synthetic).parameters:
        assert f"{name}=" in rows["synthetic"]
    assert "length" in rows["ag-news"]


def test_every_default_part_is_listed_under_its_slot():
    rows = {row.name for row in catalogue("parts")}
    for slot in SLOTS:
        name = slot.__name__.rpartition(".")[2]
        part = getattr(Method(), name)
        assert is_dataclass(part)
        assert f"{name}: {type(part).__name__}" in rows


def test_every_part_of_a_slots_folder_is_listed():
    rows = {row.name for row in catalogue("parts")}
    for slot in SLOTS:
        for found in iter_modules(slot.__path__, f"{slot.__name__}."):
            if found.name.endswith("_kernel"):  # needs Triton
                continue
            for part in vars(import_module(found.name)).values():
                if not isinstance(part, type) or isabstract(part):
                    continue
                if part.__module__ == found.name and issubclass(part, PARTS):
                    assert f"{slot.__name__.rpartition('.')[2]}: {part.__name__}" in rows


def test_parts_of_methods_are_listed():
    rows = {row.name: row.settings for row in catalogue("parts")}
    assert rows["local: ControlVariates"] == ""
    assert rows["local: DynamicRegulariser"] == "alpha=0.01"
    assert rows["local: Prox"] == "mu=0.01"
