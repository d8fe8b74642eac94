"""Strangers at the link's door: an unregistered key, another authority's certificate, no TLS at all, no key."""

from __future__ import annotations

import socket
import time

import pytest

pytest.importorskip("flwr")

from fedloom.flower.deploy.certificates import write_certificates
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import link_command, node_command, write_folder
from fedloom.flower.deploy.keys import write_key
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.trial import CONFIG, environment, free_port
from fedloom.runs.experiment import Experiment

LONG = 120.0  # seconds; on a busy machine


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """A link that lets one node in: its folder, its processes, its address and the node's number."""
    root = tmp_path_factory.mktemp("link")
    made, port = write_folder(root / "made", Experiment(clients=1), 1, CONFIG), free_port()
    with Processes(root / "logs", environment(made.home, 1)) as held:
        held.start("link", link_command(made.certificates, "127.0.0.1", port))
        with Control(f"127.0.0.1:{port}", made.certificates.authority) as control:
            control.wait_for_link(LONG, lambda: held.running("link"))
            yield made, held, port, control, control.register(made.keys[0].public, "node-0")
    assert not marked_processes(held.mark)


def knock(held: Processes, name: str, words: list[str]) -> str:
    """Start a node and wait until it gives up; what it said."""
    held.start(name, [*words, "--max-retries", "1"])
    until = time.monotonic() + LONG
    while held.running(name):
        assert time.monotonic() < until, held.last_lines(name, 50)
        time.sleep(0.05)
    assert held.heads[name].returncode != 0
    return held.last_lines(name, 200)


def words_of(made, port: int, authority=None, key=None) -> list[str]:
    """A node's command."""
    authority, key = authority or made.certificates.authority, key or made.keys[0].private
    return node_command(str(authority), str(key), f"127.0.0.1:{port}", {"clients": "0"}, free_port())


def test_an_unregistered_key(link, tmp_path):
    made, held, port, control, number = link
    said = knock(held, "unregistered", words_of(made, port, key=write_key(tmp_path, "stranger").private))
    assert "SuperNode ID" not in said
    assert "Failed to activate SuperNode" in said
    assert control.nodes() == {number: "registered"}


def test_a_link_with_another_authoritys_certificate(link, tmp_path):
    made, held, port, control, number = link
    others = write_certificates(tmp_path)
    said = knock(held, "mistaken", words_of(made, port, authority=others.authority))
    assert "SuperNode ID" not in said
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert control.nodes() == {number: "registered"}


def test_a_node_without_tls(link):
    made, held, port, control, number = link
    words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
    assert "SuperNode ID" not in knock(held, "plain", words)
    keyed = [*words, "--auth-supernode-private-key", str(made.keys[0].private)]
    assert "requires a secure TLS connection" in " ".join(knock(held, "plain with a key", keyed).split())
    with socket.create_connection(("127.0.0.1", port)) as plain:  # and nothing but TLS is understood
        plain.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: link\r\nContent-Length: 0\r\n\r\n")
        plain.settimeout(LONG)
        assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    assert control.nodes() == {number: "registered"}


def test_a_node_without_a_key(link):
    made, held, port, control, number = link
    words = words_of(made, port)
    at = words.index("--auth-supernode-private-key")
    said = knock(held, "keyless", words[:at] + words[at + 2 :])
    assert "SuperNode ID" not in said
    assert control.nodes() == {number: "registered"}


def test_a_node_that_was_let_in_and_then_shut_out(link):
    """The last test: the link's one node comes in, its right is taken away, and it ends, or stands refused.

    Flower's node interrupts itself from each of its threads that is refused; an interrupt that strikes in the handler
    of another leaves a process that does nothing any more and does not end.
    """
    made, held, port, control, number = link
    held.start("node", words_of(made, port))
    until = time.monotonic() + LONG
    while control.nodes()[number] != "online":
        assert held.running("node"), held.last_lines("node", 50)
        assert time.monotonic() < until
        time.sleep(0.05)
    control.unregister(number)
    while held.running("node") and "401 Unauthorized" not in held.last_lines("node", 200):
        assert time.monotonic() < until, held.last_lines("node", 50)
        time.sleep(0.05)
    assert control.nodes().get(number) in (None, "unregistered")
