"""Nodes that a link refuses: an unregistered key, another authority's certificate, no TLS, no key."""

from __future__ import annotations

import socket
import sys
import time

import pytest

pytest.importorskip("flwr")

from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.certificates import write_certificates
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import WARM, Gateway, gate_command, link_command, node_command, write_folder
from fedloom.flower.deploy.keys import write_key
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.trial import CONFIG, environment, free_port, wait_for_port
from fedloom.flower.protocol.exit_codes import REMOVED
from fedloom.runs.experiment import Experiment

LONG = 120.0  # seconds; on a busy machine


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """A link with one registered node: folder, processes, the gate's port, connection and the node's number."""
    root = tmp_path_factory.mktemp("link")
    gate, address = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    made = write_folder(root / "made", Experiment(clients=1), 1, CONFIG, control=address)
    with Processes(root / "logs", environment(made.home, 1)) as processes:
        processes.start("link", link_command(made.certificates, address))
        processes.start("gate", gate_command(made.certificates.link.parent, Gateway(gate, gate, address, 10**6)))
        with Control(str(address), made.certificates.authority) as control:
            control.wait_for_link(LONG, lambda: processes.running("link"))
            wait_for_port(gate, LONG, lambda: processes.running("gate"))
            yield made, processes, gate.port, control, control.register(made.keys[0].public, "node-0")
    assert not marked_processes(processes.mark)


def refused_output(processes: Processes, name: str, words: list[str]) -> str:
    """Start a node and wait until it gives up; its output."""
    processes.start(name, [*words, "--max-retries", "1"])
    until = time.monotonic() + LONG
    while processes.running(name):
        assert time.monotonic() < until, processes.last_lines(name, 50)
        time.sleep(0.05)
    assert processes.heads[name].returncode != 0
    return processes.last_lines(name, 200)


def words_of(made, port: int, authority=None, key=None) -> list[str]:
    """A node's command."""
    authority, key = authority or made.certificates.authority, key or made.keys[0].private
    return node_command(str(authority), str(key), f"127.0.0.1:{port}", {"clients": "0"}, free_port())


def test_an_unregistered_key(link, tmp_path):
    made, processes, port, control, number = link
    said = refused_output(processes, "unregistered", words_of(made, port, key=write_key(tmp_path, "stranger").private))
    assert "SuperNode ID" not in said
    assert "Failed to activate SuperNode" in said
    assert control.nodes() == {number: "registered"}


def test_a_link_with_another_authoritys_certificate(link, tmp_path):
    made, processes, port, control, number = link
    others = write_certificates(tmp_path)
    said = refused_output(processes, "mistaken", words_of(made, port, authority=others.authority))
    assert "SuperNode ID" not in said
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert control.nodes() == {number: "registered"}


def test_a_node_without_tls(link):
    made, processes, port, control, number = link
    words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
    assert "SuperNode ID" not in refused_output(processes, "plain", words)
    keyed = [*words, "--auth-supernode-private-key", str(made.keys[0].private)]
    assert "requires a secure TLS connection" in " ".join(refused_output(processes, "plain with a key", keyed).split())
    with socket.create_connection(("127.0.0.1", port)) as plain:  # only TLS is accepted
        plain.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: link\r\nContent-Length: 0\r\n\r\n")
        plain.settimeout(LONG)
        assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    assert control.nodes() == {number: "registered"}


def test_a_node_without_a_key(link):
    made, processes, port, control, number = link
    words = words_of(made, port)
    at = words.index("--auth-supernode-private-key")
    said = refused_output(processes, "keyless", words[:at] + words[at + 2 :])
    assert "SuperNode ID" not in said
    assert control.nodes() == {number: "registered"}


def test_a_node_that_is_unregistered(link):
    """The last test: the link's one node connects, is unregistered, and ends for good."""
    made, processes, port, control, number = link
    processes.start("node", [sys.executable, *WARM[1:], *words_of(made, port)])
    until = time.monotonic() + LONG
    while control.nodes()[number] != "online":
        assert processes.running("node"), processes.last_lines("node", 50)
        assert time.monotonic() < until
        time.sleep(0.05)
    control.unregister(number)
    while processes.running("node"):
        assert time.monotonic() < until, processes.last_lines("node", 50)
        time.sleep(0.05)
    assert processes.heads["node"].returncode == REMOVED
    assert "its key was taken back" in processes.last_lines("node", 1)
    assert control.nodes().get(number) in (None, "unregistered")
