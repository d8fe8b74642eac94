"""Runs that are killed, interrupted, stopped at any call to the system, or started twenty at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedloom

HERE = Path(__file__).parent


def script(*words: str, limit: float = 500.0) -> str:
    """One of the scripts beside this file; its processes are real ones, forked from a warm one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fedloom.__file__).parent.parent)}
    end = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:]], capture_output=True, text=True, timeout=limit,
        env=environment, check=False,
    )  # fmt: skip
    assert end.returncode == 0, end.stdout + end.stderr
    return end.stdout


def test_twenty_killed_runs_resume_to_the_undisturbed_result():
    said = script("kills.py", "--runs", "20", "--seed", "0")
    assert "20 of 20 resumed to the undisturbed result" in said
    assert said.count("SIGKILL after") == 20


@pytest.mark.slow
def test_runs_killed_with_clients_in_flight_resume_to_the_undisturbed_result():
    said = script("kills.py", "--runs", "20", "--seed", "1", "--only", "in flight")
    assert "20 of 20 resumed to the undisturbed result" in said


def test_ctrl_c_with_clients_in_flight_finishes_the_step_and_resumes():
    said = script("kills.py", "--runs", "2", "--seed", "3", "--signal", "INT", "--only", "in flight: f")
    assert "2 of 2 resumed to the undisturbed result" in said


def test_ctrl_c_at_any_time_ends_with_130_and_resumes():
    assert "4 of 4 resumed to the undisturbed result" in script(
        "kills.py", "--runs", "4", "--seed", "3", "--signal", "INT"
    )


def test_a_kill_at_any_call_of_a_save_loses_at_most_the_round_in_flight():
    assert "went on from rounds [2, 3] to the same result" in script("stops.py", "kill")


def test_a_kill_before_the_first_round_leaves_a_folder_that_can_be_used():
    assert "went on from rounds [0]" in script("stops.py", "first")


@pytest.mark.parametrize("stride", [pytest.param("1", marks=pytest.mark.slow), "7"])
def test_a_disk_that_is_full_from_any_call_on_loses_nothing(stride):
    assert "to the same result" in script("stops.py", "full", stride)


def test_twenty_starts_in_one_folder_make_one_run():
    assert "1 ran, 19 were refused" in script("starts.py", "20")
