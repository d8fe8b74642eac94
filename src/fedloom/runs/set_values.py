"""Settings as `--set` gives them, put where an experiment has them."""

from __future__ import annotations

from typing import Any

from fedloom.adapters import ADAPTERS
from fedloom.data.load import settings_of as data_settings, usual_goal
from fedloom.data.partition import PARTITIONS, settings_of as partition_settings
from fedloom.errors import BadExperiment, unknown
from fedloom.goals import GOALS
from fedloom.models import MODELS
from fedloom.runs.choice import Choice, choice
from fedloom.runs.experiment import (
    AUTO,
    CHANNELS,
    CHOSEN,
    GIVEN,
    GROUPS,
    SECTIONS,
    SUPPLIED,
    Experiment,
    method_maker,
    network_for,
)
from fedloom.runs.named_parts import takes as takes_of
from fedloom.runs.own_function import own_function
from fedloom.runs.settings import settings_of

PREFIXED = ("server", "until")  # groups whose settings are written with it: `rate` alone is the clients'


def with_settings(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """An experiment's values with the `--set` pairs put in their sections.

    Keys are `training.rate`, `method.mu`, `partition.alpha`, `model.width`, `data.clients` or an experiment's own, like
    `per_round`. A name without a section is looked for in all sections and must be in exactly one.
    """
    values = {**values}
    for section in SECTIONS:
        chosen = choice(values.get(section, Experiment.model_fields[section].default.model_dump()))
        values[section] = {"name": chosen["name"], "settings": dict(chosen.get("settings", {}))}
    for group in GROUPS:
        values[group] = dict(values.get(group, {}))
    values["augment"] = _entries(values.get("augment", ()))
    named, given = (*SECTIONS, "augment"), dict[str, str]()
    for key, value in sorted(settings.items(), key=lambda pair: pair[0] not in named):  # names before their settings
        section, _, name = key.rpartition(".")
        if name in SECTIONS and not section:
            values[name] = {"name": str(value), "settings": {}}
            continue
        if not section:
            section = _section_of(name, values)
        place = f"{section}.{name}" if section else name
        if place in given and settings[given[place]] != value:
            raise BadExperiment(
                f"{given[place]}={settings[given[place]]} and {key}={value} are the same setting; leave one out."
            )
        given[place] = key
        if section == "":
            values[name] = _entries(value) if name == "augment" else value
        elif section in GROUPS:
            values[section][name] = value
        elif section in SECTIONS:
            values[section]["settings"][name] = value
        elif section.startswith("augment."):
            _augment(values, section.removeprefix("augment."))["settings"][name] = value
        else:
            raise BadExperiment(unknown("section", section, (*SECTIONS, *GROUPS)))
    return values


def _section_of(name: str, values: dict[str, Any]) -> str:
    """The only section that has a setting of this name ('' for a key of the experiment itself)."""
    takes = {group: list(kind.model_fields) for group, kind in GROUPS.items() if group not in PREFIXED}
    takes["method"] = list(settings_of(method_maker(values["method"]["name"])))
    takes["data"] = list(data_settings(values["data"]["name"]))
    dealt, model, goal = (values[section]["name"] for section in ("partition", "model", "goal"))
    goal = usual_goal(values["data"]["name"]) if goal == AUTO else goal
    dealt, model = (
        "dirichlet" if dealt == AUTO else dealt,
        network_for(goal) if model == AUTO else model,
    )
    if dealt in PARTITIONS:
        takes["partition"] = list(partition_settings(dealt))
    if model in MODELS:
        takes["model"] = list(settings_of(MODELS[model].make, SUPPLIED))
    elif (own := own_function(model)) is not None:
        takes["model"] = list(settings_of(own.load("model")))
    takes["goal"] = _takes_of_goal(goal)
    if values["adapter"]["name"] in ADAPTERS:
        takes["adapter"] = list(settings_of(ADAPTERS[values["adapter"]["name"]], GIVEN))
    if values["channel"]["name"] in CHANNELS:
        takes["channel"] = list(settings_of(CHANNELS[values["channel"]["name"]]))
    takes |= {kind: takes_of(kind, values[kind]["name"]) for kind in CHOSEN}
    takes[""] = [key for key in Experiment.model_fields if key not in (*SECTIONS, *GROUPS)]
    homes = [section for section, names in takes.items() if name in names]
    if len(homes) == 1:
        return homes[0]
    if homes:
        choices = " or ".join(f"{home}.{name}" if home else name for home in homes)
        raise BadExperiment(f"setting '{name}' could be {choices}; write which.")
    full = [*SECTIONS, *(f"{section}.{n}" if section else n for section, names in takes.items() for n in names)]
    bare = unknown("setting", name, [*SECTIONS, *(n for names in takes.values() for n in names)]).split(" Known:")[0]
    raise BadExperiment(f"{bare} Known: {', '.join(sorted(full))}")


def _entries(given: Any) -> list[dict[str, Any]]:
    """Names of changes of examples, alone or with settings, as entries that settings can be put into."""
    listed = [given] if isinstance(given, str | dict) else list(given)
    chosen = [choice(one.model_dump() if isinstance(one, Choice) else one) for one in listed]
    if any(not isinstance(one, dict) or "name" not in one for one in chosen):
        raise BadExperiment(f"augment is {given!r}; expected names, such as augment=[crop,flip].")
    return [{"name": one["name"], "settings": dict(one.get("settings", {}))} for one in chosen]


def _augment(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The entry of `augment` with this name."""
    found = [entry for entry in values.get("augment", []) if entry["name"] == name]
    if not found:
        raise BadExperiment(unknown("name in augment", name, [entry["name"] for entry in values.get("augment", [])]))
    entry: dict[str, Any] = found[0]
    return entry


def _takes_of_goal(name: str) -> list[str]:
    """The settings of the goal with this name."""
    own = own_function(name)
    made = own.load("goal") if own is not None else GOALS.get(name)
    return [] if made is None else list(settings_of(made))
