"""The fleet as nodes with data of their own report it; what they reported is kept in the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedloom.core.types import Fleet
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadData
from fedloom.files import replace_file, writing
from fedloom.flower.server.hello import ReportedClient
from fedloom.flower.server.roster import Roster
from fedloom.reading.texts import read_json
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, devices_of

FILE = "clients.json"  # in the run folder's `checkpoint`


def with_reported_fleet(
    inputs: Inputs, experiment: Experiment, reported: Mapping[int, ReportedClient], tests: bool
) -> Inputs:
    """The inputs with the fleet that nodes report, by client number; `tests`: whether clients have test examples."""
    device, size, strata = inputs.model.device, experiment.clients, inputs.setting.fleet.labels.shape[1]
    fleet = Fleet(
        torch.ones(size, dtype=torch.int64, device=device),
        torch.ones(size, strata, dtype=torch.int64, device=device),
        devices_of(experiment, np.arange(size), device),
    )
    enter(fleet, reported)
    nothing = Shards([torch.empty(0, dtype=torch.int64)] * size, device)
    own_test = (inputs.test, nothing) if tests else None
    setting = replace(inputs.setting, fleet=fleet)
    return inputs._replace(setting=setting, clients=list(range(size)), own_test=own_test, validation=None)


def enter(fleet: Fleet, reported: Mapping[int, ReportedClient]) -> None:
    """Write the counts that are known into the fleet's own tensors; a client whose node never came has the mean."""
    known = sorted(number for number in reported if number < fleet.size)
    if not known:
        return
    examples = torch.tensor([reported[number].examples for number in known], device=fleet.examples.device)
    labels = torch.tensor([reported[number].labels for number in known], device=fleet.labels.device)
    fleet.examples.fill_(max(1, round(examples.double().mean().item())))
    fleet.labels.copy_(labels.double().mean(0).round().long().expand_as(fleet.labels))
    at = torch.tensor(known, device=fleet.examples.device)
    fleet.examples[at], fleet.labels[at] = examples, labels


def remember(folder: Path | None, roster: Roster) -> None:
    """Write what nodes with data of their own have reported, so that a resumed run need not wait for all of them."""
    if folder is None or not roster.own_data:
        return
    rows = [list(roster.reported[number]) for number in sorted(roster.reported)]
    with writing(folder):
        replace_file(folder / "checkpoint" / FILE, [json.dumps({"tests": roster.own_tests, "clients": rows}).encode()])


def recall(folder: Path | None, roster: Roster) -> None:
    """Enter what nodes had reported before the run was resumed."""
    file = None if folder is None else folder / "checkpoint" / FILE
    if file is None or not file.exists():
        return
    try:
        read = read_json(file)
        reported = [ReportedClient(int(n), int(examples), list(labels)) for n, examples, labels in read["clients"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise BadData(f"'{file}' cannot be read ({problem}); it was written when nodes came.") from problem
    roster.recall(reported, bool(read.get("tests")))
