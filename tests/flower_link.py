"""A link without TLS that answers nodes as a test says, and the process of a node that calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from flwr.proto.fleet_pb2 import ActivateNodeResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from fedloom.flower.deploy.trial import environment, free_port

ANSWERS = {
    "activate-node": ActivateNodeResponse(node_id=7).SerializeToString(),
    "send-node-heartbeat": SendNodeHeartbeatResponse(success=True).SerializeToString(),
}


class FakeLink:
    """Answers every call with 200 and next to nothing; `answer` may choose another status for a path."""

    def __init__(self, answer: Callable[[str, int], int] = lambda path, count: 200, ahead: float = 0.0) -> None:
        """`answer` is told how often this path was called before; the link's clock is `ahead` seconds ahead."""
        self.calls: list[str] = []
        link = self

        class Handler(BaseHTTPRequestHandler):
            """One connection of a node."""

            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                path = self.path.rpartition("/")[2]
                status = answer(path, link.calls.count(path))
                link.calls.append(path)
                data = ANSWERS.get(path, b"") if status == 200 else b"no"
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def date_time_string(self, timestamp: float | None = None) -> str:
                import time

                return super().date_time_string(time.time() + ahead)

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End."""
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def node_at(link: FakeLink, folder: Path, **terms: float) -> Iterator[subprocess.Popen[str]]:
    """A warm node of that link, with other `terms` of `fedloom.flower.warm`; ended with all that it started."""
    setting = "".join(f"warm.{name} = {value}\n" for name, value in terms.items())
    code = f"import sys\nfrom fedloom.flower import warm\n{setting}sys.exit(warm.main(sys.argv[1:]))"
    words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link.server.server_port}"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--port", str(free_port()), "--node-config", 'clients="0"'],
        env={**environment(folder, 1), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        link.close()
