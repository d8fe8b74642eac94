"""A request on its way through a gate: whose it is, whether it is one that nodes need, and how long it may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import h11
import httpx

from fedloom.flower.gate.budget import Budget
from fedloom.flower.gate.keys import Keys, check_signature, key_shown
from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.messages import ACTIVATE, check_sender, messages_in
from fedloom.flower.gate.refused import Refused
from fedloom.flower.gate.requests import Headers, Requests, size_of

PULL, PUSH, STORE = (f"/v1/fleet/{name}" for name in ("pull-messages", "push-messages", "push-object"))
OTHERS = (
    "deactivate-node", "send-node-heartbeat", "get-run", "get-fab", "pull-object", "confirm-message-received",
)  # fmt: skip
PASSED = frozenset((ACTIVATE, PULL, PUSH, STORE, *(f"/v1/fleet/{name}" for name in OTHERS)))
SENT, OWN = (b"content-type", b"accept", b"user-agent"), b"flwr-"  # headers that are passed on
DROPPED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"content-length"))


class Answer(NamedTuple):
    """The link's answer."""

    status: int
    headers: Headers
    body: bytes


class Passage:
    """Passes on what nodes need, from registered nodes, to a link."""

    def __init__(self, keys: Keys, link: httpx.AsyncClient, limits: Limits) -> None:
        self._keys, self._link, self._limits, self._budget = keys, link, limits, Budget(limits)

    async def __call__(
        self, request: h11.Request, requests: Requests, address: str, known: Callable[[bytes, str], None]
    ) -> Answer:
        """The link's answer to a request, or `Refused`; `known` is called with the key and the name of its node."""
        path, headers = request.target.decode("ascii", "replace"), dict(request.headers)
        if path not in PASSED or request.method != b"POST":
            raise Refused(404, "it asks for what nodes do not need")
        key = key_shown(headers)
        known(key, await self._name(key, headers))
        stored = path in (PUSH, STORE)
        size = size_of(headers, self._limits.body if stored else self._limits.small)
        if stored and not self._budget.take(key, size):
            raise Refused(413, "it sends more than the answers to its messages can have")
        kept = False
        try:
            body = await requests.body(size)
            if path == PUSH:
                check_sender(body)
            answer = await self._ask(path, body, headers, address)
            kept = answer.is_success
        finally:
            if stored and not kept:
                self._budget.add(key, size)
        if path == PULL and kept:
            self._budget.given(key, messages_in(answer.content))
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._keys.forget(key)
        found = [(name, value) for name, value in answer.headers.raw if name.lower() not in DROPPED]
        size_header = (b"content-length", b"%d" % len(answer.content))
        return Answer(answer.status_code, [*found, size_header], answer.content)

    async def _name(self, key: bytes, headers: dict[bytes, bytes]) -> str:
        """The name of the node that has signed; `Refused` if none has."""
        try:
            name = await self._keys.name(key)
        except Exception as problem:  # whatever the link's absence raises
            raise Refused(503, f"the link does not answer ({type(problem).__name__})") from problem
        if name is None:
            raise Refused(401, "its key is not registered")
        check_signature(headers, key)
        return name

    async def _ask(self, path: str, body: bytes, headers: dict[bytes, bytes], address: str) -> httpx.Response:
        """Ask the link, in the name of the node's address."""
        sent = [(name, value) for name, value in headers.items() if name in SENT or name.startswith(OWN)]
        sent += [(b"x-forwarded-for", address.encode()), (b"accept-encoding", b"identity")]
        try:
            return await self._link.post(path, content=body, headers=sent)
        except httpx.TransportError as problem:
            raise Refused(503, f"the link does not answer ({type(problem).__name__})") from problem
