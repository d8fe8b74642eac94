"""Connections to a gate: those that say nothing or little, too many of them, and those that speak something else."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("flwr")

import httpx

from fedloom.flower.deploy.certificates import write_certificates
from fedloom.flower.gate.limits import Limits
from gate_in_process import LONG, gate, until

QUICK = Limits(reply=10_000, first=1.0, idle=1.0, strangers=4, of_node=3, connections=12, slowest=10_000)


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A gate with small limits."""
    monkeypatch.setattr("fedloom.flower.gate.requests.LINGER", 0.2)
    with gate(tmp_path, QUICK) as found:
        yield found


@pytest.fixture
def node(running):
    """The registered node."""
    return running.register("node-0 (7)")


def closed(peer: socket.socket) -> bool:
    """Whether the other side ends the connection."""
    peer.settimeout(LONG)
    try:
        while peer.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("said", [None, b"", b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: "])
def test_who_shows_no_key_is_closed(running, said, caplog):
    """Also those that do not even begin TLS, and those that go on for ever with their first line."""
    caplog.set_level(logging.WARNING, "fedloom")
    began = time.monotonic()
    if said is None:
        peer = socket.create_connection(("127.0.0.1", running.port), LONG)
    else:
        peer = running.connect()
        peer.sendall(said)
    with peer:
        assert closed(peer)
    assert QUICK.first / 2 < time.monotonic() - began < LONG / 2
    until(lambda: "it showed no key within 1 s" in caplog.text or said is None)


def test_drips_do_not_keep_a_stranger_in(running):
    began = time.monotonic()
    with running.connect() as peer, suppress(OSError):  # reset, a broken pipe, or the end of TLS
        while time.monotonic() - began < LONG:
            peer.sendall(b"G")
            time.sleep(0.1)
    assert time.monotonic() - began < LONG / 2


def test_idle_strangers_keep_no_node_out(running, node):
    """From the same address, and more of them than there may be connections at all."""
    with ExitStack() as stack:
        for _ in range(3 * QUICK.connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), LONG))
        with running.client() as client:
            assert client.post("/v1/fleet/get-run", headers=node.headers()).status_code == 200


def test_one_node_has_so_many_connections(running, node):
    """The oldest of too many is closed, whose node may have forgotten it; other nodes are not touched."""
    other = running.register("node-1 (8)")
    with ExitStack() as stack:
        theirs = stack.enter_context(running.client())
        assert theirs.post("/v1/fleet/get-run", headers=other.headers()).status_code == 200
        peers = [stack.enter_context(running.connect()) for _ in range(QUICK.of_node + 1)]
        head = "".join(f"{name}: {value}\r\n" for name, value in node.headers().items())
        for peer in peers:
            peer.sendall(f"POST /v1/fleet/get-run HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n{head}\r\n".encode())
            said = b""
            while not said.endswith(b"the link's answer"):
                said += peer.recv(1000)
        assert closed(peers[0])
        peers[1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            peers[1].recv(1)
        assert theirs.post("/v1/fleet/get-run", headers=other.headers()).status_code == 200


def test_a_body_that_does_not_come_ends_the_request(running, node):
    head = "".join(f"{name}: {value}\r\n" for name, value in node.headers().items())
    with running.connect() as peer:
        peer.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: g\r\ncontent-length: 5000\r\n{head}\r\nx".encode())
        assert closed(peer)
    assert running.asked == []
    with running.client() as client:  # what did not come was not spent
        for _ in range(2):
            answer = client.post("/v1/fleet/push-object", headers=node.headers(), content=b"x" * 5000)
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x00", b"NOT HTTP\r\n\r\n", b"POST / HTTP/1.1\r\nhost: g\r\n" + b"a: b\r\n" * 10_000,
        b"POST / HTTP/1.1\r\nhost: g\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request_is_closed(running, said):
    with running.connect() as peer:
        try:
            peer.sendall(said)
        except OSError:  # it was closed while this was sent
            return
        assert closed(peer)
    assert running.asked == []


def test_plain_http_and_other_authorities_are_closed(running, tmp_path):
    with socket.create_connection(("127.0.0.1", running.port), LONG) as peer:
        peer.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: g\r\n\r\n")
        assert closed(peer)
    other = ssl.create_default_context(cafile=str(write_certificates(tmp_path / "other").authority))
    with httpx.Client(verify=other) as client, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        client.post(f"https://127.0.0.1:{running.port}/v1/fleet/get-run")


def test_connections_leave_nothing_open(running, node):
    """Files of this process, which is gate and peers in one."""

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", running.port), LONG) as plain:
            plain.sendall(b"nothing")
        with running.client() as client:
            client.post("/v1/fleet/get-run", headers=node.headers())
            client.post("/v1/control/list-nodes", headers=node.headers())
    until(lambda: files() <= before)


def test_the_log_has_one_line_for_many_refusals(running, caplog):
    caplog.set_level(logging.WARNING, "fedloom")
    for _ in range(5):
        with running.client() as client:
            assert client.post("/v1/control/start-run").status_code == 404
    assert caplog.text.count("it asks for what nodes do not need") == 1
