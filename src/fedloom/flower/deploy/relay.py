"""A relay on loopback between nodes and the link that counts the bytes of each node's connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

CHUNK = 1 << 16  # bytes read at a time


@dataclass
class Traffic:
    """Bytes of one node, TLS included."""

    up: int = 0  # to the link
    down: int = 0
    connections: int = 0

    def since(self, then: Traffic) -> Traffic:
        """What was added since."""
        return Traffic(self.up - then.up, self.down - then.down, self.connections - then.connections)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as if its other side were gone."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Relay:
    """A listening port for each node, whose bytes go to the link unread."""

    host: str
    port: int
    traffic: list[Traffic] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedloom-relay", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self) -> int:
        """Open a port for one more node."""
        return asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    async def _listen(self) -> int:
        traffic = Traffic()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(traffic, reader, writer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        self.traffic.append(traffic)
        self.ports.append(server.sockets[0].getsockname()[1])
        return self.ports[-1]

    async def _carry(self, traffic: Traffic, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, both ways, until both ends have closed."""
        traffic.connections += 1
        try:
            back, forth = await asyncio.open_connection(self.host, self.port)
        except OSError:  # there is no link; a connection that is closed in good order would look like bad TLS
            reset(writer)
            return

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, upward: bool) -> None:
            with suppress(OSError):
                while chunk := await source.read(CHUNK):
                    if upward:
                        traffic.up += len(chunk)
                    else:
                        traffic.down += len(chunk)
                    sink.write(chunk)
                    await sink.drain()
            with suppress(OSError, RuntimeError):
                if sink.can_write_eof():
                    sink.write_eof()

        try:
            await asyncio.gather(pump(reader, forth, True), pump(back, writer, False))
        finally:
            for end in (writer, forth):
                end.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
