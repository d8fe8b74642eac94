"""No process of a trial is left, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedloom.flower.deploy import processes
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.relay import Relay

# a head that ignores SIGTERM, with a child in its group, and a grandchild in a session of its own
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""
# a process that starts such a family and waits to be ended
HOLDER = """
import importlib.util, os, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("processes", sys.argv[4])  # alone: all of fedloom takes seconds to load
module = sys.modules["processes"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.GRACE = 0.5
with module.stopped_by_signals(), module.Processes(Path(sys.argv[1]), os.environ) as held:
    held.start("family", [sys.executable, "-S", "-c", sys.argv[2]])
    while "ready" not in held.last_lines("family"):
        time.sleep(0.02)
    print(held.mark, flush=True)
    if sys.argv[3] == "raise":
        raise ValueError
    time.sleep(600)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


def ended(mark: str) -> bool:
    """Whether all processes have ended within ten seconds."""
    until = time.monotonic() + 10
    while marked_processes(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return not marked_processes(mark)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, "raise"])
def test_nothing_is_left(how, tmp_path):
    words = [sys.executable, "-c", HOLDER, str(tmp_path), FAMILY, str(how), processes.__file__]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        assert holder.stdout is not None
        mark = holder.stdout.readline().strip()
        assert mark
        if how != "raise":
            assert len(marked_processes(mark)) == 3
            holder.send_signal(how)
        assert holder.wait(30) != 0
    assert ended(mark)


def test_a_stopped_family_is_ended_too(tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom.flower.deploy.processes.GRACE", 0.5)
    with Processes(tmp_path, os.environ) as held:
        held.start("family", [sys.executable, "-S", "-c", FAMILY])
        while "ready" not in held.last_lines("family"):
            time.sleep(0.02)
        held.measure()
        held.signal("family", signal.SIGSTOP)
    assert held.peaks["family"] > 1 << 20
    assert ended(held.mark)


def test_output_is_kept(tmp_path):
    with Processes(tmp_path, os.environ) as held:
        held.start("hello", [sys.executable, "-S", "-c", "print('one'); print('two')"])
        held.heads["hello"].wait(30)
        assert not held.running("hello")
    assert held.last_lines("hello", 1) == "two"
    assert held.last_lines("nobody") == ""


def test_the_relay_counts_each_nodes_bytes():
    with socket.create_server(("127.0.0.1", 0)) as link, Relay("127.0.0.1", link.getsockname()[1]) as relay:
        ports = [relay.add(), relay.add()]
        for number, (up, down) in enumerate([(70_000, 10), (3, 200_000)]):
            with socket.create_connection(("127.0.0.1", ports[number])) as node:
                node.sendall(b"u" * up)
                node.shutdown(socket.SHUT_WR)
                there, _ = link.accept()
                with there:
                    assert sum(len(piece) for piece in iter(lambda there=there: there.recv(1 << 16), b"")) == up
                    there.sendall(b"d" * down)
                    there.shutdown(socket.SHUT_WR)
                    assert sum(len(piece) for piece in iter(lambda node=node: node.recv(1 << 16), b"")) == down
        assert [(one.up, one.down, one.connections) for one in relay.traffic] == [(70_000, 10, 1), (3, 200_000, 1)]


def test_a_link_that_is_down_looks_down():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with Relay("127.0.0.1", port) as relay, socket.create_connection(("127.0.0.1", relay.add())) as node:
        node.settimeout(10)
        with pytest.raises(ConnectionResetError):
            node.recv(1)
    assert relay.traffic[0].up == 0
