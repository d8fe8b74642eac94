"""What a run will do, in words: how and why it takes its steps so, where things lie, and what memory it takes."""

from __future__ import annotations

from dataclasses import fields

from fedloom.accel.machine import size
from fedloom.core.optimiser import Optimiser
from fedloom.core.rule import LocalRule
from fedloom.core.work import Work
from fedloom.engine.plan import lines_of
from fedloom.runs.build import Prepared
from fedloom.runs.experiment import Experiment

Section = tuple[str, list[tuple[str, str]]]  # a title, and names with sentences


def explain(experiment: Experiment, prepared: Prepared) -> list[Section]:
    """The sections of an explanation; nothing is trained for it."""
    inputs, what = prepared.inputs, prepared.engine.describe()
    method = inputs.method
    setting, placement = inputs.setting, inputs.placement
    run = [
        ("clients", "; ".join(_chosen(part) for part in (method.local, method.optimiser, method.work))),
        ("network", f"{experiment.model.name}, {setting.layout.trained:,} trained of {setting.layout.total:,} numbers"),
        ("fleet", f"{setting.fleet.size:,} clients; {inputs.dealt}"),
        ("engine", f"{what['engine']} on {inputs.model.device}"),
    ]
    where = {"device": f"on {placement.device}", "host": "in the host's memory", "file": "in a temporary file"}
    memory = [
        ("examples", f"{size(placement.examples_bytes)} {where[placement.examples]}"),
        ("client states", f"at most {size(placement.states_bytes)} {where[placement.states]}"),
        ("training", f"{placement.at_once:,} clients at once, about {size(placement.training_bytes)}"),
    ]
    if placement.flight_bytes:
        memory.append(("clients in flight", f"about {size(placement.flight_bytes)} on {placement.device}"))
    sections: list[Section] = [("The run", run)]
    if "plan" in what:
        sections.append(("How a cohort takes its steps", lines_of(what["plan"])))
    sections.append(("Where things lie", memory))
    notes = [note for note in prepared.notes if note != str(placement)]
    return [*sections, ("Notes", [("", note) for note in notes])] if notes else sections


def _chosen(part: LocalRule | Optimiser | Work) -> str:
    """A part with those of its settings that are not the usual ones; the learning rate and the batch always."""
    own = [f for f in fields(part) if getattr(part, f.name) != f.default or f.name in ("rate", "batch", "epochs")]
    said = ", ".join(f"{f.name}={getattr(part, f.name)}" for f in own)
    return f"{type(part).__name__}({said})"
