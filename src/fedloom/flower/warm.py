"""A process that loads everything once and answers each of a node's messages in a fork, so that answers come sooner.

`python -m fedloom.flower.warm flower-supernode ...` starts the node's command with `--isolation process` and does what
Flower's `flower-superexec` would do for it, except that the app does not start a new Python.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fedloom.flower.protocol.pace import pace_pulls

log = logging.getLogger("fedloom")

INTERVAL = 0.1  # seconds between looks for a message
LOADED = ("fedloom.flower.node.answer", "fedloom.flower.node.personal", "flwr.supernode.runtime.run_clientapp")


def main(words: list[str]) -> int:
    """Run a node's command, and an app for each of its messages, until it ends; its exit code."""
    if "--port" not in words or any(word.startswith("--ssl") for word in words):
        raise SystemExit("usage: python -m fedloom.flower.warm flower-supernode ... --port NUMBER, without --ssl-...")
    address = f"127.0.0.1:{words[words.index('--port') + 1]}"
    paced = [sys.executable, "-m", "fedloom.flower.protocol.pace"] if Path(words[0]).name == "flower-supernode" else []
    node = subprocess.Popen([*paced, *words, "--isolation", "process"])

    def end(number: int, frame: FrameType | None) -> None:
        node.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    for name in LOADED:
        importlib.import_module(name)
    pace_pulls()
    gc.collect()
    gc.freeze()  # what was loaded stays in memory pages that all forks share
    forks: list[int] = []
    with _runtime(address) as runtime:
        while node.poll() is None:
            forks = [fork for fork in forks if os.waitpid(fork, os.WNOHANG)[0] == 0]  # still running
            if (token := _next_message(runtime)) is not None:
                forks.append(os.fork())
                if forks[-1] == 0:
                    _run_app(address, token)
            time.sleep(INTERVAL)
    return node.returncode


def _runtime(address: str) -> Any:
    """A connection to the node's own API."""
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        address, True, None, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    )


def _next_message(runtime: Any) -> str | None:
    """The token of a message that waits for its app; None if none does, or if the node is not up yet."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    with suppress(httpx.TransportError):
        found = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.HasField("task") and found.token:
            return str(found.token)
    return None


def _run_app(address: str, token: str) -> None:
    """In a fork: run the app of one message, and exit."""
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        run_clientapp(address, token, insecure=True, parent_pid=os.getppid())
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        log.exception("the app failed")
    finally:
        logging.shutdown()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
