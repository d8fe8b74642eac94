"""Threads never outnumber the cores that this process may use, and limits of containers count."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from fedloom.accel import machine
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight cores, nobody beside this process, no limits; the folder that limits are read from."""
    for name in (*machine.NEIGHBOURS, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "beside", "wanted"),
    [
        (None, {}, 8),
        ("max 100000", {}, 8),
        ("250000 100000", {}, 3),  # two and a half
        ("50000 100000", {}, 1),
        (None, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (None, {"PYTEST_XDIST_WORKER_COUNT": "3"}, 2),
        ("400000 100000", {"LOCAL_WORLD_SIZE": "3"}, 1),
        (None, {"LOCAL_WORLD_SIZE": "100"}, 1),
        (None, {"LOCAL_WORLD_SIZE": "nonsense"}, 8),
    ],
)
def test_cores(
    bare: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, beside: dict[str, str], wanted: int
) -> None:
    if limit is not None:
        (bare / "cpu.max").write_text(limit + "\n")
    for name, value in beside.items():
        monkeypatch.setenv(name, value)
    assert machine.cores() == wanted


def test_memory_of_a_container(bare: Path) -> None:
    free = machine.free_memory()
    assert free > 0
    (bare / "memory.max").write_text("max\n")
    (bare / "memory.current").write_text("1000\n")
    assert machine.free_memory() > 1000
    (bare / "memory.max").write_text("5000\n")
    assert machine.free_memory() == 4000
    (bare / "memory.current").write_text("6000\n")
    assert machine.free_memory() == 0


def test_memory_of_a_service_in_a_container(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of what is left to the service, to its slice and to the container."""
    (bare / "own").write_text("1:cpu:/other\n0::/system.slice/node.service\n")
    monkeypatch.setattr(machine, "GROUP", bare / "own")
    (bare / "system.slice/node.service").mkdir(parents=True)
    for group, limit in ((".", 9000), ("system.slice/node.service", 5000), ("system.slice", 6000)):
        (bare / group / "memory.max").write_text(f"{limit}\n")
        (bare / group / "memory.current").write_text("1000\n")
    assert machine.free_memory() == 4000
    (bare / "system.slice/memory.current").write_text("5500\n")
    assert machine.free_memory() == 500


def threads_during(model: str) -> int:
    """How many threads a run has."""
    seen: list[int] = []
    run(Experiment(rounds=1, model=model, clients=2), watch=lambda row: seen.append(torch.get_num_threads()))
    return seen[0]


@pytest.mark.parametrize(
    ("model", "asked", "cores", "omp", "wanted"),
    [
        ("2nn", 4, 2, None, 2),  # never more than there are cores
        ("2nn", 2, 8, None, 2),  # nor than was set before
        ("2nn", 4, 2, "4", 4),  # unless the user says so
        ("mlp", 4, 8, None, 1),  # small work
        ("mlp", 4, 8, "4", 1),
    ],
)
def test_threads_of_a_run(
    bare: Path, monkeypatch: pytest.MonkeyPatch, model: str, asked: int, cores: int, omp: str | None, wanted: int
) -> None:
    monkeypatch.setattr(import_module("fedloom.runs.threads"), "SMALL", 10**6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    before = torch.get_num_threads()
    torch.set_num_threads(asked)
    try:
        assert threads_during(model) == wanted
        assert torch.get_num_threads() == asked
    finally:
        torch.set_num_threads(before)
