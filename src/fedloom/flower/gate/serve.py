"""A gate between nodes and a link: it passes on what nodes need and nothing else.

A link serves nodes, operators and its own apps on one port, and asks operators for no proof of who they are. So it
listens where only they are, and nodes connect to a gate. The gate ends TLS, reads each request whole, and passes it on
if it is one that nodes need, signed with a registered key. The link checks the signature again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

import h11

from fedloom.flower.gate.door import Door, Visitor, origin_of
from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.messages import error_of
from fedloom.flower.gate.notes import Notes
from fedloom.flower.gate.pass_on import Passage
from fedloom.flower.gate.refused import Refused
from fedloom.flower.gate.requests import Requests

log = logging.getLogger("fedloom")


class Gate:
    """Takes connections and answers their requests."""

    def __init__(self, passage: Passage, limits: Limits) -> None:
        self._passage, self._limits = passage, limits
        self._door, self._notes = Door(limits), Notes()
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Take connections from a listening socket until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as problem:  # too many open files, or a peer that has gone
                    log.warning("a connection could not be taken: %s", problem)
                    await asyncio.sleep(0.1)
                    continue
                task = loop.create_task(self._visit(connection, str(address[0]), context))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _visit(self, connection: socket.socket, address: str, context: ssl.SSLContext) -> None:
        """One connection, from its first byte to its last."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        visitor, due, writer = Visitor(origin_of(address), task.cancel), loop.time() + self._limits.first, None
        self._door.enter(visitor)
        try:
            async with asyncio.timeout_at(due):
                reader, writer = await _secured(connection, context, self._limits.first)
            await self._answer(Requests(reader, writer, self._limits), visitor, address, due)
        except TimeoutError:
            if not visitor.name:
                self._notes.say(address, f"it showed no key within {self._limits.first:g} s")
        except ConnectionError:
            pass  # it has gone
        except (OSError, h11.RemoteProtocolError) as problem:
            if not visitor.name:
                self._notes.say(address, f"it does not speak HTTP over TLS as nodes do ({type(problem).__name__})")
        except asyncio.CancelledError:
            pass  # one too many, or the gate ends
        finally:
            self._door.leave(visitor)
            if writer is not None:
                writer.transport.abort()

    async def _answer(self, requests: Requests, visitor: Visitor, address: str, due: float) -> None:
        """Answer a connection's requests until it ends, or one is refused; the first is `due` by the loop's clock."""

        def known(key: bytes, name: str) -> None:
            visitor.name = name
            self._door.recognise(visitor, key)

        while (request := await requests.head(due)) is not None:
            try:
                answer = await self._passage(request, requests, address, known)
            except Refused as refused:
                self._notes.say(f"{visitor.name} at {address}" if visitor.name else address, refused.why)
                await requests.refuse(*error_of(request.target, refused))
                return
            await requests.answer(*answer)
            due = asyncio.get_running_loop().time() + self._limits.idle


async def _secured(
    connection: socket.socket, context: ssl.SSLContext, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection's streams within TLS."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=seconds
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
