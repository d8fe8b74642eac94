"""A gate in this process, with a link in memory, and nodes that speak to it over TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedloom.flower.deploy.certificates import Certificates, write_certificates
from fedloom.flower.gate.keys import Keys
from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.pass_on import Passage
from fedloom.flower.gate.serve import Gate

LONG = 30.0  # seconds; on a busy machine


@dataclass
class Node:
    """A node's key, and requests that it signs."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))

    @property
    def public(self) -> bytes:
        """The public key as Flower writes it."""
        return public_key_to_bytes(self.key.public_key())

    def headers(self, time: str = "", signer: Node | None = None) -> dict[str, str]:
        """Headers of a request that is signed now, or at another time, or by another node."""
        time = time or now().isoformat()
        return {
            "content-type": "application/protobuf",
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message((signer or self).key, time.encode())).decode(),
        }


@dataclass
class Running:
    """A gate that runs, and what its link has seen."""

    port: int
    certificates: Certificates
    registered: dict[bytes, str]
    asked: list[httpx.Request] = field(default_factory=list)  # requests that reached the link
    messages: int = 0  # in every answer to pull-messages
    status: int = 200  # of every answer; 0: the link is down
    questions: int = 0  # how often the link was asked for keys

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """The link."""
        if not self.status:
            raise httpx.ConnectError("down")
        self.asked.append(request)
        body = b"the link's answer"
        if request.url.path.endswith("pull-messages"):
            body = PullMessagesResponse(messages_list=[Message()] * self.messages).SerializeToString()
        return httpx.Response(self.status, headers={"server": "link", "content-type": "x/y"}, content=body)

    def keys(self) -> dict[bytes, str]:
        """The link's answer to the question for registered keys."""
        self.questions += 1
        if not self.status:
            raise httpx.ConnectError("down")
        return dict(self.registered)

    def register(self, name: str) -> Node:
        """A node whose key the link has registered."""
        node = Node()
        self.registered[node.public] = name
        return node

    def trusting(self) -> ssl.SSLContext:
        """A context that trusts the gate's authority."""
        return ssl.create_default_context(cafile=str(self.certificates.authority))

    def client(self) -> httpx.Client:
        """A client as Flower's nodes have one."""
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=self.trusting(), timeout=LONG)

    def connect(self) -> ssl.SSLSocket:
        """A connection whose bytes are the test's own."""
        plain = socket.create_connection(("127.0.0.1", self.port), LONG)
        return self.trusting().wrap_socket(plain, server_hostname="127.0.0.1")


@contextmanager
def gate(folder: Path, limits: Limits) -> Iterator[Running]:
    """A gate on loopback."""
    files = write_certificates(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.link, files.link_key)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    running = Running(listener.getsockname()[1], files, {})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def serve() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(running), base_url="https://link") as link:
            await Gate(Passage(Keys(running.keys), link, limits), limits).serve(listener, context)

    future = asyncio.run_coroutine_threadsafe(serve(), loop)
    try:
        yield running
    finally:
        future.cancel()
        asyncio.run_coroutine_threadsafe(_rest(), loop).result(LONG)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LONG)
        loop.close()
        listener.close()


async def _rest() -> None:
    """Wait for all other tasks of the loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


def until(what: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    from time import monotonic, sleep

    ends = monotonic() + LONG
    while not what():
        assert monotonic() < ends
        sleep(0.01)
