"""Small pages on loopback: what they answer, to whom, and how often."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from fedloom.web import Answer, Web
from pages import get

PAGES = {"/": lambda: Answer("a <page>", "text/html"), "/bad": lambda: Answer("no", status=503)}


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web(0, PAGES).start()
    yield found
    found.close()


def test_pages(web: Web) -> None:
    assert get(web.port, "/") == (200, "text/html", "a <page>")
    assert get(web.port, "/?since=3") == (200, "text/html", "a <page>")
    assert get(web.port, "/bad") == (503, "text/plain; charset=utf-8", "no")
    assert get(web.port, "/other")[0] == 404
    assert get(web.port, "/", f"localhost:{web.port}")[0] == 200


def test_a_web_site_that_points_here_sees_nothing(web: Web) -> None:
    """A browser names the site in its request, whatever address the name was given."""
    assert get(web.port, "/", "evil.example:80")[0] == 403
    assert get(web.port, "/", "127.0.0.1.evil.example")[0] == 403


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address")
def test_it_listens_on_one_address_alone(web: Web) -> None:
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.2", web.port), 5):
        pass


def test_a_port_is_taken_once(web: Web) -> None:
    with pytest.raises(OSError, match="in use"):
        Web(web.port, PAGES)


def test_one_at_a_time_and_nobody_holds_it_up() -> None:
    """A process that forks has no threads; whoever connects and says nothing costs it a second."""
    web = Web(0, PAGES, threads=False)
    began = time.monotonic()
    web.answer()
    assert time.monotonic() - began < 0.5
    with socket.create_connection(("127.0.0.1", web.port)):
        began = time.monotonic()
        web.answer()
        assert time.monotonic() - began < 5
    with socket.create_connection(("127.0.0.1", web.port)) as asking:
        asking.sendall(b"GET /bad HTTP/1.0\r\nHost: localhost\r\n\r\n")
        web.answer()
        assert asking.recv(1000).startswith(b"HTTP/1.0 503")
    web.close()
