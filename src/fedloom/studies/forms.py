"""Candidates by name: methods as they are, and methods without a barrier, such as `fedspu+buffered`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedloom.runs.experiment import Experiment, method_maker
from fedloom.runs.named_paces import PACES
from fedloom.runs.set_values import with_settings
from fedloom.runs.settings import settings_of
from fedloom.runs.without_barrier import INSTEAD

OWN = ("own", "barrier")  # paces that make no form of their own
COHORT = 10  # of a method that is not told another
LENGTHS = ("rounds", "evaluate_every")  # of rounds with a barrier


class Form(NamedTuple):
    """A method, and the name of a pace in place of its own."""

    method: str
    pace: str | None


def form_of(name: str) -> Form:
    """The method and the pace of `METHOD` or `METHOD+PACE`."""
    method, plus, pace = name.rpartition("+")
    return Form(method, pace) if plus and pace in PACES and pace not in OWN else Form(name, None)


def waits(name: str) -> bool:
    """Whether a candidate has rounds with a barrier."""
    form = form_of(name)
    return form.pace is None and Experiment(method=form.method).build_method().pace.barrier


def takes(name: str, key: str) -> bool:
    """Whether a candidate has this setting of its method or pace.

    `per_round` belongs to methods whose selection takes a count, a deadline and the like to rounds with a barrier, and
    what stale replies mean to all others.
    """
    form = form_of(name)
    if key in INSTEAD or f"world.{key}" in INSTEAD:
        counts = key != "per_round" or Experiment(method=form.method).build_method().select.with_count(1) is not None
        return counts and waits(name)
    if key.partition(".")[0] == "stale":
        return not waits(name)
    if form.pace is not None and key.removeprefix("pace.") in settings_of(PACES[form.pace]):
        return True
    return key.removeprefix("method.") in settings_of(method_maker(form.method))


def fitting(name: str, pairs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings for one of several candidates; one that none of them takes is common to all, or refused later."""
    return {k: v for k, v in pairs.items() if takes(name, k) or not any(takes(other, k) for other in names)}


def experiment_of(name: str, values: Mapping[str, Any], pairs: Mapping[str, Any], names: Sequence[str]) -> Experiment:
    """The experiment of one of several candidates, with those of the settings `pairs` that it takes.

    Rounds are those of a cohort; without a barrier there are as many steps as have the same replies, or more.
    """
    form, fleet = form_of(name), values.get("clients", Experiment.model_fields["clients"].default)
    cohort = min(fleet, pairs.get("per_round") or values.get("per_round") or COHORT)
    buffer = min(cohort, max(1, fleet // 2))
    usual = {"buffer": buffer, "in_flight": 2 * buffer}  # the replies of a cohort, and twice as many in flight
    own = usual if not waits(name) and all(key in settings_of(method_maker(form.method)) for key in usual) else {}
    given = {**values, "method": {"name": form.method, "settings": own}}
    if "per_round" in values and not takes(name, "per_round"):
        given["per_round"] = None
    if "world" in values:
        given["world"] = {key: value for key, value in values["world"].items() if takes_world(name, key)}
    if form.pace is not None:
        given["pace"] = {"name": form.pace, "settings": usual if form.pace == "buffered" else {}}
    settings = fitting(name, pairs, names)
    made = Experiment(**with_settings(given, settings))
    if (pace := made.build_method().pace).barrier:
        return made
    plain = Experiment(**{key: settings.get(key, values[key]) for key in LENGTHS if key in settings or key in values})
    steps = pace.groups * max(1, cohort // pace.goal)
    longer = {"rounds": steps * plain.rounds}
    if made.evaluate_seconds is None:
        longer["evaluate_every"] = steps * plain.evaluate_every
    return Experiment(**{**made.model_dump(), **longer})


def takes_world(name: str, key: str) -> bool:
    """Whether a setting of the world goes with a candidate."""
    return f"world.{key}" not in INSTEAD or takes(name, f"world.{key}")
