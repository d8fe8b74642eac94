"""Faults of real processes: nodes that are killed, stopped or send bad replies, and a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from fedloom.flower.deploy.processes import marked_processes
from fedloom.runs.experiment import Experiment
from flower_disturbed import Disturbed, assert_right, disturbed, lost_in, model_of, with_lost

pytestmark = pytest.mark.slow

WRONG = {"header": 1, "value": 1, "share": 1, "round": 1, "duplicate": 2}  # why answers were refused
DEADLINE = 45.0  # seconds of a round; a node that was killed starts again within it, also on a busy machine
SHORT = 25.0  # where nodes are stopped: after a minute without a heartbeat Flower would answer in their place


def experiment_of(method: Any, clients: int, rounds: int, **more) -> Experiment:
    """All clients in every round: they are no more than a cohort."""
    return Experiment(method=method, clients=clients, rounds=rounds, device="cpu", **more)


def begin(now: Disturbed, run, **config) -> int:
    """Start the run."""
    config = {"out": str(run), "deadline": DEADLINE, **config}
    return now.trial.control.start(now.trial.deployment.app, config)


def test_nodes_killed_in_five_moments(tmp_path):
    """Node 0 before its task comes, 1 before it is read, 2 with its training, 3 before and 4 after its reply."""
    experiment, run = experiment_of("fedavg", 5, 7), tmp_path / "run"
    plan = {"1-2": "decode", "2-3": "train", "3-4": "reply"}
    with disturbed(experiment, tmp_path, plan) as now:
        number = begin(now, run)
        now.until(lambda: now.sent(0) == 1)  # it has answered the roster's query, and looks again after 3 s
        now.kill(0)
        for node, of, moment in ((1, 2, "decode"), (2, 3, "train"), (3, 4, "reply")):
            now.until(now.reached(node, of, moment))
            now.kill(node)
        now.until(now.reached(4, 5, "reply"))
        before = now.sent(4)
        now.until(lambda: now.sent(4) > before)
        now.kill(4)
        now.over(number)
    assert not marked_processes(now.trial.processes.mark)
    assert_right(run, experiment, DEADLINE)
    lost = lost_in(run)
    assert {(2, 1), (3, 2), (4, 3)} <= lost
    assert (5, 4) not in lost  # its reply was there before it died
    assert all(of >= client + 1 for of, client in lost)  # nobody was lost before it was killed
    assert not {(7, 0), (7, 1)} & lost  # they came back


def test_half_of_the_nodes_stopped(tmp_path):
    """They miss a round and answer too late, which is counted; then they take part again."""
    experiment, run = experiment_of("fedavg", 4, 4), tmp_path / "run"
    with disturbed(experiment, tmp_path, {}) as now:
        number = begin(now, run, deadline=SHORT)
        now.until(lambda: all(now.reached(node, 2, "decode")() for node in (2, 3)))
        for node in (2, 3):
            now.trial.processes.signal(f"node-{node}", signal.SIGSTOP)
        now.until(now.reached(0, 3, "decode"))  # the round closed without them
        for node in (2, 3):
            now.trial.processes.signal(f"node-{node}", signal.SIGCONT)
        now.over(number)
    rows = assert_right(run, experiment, SHORT)
    lost = lost_in(run)
    assert {of for of, _ in lost} <= {2, 3}
    assert 1 <= len([client for of, client in lost if of == 2]) <= 2
    assert {client for _, client in lost} <= {2, 3}
    late = sum(row.get("rejected.late") or 0 for row in rows)
    assert late == len([one for one in lost if one[0] == 2])


def test_answers_that_cannot_be_right(tmp_path):
    """Garbage, NaN, a wrong mask, an old round's reply and three copies of one, each from a node of its own."""
    method = {"name": "feddd", "settings": {"budget": 0.4}}
    experiment, run = experiment_of(method, 6, 3, fleet="table4", admit="careful"), tmp_path / "run"
    plan = {"0-2": "garbage", "1-2": "nan", "2-2": "mask", "3-2": "stale", "4-2": "duplicate"}
    with disturbed(experiment, tmp_path, plan) as now:
        now.over(begin(now, run))
    rows = assert_right(run, experiment, DEADLINE)
    assert lost_in(run) == {(2, 0), (2, 1), (2, 2), (2, 3)}  # one of the three copies counted
    counted = {name: count for name, count in rows[1].items() if name.startswith("rejected.") and count}
    assert {name.partition(".")[2]: int(count) for name, count in counted.items()} == WRONG
    assert rows[0]["rejected"] == rows[2]["rejected"] == 0


def test_a_server_that_is_killed_goes_on(tmp_path):
    """The link, its helpers and the server app are killed in the middle of a round; the nodes are not."""
    experiment, run = experiment_of("fedspu", 3, 5), tmp_path / "run"
    with disturbed(experiment, tmp_path, {}, lasting=True) as now:
        begin(now, run)
        now.until(now.reached(1, 3, "decode"))
        processes = now.trial.processes
        nodes = {pid for pid in marked_processes(processes.mark) if _group(pid) in _heads(processes)}
        processes.kill("link")
        for pid in set(marked_processes(processes.mark)) - nodes:  # the link's helpers have sessions of their own
            _end(pid)
        time.sleep(1)
        now.trial.start_link()
        now.over(begin(now, run, resume=True))
    assert lost_in(run) == set()
    torch.testing.assert_close(model_of(run, experiment), with_lost(experiment, set()), rtol=0, atol=1e-5)
    about = json.loads((run / "checkpoint" / "network.json").read_text())
    assert about["attempt"] == 2


def _heads(processes) -> set[int]:
    return {process.pid for name, process in processes.heads.items() if name != "link"}


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
