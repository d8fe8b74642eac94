"""The app of one message, in a fork of a loaded process. A fork that dies is reported at once, as an error.

Without that the node would take no other message for a minute, and the server would wait until its round's deadline.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from fedloom.flower.protocol.said import said

if TYPE_CHECKING:
    from flwr.app import Message

log = logging.getLogger("fedloom")

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TIMEOUT = 10.0  # seconds for a call of the node's own API
SIZE = 4  # bytes of the length of what a fork says first
ANSWERING, ANSWERED = b"A", b"B"  # said before and after its reply is handed to the node


class Stuck(Exception):
    """A node that waits for what will not come, and has to be started again."""


class Fork:
    """A fork that answers one message. It tells its message's metadata, and how far its reply is, through a pipe."""

    def __init__(self, address: str, token: str, let_go: Callable[[], None] = lambda: None) -> None:
        """Fork; `let_go` is called there, and closes what belongs to the process that forked."""
        self._address, self._token, self._data = address, token, b""
        self._pipe, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            let_go()
            _answer(address, token, writing)
        os.close(writing)
        os.set_blocking(self._pipe, False)

    def ended(self) -> int | None:
        """Its exit code, a signal's below 0, if it has ended; one whose message nobody waits for is killed."""
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 2**16):
                self._data += data
        if (message := self._message) and time.time() > message.metadata.created_at + message.metadata.ttl:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        return os.waitstatus_to_exitcode(status)

    def close(self, code: int) -> bool:
        """After its end with this code; whether it had answered. If it had not, the node is told so now."""
        os.close(self._pipe)
        size = SIZE + int.from_bytes(self._data[:SIZE], "big")
        said_last = self._data[size:]
        if said_last.endswith(ANSWERED):
            return code == 0  # else its app raised an error, which is its answer
        if said_last:
            raise Stuck("its app died while it handed over its reply")
        why = f"its process ended with exit code {code}"
        if code < 0:
            why = f"its process was killed by {signal.Signals(-code).name}"
            why += ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        log.warning("an app died: %s", why)
        try:
            self._report(why)
        except Exception as problem:  # noqa: BLE001  whatever Flower raises: it gives the message up by itself, later
            log.warning("Flower gives its message up after a minute: %s", said(problem))
        return False

    @property
    def _message(self) -> Message | None:
        """The message without its content; None before it was pulled."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.message_pb2 import Message as Proto

        size = int.from_bytes(self._data[:SIZE], "big")
        return message_from_proto(Proto.FromString(self._data[SIZE : SIZE + size])) if size else None

    def _report(self, why: str) -> None:
        """Answer its message with an error."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

        with runtime_client(self._address, RuntimeTokenHttpInterceptor(self._token)) as client:
            message = self._message or pull_task_input(client)[0]
            facts: Any = SimpleNamespace(node_id=message.metadata.dst_node_id, run_id=message.metadata.run_id)
            push_message(client, Message(Error(ErrorCode.CLIENT_APP_CRASHED, why), reply_to=message), facts)
            push_task_output(client, None, SubStatus.FAILED, why)


def runtime_client(address: str, *interceptors: Any) -> Any:
    """A connection to the node's own API."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient(f"http://{address}", interceptors=[version, *interceptors], timeout=TIMEOUT)


def _answer(address: str, token: str, pipe: int) -> NoReturn:
    """In a fork: run the app of one message, and exit."""
    code = 1
    try:
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)
        run = _telling(pipe)
        run(address, token, insecure=True, parent_pid=os.getppid())
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        log.exception("the app failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _telling(pipe: int) -> Callable[..., None]:
    """Flower's function that runs an app, which tells what it does through a pipe."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    module: Any = sys.modules[run_clientapp.__module__]
    pull, push = module.pull_task_input, module.push_message

    def pulled(client: Any) -> Any:
        found = pull(client)
        data = message_to_proto(remove_content_from_message(found[0])).SerializeToString()
        os.write(pipe, len(data).to_bytes(SIZE, "big") + data)
        return found

    def pushed(*given: Any) -> None:
        os.write(pipe, ANSWERING)
        push(*given)
        os.write(pipe, ANSWERED)

    module.pull_task_input, module.push_message = pulled, pushed
    return run_clientapp
