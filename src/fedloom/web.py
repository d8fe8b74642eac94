"""Small pages over HTTP on loopback, for whoever is on this machine: figures, a health check, a live view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")  # any other name in a browser's request is some web site that points here
PATIENCE = 1.0  # seconds for a request to come


class Answer(NamedTuple):
    """What a page answers."""

    body: str
    kind: str = "text/plain; charset=utf-8"
    status: int = 200


Pages = Mapping[str, Callable[[], Answer]]  # by their path


class Web:
    """Serves pages, in threads of its own after `start`, or one at a time with `answer`."""

    def __init__(self, port: int, pages: Pages, threads: bool = True) -> None:
        """Listen; `OSError` if something else does. Port 0 is any free one."""

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = PATIENCE

            def do_GET(self) -> None:
                """Answer with a page."""
                page = pages.get(self.path.partition("?")[0])
                if urlsplit(f"//{self.headers.get('host', '')}").hostname not in HOSTS:
                    answer = Answer("this page is for this machine alone\n", status=403)
                elif page is None:
                    answer = Answer(f"there is {', '.join(pages)}\n", status=404)
                else:
                    answer = page()
                data = answer.body.encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                """Nothing: pages are asked for every few seconds."""

        kind = ThreadingHTTPServer if threads else HTTPServer
        self._server = kind((LOOPBACK, port), Handler)
        self._server.timeout = 0.0
        self._started = False
        self.port = int(self._server.server_address[1])

    def start(self) -> Self:
        """Answer from now on."""
        self._started = True
        threading.Thread(target=self._server.serve_forever, args=(0.2,), name="pages", daemon=True).start()
        return self

    def answer(self) -> None:
        """Answer one request, if one waits."""
        self._server.handle_request()

    def close(self) -> None:
        """Listen no more; in a fork of a process that listens, let go of that."""
        if self._started:
            self._server.shutdown()
        self._server.server_close()
