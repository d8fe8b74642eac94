"""The requests of one connection over HTTP/1.1, each read whole, within limits of bytes and seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus

import h11

from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.refused import Refused

READ = 2**16  # bytes at a time
LINGER = 5.0  # seconds that a refused peer's bytes are read and dropped, so that it can read why

Headers = Sequence[tuple[bytes, bytes]]


class Requests:
    """One connection's requests and their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader, self._writer, self._limits = reader, writer, limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head)

    async def head(self, due: float) -> h11.Request | None:
        """The next request, `due` by the loop's clock; None if the peer has ended."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        async with asyncio.timeout_at(due):
            event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self, size: int) -> bytes:
        """The body of the request, which says that it has `size` bytes."""
        body = bytearray()
        async with asyncio.timeout(self._limits.seconds(size)):
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        return bytes(body)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an answer."""
        pieces = [
            self._http.send(h11.Response(status_code=status, headers=list(headers), reason=HTTPStatus(status).phrase)),
            self._http.send(h11.Data(data=body)),
            self._http.send(h11.EndOfMessage()),
        ]
        self._writer.writelines([piece for piece in pieces if piece])
        async with asyncio.timeout(self._limits.seconds(len(body))):
            await self._writer.drain()

    async def refuse(self, status: int, body: bytes) -> None:
        """Send an answer to a request that was not read to its end, and read no more requests."""
        date = formatdate(usegmt=True).encode()  # by which nodes check their clocks
        headers = [(b"date", date), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.answer(status, [*headers, (b"connection", b"close")], body)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while await self._reader.read(READ):
                    pass

    async def _event(self) -> object:
        """The next event of the connection."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ))
        return event


def size_of(headers: dict[bytes, bytes], most: int) -> int:
    """Bytes of a request's body by its head; `Refused` if they are too many, or not said."""
    if b"content-length" not in headers or b"transfer-encoding" in headers:
        raise Refused(411, "it does not say how long it is")
    size = int(headers[b"content-length"])
    if size > most:
        raise Refused(413, f"it has {size:,} bytes, and at most {most:,} are taken")
    return size
