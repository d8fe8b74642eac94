"""The emulated link itself: a plain transfer takes what its rate, delay and loss say, and every IP byte is counted."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from emulated_link import EmulatedLink, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
SIZE, HEADERS = 400_000, 1500 / 1448  # bytes of a transfer; IP and TCP headers with time stamps
SEND = """
import socket, sys, time
host, port, size, trips = sys.argv[1], *map(int, sys.argv[2:])
with socket.create_connection((host, port)) as line:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.monotonic()
    for _ in range(trips):
        line.sendall(b"a" * 10)
        line.recv(10)
    trip = (time.monotonic() - began) / trips
    began = time.monotonic()
    line.sendall(bytes(size))
    line.shutdown(socket.SHUT_WR)
    line.recv(10)
    print(trip, time.monotonic() - began)
"""


@pytest.fixture
def sink() -> Iterator[int]:
    """A port of loopback that answers ten bytes with ten, and the end of everything with ten."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                while chunk := line.recv(65536):
                    if chunk == b"a" * 10:
                        line.sendall(chunk)
                line.sendall(b"b" * 10)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def transfer(link: EmulatedLink, sink: int) -> tuple[float, float]:
    """Seconds of a round trip, and of a transfer up and the answer."""
    words = [sys.executable, "-I", "-c", SEND, link.here, str(link.serve(sink)), str(SIZE), "5"]
    trip, whole = link.run(words).split()
    return float(trip), float(whole)


def test_rate_delay_and_bytes(sink: int) -> None:
    with EmulatedLink(up=4e6, down=20e6, delay=0.03) as link:
        trip, whole = transfer(link, sink)
        counts = link.counts()
    assert 0.06 <= trip < 0.075
    least = 8 * SIZE * HEADERS / 4e6 + 0.06  # at the link's rate, and one round trip
    assert least <= whole < 1.2 * least + 2 * 0.06  # and TCP's slow start
    assert SIZE * HEADERS < counts.up < 1.03 * SIZE * HEADERS + 2000
    assert counts.down < 0.06 * counts.up + 2000  # acknowledgements
    assert counts.lost_up == counts.lost_down == 0


def test_loss(sink: int) -> None:
    with EmulatedLink(up=20e6, down=20e6, delay=0.005, loss=0.05, place=1) as link:
        began = time.monotonic()
        _, whole = transfer(link, sink)
        took, counts = time.monotonic() - began, link.counts()
    assert whole < took
    assert 0.02 < counts.lost_up / counts.packets_up < 0.1  # of about 290 packets; 5 % with a deviation of 1.3
    assert counts.up > 1.01 * SIZE * HEADERS  # lost packets were sent, and sent again
    assert whole > 8 * SIZE * HEADERS / 20e6


def test_nothing_is_left() -> None:
    with EmulatedLink(up=1e6, down=1e6, place=2) as link:
        assert link.run(["hostname"])
    again = EmulatedLink(up=1e6, down=1e6, place=2)
    with again:
        assert again.name == link.name
