"""A deployment is changed in a run: a node restarts and gets another key, the gate a certificate; no reply is lost."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fedloom.files import replace_file
from fedloom.flower.deploy.folder import node_command, nodes_text
from fedloom.flower.deploy.keys import Key
from fedloom.flower.deploy.opened import Opened
from fedloom.flower.deploy.registered import register_nodes, restart_nodes, unregister_retired
from fedloom.flower.deploy.rotate import rotate_link, rotate_node
from fedloom.flower.deploy.trial import free_port, wait_for_port
from fedloom.flower.protocol.run_file import NODES_FILE
from fedloom.runs.experiment import Experiment
from flower_disturbed import LONG, Disturbed, disturbed, lost_in, model_of, with_lost

pytestmark = pytest.mark.slow
COME = 3.0  # seconds until the server has looked for new nodes and read their answers


def opened(now: Disturbed) -> Opened:
    """The trial's deployment."""
    trial = now.trial
    return Opened(trial.deployment, trial.gateway, (), trial.experiment, {})


def new_nodes(now: Disturbed) -> str:
    """Whose key hosts which clients from now on."""
    made = now.trial.deployment
    return nodes_text(made.keys, made.clients)


def came_back(now: Disturbed, node: int, sent: int) -> None:
    """Wait until a node has said whom it hosts, and the server knows."""
    now.until(lambda: now.sent(node) > sent)
    time.sleep(COME)


def test_nodes_restart_and_change_keys_in_a_run(tmp_path: Path) -> None:
    """FedSPU, whose nodes keep models of their clients; rounds 2 and 3 are held by the other node meanwhile."""
    experiment, run = Experiment(method="fedspu", clients=2, rounds=5, device="cpu"), tmp_path / "run"
    with disturbed(experiment, tmp_path, {}) as now:
        processes, deployment = now.trial.processes, opened(now)
        training, second, third = now.hold(0, 2, "train"), now.hold(1, 2, "decode"), now.hold(1, 3, "decode")
        number = now.trial.control.start(now.trial.deployment.app, {"out": str(run), "deadline": LONG})

        now.until(now.reached(0, 2, "train"))  # it has a task, and is asked to end
        sent = now.sent(0)
        processes.heads["node-0"].terminate()
        time.sleep(1)
        assert processes.running("node-0")
        training.unlink()
        processes.heads["node-0"].wait(LONG)
        assert now.sent(0) == sent + 1
        now.trial.start_node(0)
        came_back(now, 0, sent + 1)
        second.unlink()

        sent = now.sent(0)
        now.until(lambda: now.sent(0) > sent)  # round 3
        key, old = now.trial.deployment.keys[0], Key(tmp_path / "old", tmp_path / "old.pub")
        shutil.copy(key.private, old.private)
        rotate_node(key)
        replace_file(run / "checkpoint" / NODES_FILE, [new_nodes(now).encode()])  # as `fedloom supervise` does
        register_nodes(deployment, now.trial.control, print)
        sent = now.sent(0)
        restart(now, deployment, 0)
        told: list[str] = []
        unregister_retired(deployment, now.trial.control, LONG, told.append)
        assert told[0] == "node-0 is online"
        assert "is refused from now on" in told[1]
        came_back(now, 0, sent)

        changed = change_certificate(now)
        third.unlink()
        now.over(number)
        assert certificate(now) == changed
        assert "Failed to activate" in refused(now, old)
    assert "who hosts whom has changed: 2 nodes" in (run / "log.txt").read_text()
    assert lost_in(run) == set()
    torch.testing.assert_close(model_of(run, experiment), with_lost(experiment, set()), rtol=0, atol=1e-5)


def certificate(now: Disturbed) -> bytes:
    """What the gate shows to nodes."""
    trusting = ssl.create_default_context(cafile=str(now.trial.deployment.certificates.authority))
    with (
        socket.create_connection(now.trial.gateway.listen, 10) as line,
        trusting.wrap_socket(line, server_hostname="127.0.0.1") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def change_certificate(now: Disturbed) -> bytes:
    """Give the gate a new certificate; what it shows from now on."""
    before, trial = certificate(now), now.trial
    rotate_link(trial.deployment.certificates)
    trial.processes.heads["gate"].terminate()
    trial.processes.heads["gate"].wait(LONG)
    trial.start_gate()
    wait_for_port(trial.gateway.listen, LONG, lambda: trial.processes.running("gate"))
    changed = certificate(now)
    assert changed != before
    return changed


def restart(now: Disturbed, deployment: Opened, node: int) -> None:
    """`fedloom deploy restart` for one node, with this test for its service manager."""
    trial, head = now.trial, now.trial.processes.heads[f"node-{node}"]

    def revive() -> None:
        head.wait(LONG)
        trial.start_node(node)

    manager = threading.Thread(target=revive)
    manager.start()
    one = deployment._replace(made=deployment.made._replace(keys=[deployment.made.keys[node]]))
    told: list[str] = []
    restart_nodes(one, trial.control, f"kill {head.pid}", LONG, told.append)
    manager.join(LONG)
    assert told[-1] == f"node-{node} is online"


def refused(now: Disturbed, old: Key) -> str:
    """What a node with the old key says."""
    trial, authority = now.trial, str(now.trial.deployment.certificates.authority)
    link = f"127.0.0.1:{trial.relay.ports[0]}"
    words = node_command(authority, str(old.private), link, {"clients": "0"}, free_port())
    trial.processes.start("old", [*words, "--max-retries", "1"])
    trial.processes.heads["old"].wait(LONG)
    return trial.processes.last_lines("old", 100)
