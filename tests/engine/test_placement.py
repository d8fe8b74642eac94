"""What is planned to live where, and what is refused with the number that would fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.engine.local import Local
from fedloom.engine.storage.offload import OffloadedShards
from fedloom.engine.storage.placement import Budget, Placement, Sizes, flight_bytes, place
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.select.everyone import SomeSend
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

NEED = Sizes(
    examples=1000, example=10, shards=[1] * 100, state=5, with_state=100, client=20, reply=1, cohort=10, chunk=50
)  # 10 for replies, 200 to train, 1000 of examples, 500 of states


@pytest.mark.parametrize(
    ("budget", "changes", "wanted"),
    [
        (Budget(1710, 0, 0), {}, ("device", "device", 50, 10)),  # all fits, to the byte
        (Budget(1709, 0, 499), {"chunk": 10}, None),  # neither the device nor anything else has room for the last
        (Budget(1709, 500, 0), {}, ("device", "host", 42, 10)),
        (Budget(1709, 0, 500), {}, ("device", "file", 42, 10)),
        (Budget(1209, 1000, 0), {}, ("host", "device", 29, 10)),
        (Budget(810, 1000, 0), {}, ("host", "device", 20, 10)),  # of 800 left of training and a chunk's examples
        (Budget(809, 1500, 0), {}, ("host", "host", 19, 10)),
        (Budget(700, 1500, 0), {}, ("host", "host", 17, 10)),
        (Budget(700, 1000, 500), {}, ("host", "file", 17, 10)),
        (Budget(700, 999, 1500), {}, ("file", "host", 17, 10)),
        (Budget(700, 0, 1500), {}, ("file", "file", 17, 10)),
        (Budget(70, 0, 1500), {}, ("file", "file", 1, 1)),  # two clients with their examples would take 60, half is 30
        (Budget(70, 0, 1500), {"chunk": 2, "asked": True}, ("file", "file", 2, 2)),
        (Budget(70, 0, 1500), {"chunk": 3, "asked": True}, None),
        (Budget(10 + 29, 0, 1500), {}, None),  # one client and its example take 30
        (Budget(10 + 30, 0, 1500), {}, ("file", "file", 1, 1)),
        (Budget(10 + 30, 0, 1500), {"copies": 2}, None),
        (Budget(700, 0, 500), {"state": 0}, None),
        (Budget(1210, 0, 0), {"state": 0}, ("device", "device", 50, 10)),
    ],
)
def test_decisions(budget: Budget, changes: dict[str, Any], wanted: tuple[str, str, int, int] | None) -> None:
    sizes = NEED._replace(**changes)
    if wanted is None:
        with pytest.raises(BadExperiment):
            place(sizes, budget)
        return
    found = place(sizes, budget)
    assert (found.examples, found.states, found.chunk, found.at_once) == wanted
    on_device = sizes.cohort * sizes.reply + found.at_once * sizes.client
    on_device += sizes.examples if found.examples == "device" else sizes.copies * found.buffer * sizes.example
    on_device += found.states_bytes if found.states == "device" else 0
    assert on_device <= budget.device


def test_refusals_say_what_would_fit() -> None:
    with pytest.raises(BadExperiment, match=r"10 clients .*30 B.*24 B may be used; per_round=4 fits, or.*memory="):
        place(NEED, Budget(24, 0, 10**6))
    with pytest.raises(BadExperiment, match="take a smaller model"):
        place(NEED, Budget(19, 0, 10**6))
    with pytest.raises(BadExperiment, match=r"chunk is 50, and training 10 clients .* of the 150 B .*; chunk=7 fits"):
        place(NEED._replace(asked=True), Budget(160, 0, 10**6))
    with pytest.raises(BadExperiment, match=r"examples of 10 clients do not fit .* chunk=8 fits"):
        place(NEED._replace(asked=True), Budget(265, 0, 10**6))
    with pytest.raises(BadExperiment, match=r"examples take 1\.0 kB.*TMPDIR"):
        place(NEED, Budget(700, 999, 999))
    with pytest.raises(BadExperiment, match=r"100 clients take 500 B, 5 B each.*; 80 clients fit"):
        place(NEED, Budget(700, 0, 1400))
    with pytest.raises(BadExperiment, match=r"one client with its 1 examples takes about 30 B, and 29 B"):
        place(NEED, Budget(39, 0, 10**6))


def test_clients_in_flight_take_memory_where_there_is_enough() -> None:
    found = place(NEED._replace(flight=300), Budget(2010, 0, 0))
    assert (found.examples, found.states, found.chunk, found.crowded) == ("device", "device", 50, False)
    assert place(NEED._replace(flight=300), Budget(2009, 500, 0)).states == "host"
    crowded = place(NEED._replace(flight=1691), Budget(1710, 0, 0))  # 10 for replies and 9 are left for one client
    assert (crowded.examples, crowded.states, crowded.chunk, crowded.crowded) == ("device", "device", 50, True)
    assert str(crowded).endswith("(chunk 50), clients in flight about 1.7 kB")


def test_what_clients_in_flight_take() -> None:
    here = prepare(Experiment(method="scaffold", fleet="mobile-4g", clients=20))
    setting, total = here.inputs.setting, here.inputs.setting.layout.total
    assert flight_bytes(here.inputs.method, setting, 100) == 0
    rows, bases = (
        flight_bytes(Method(pace=Buffered(5, 10, hold=hold)), setting, 100)
        for hold in ("rows", "bases")  # type: ignore[arg-type]
    )
    assert bases == 5 * 6 * total  # models of staleness 0 to 4, with counts
    assert rows - bases == 10 * (16 * total + 100)
    assert (
        flight_bytes(Method(pace=Buffered(1, 50, hold="bases")), setting, 0) == 20 * 6 * total
    )  # the fleet is smaller


@pytest.mark.parametrize("hold", ["rows", "bases"])
def test_too_many_clients_in_flight_are_noted_before_the_run(hold: str) -> None:
    experiment = Experiment(fleet="mobile-4g", clients=40, memory=0.01, training={"batch": 10})
    method = Method(pace=Buffered(2, 40, hold=hold))  # type: ignore[arg-type]
    said = " ".join(prepare(experiment, method).notes)
    if hold == "rows":
        assert "up to 40 clients in flight take about" in said
        assert "the run has 10.7 MB in all: set pace.hold=bases, so that" in said
    assert ("set pace.hold=bases" in said) == (hold == "rows")


def test_all_train_where_only_some_send() -> None:
    assert Method(select=Uniform(10), pace=Buffered(4, 50)).cohort_size(100) == 4
    assert Method(select=Uniform(10)).cohort_size(100) == 10
    assert Method(select=Uniform(10)).select.cohort_size(100) == 10
    assert Method(select=Uniform(10)).select.cohort_size(7) == 7
    assert Method(select=SomeSend(10)).select.cohort_size(100) == 100


def test_the_line_names_places_and_sizes() -> None:
    line = str(Placement("cuda", 10**9, "device", 188_000_000, "host", 80_000_000, 1000, 100, 1_200_000_000, 0))
    assert line == (
        "memory: examples 188.0 MB on cuda, client states up to 80.0 MB in the host's memory, "
        "100 clients at once in about 1.2 GB (chunk 1,000)"
    )
    assert "states" not in str(Placement("cpu", 10**9, "device", 1, "device", 0, 1, 1, 1, 0))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedspu"])
def test_a_run_in_little_memory_is_the_same_run(method: str, tmp_path: Path) -> None:
    facts: dict[str, Any] = {"method": method, "rounds": 3, "chunk": 2, "split": (0.7, 0.1, 0.2)}
    told: list[str] = []
    ample = run(Experiment(**facts))
    little = run(Experiment(**facts, memory=0.0033), out=tmp_path / "little", tell=told.append)
    assert all(torch.equal(a, b) for a, b in zip(ample.model.parameters(), little.model.parameters()))
    scores = ("accuracy", "loss", "personal_accuracy", "training_loss")
    assert [[row[s] for s in scores] for row in ample.rounds] == [[row[s] for s in scores] for row in little.rounds]
    about = json.loads((tmp_path / "little" / "experiment.json").read_text())
    assert about["memory"]["examples"] == "file"
    assert any(line.startswith("memory: examples 474.4 kB in a file in ") for line in told)


def test_what_was_planned_is_built() -> None:
    here = prepare(Experiment(method="scaffold", rounds=3, chunk=2, memory=0.0033))
    shards, placement = here.inputs.shards, here.inputs.placement
    assert isinstance(here.trainer, Local)
    assert here.trainer.clients.shards is shards
    assert here.trainer.chunk == placement.chunk == 2
    assert isinstance(shards, OffloadedShards)
    assert shards._capacity == placement.buffer == sum(sorted(shards.sizes)[-2:])
    assert not isinstance(prepare(Experiment()).inputs.shards, OffloadedShards)


def test_too_little_memory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match=r"per_round=\d+ fits"):
        run(Experiment(memory=0.001), out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
