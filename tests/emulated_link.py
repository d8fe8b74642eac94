"""A slow, far or lossy link between this machine and a network namespace, for tests and benchmarks.

Linux only, as root: two TUN devices, one here and one in a namespace of its own, and a process that carries IP packets
between them at a rate, after a delay, and drops some. Ends are the kernel's own TCP, so handshakes, slow start and
retransmissions are real, and every IP byte is counted. Packets that the link drops were sent, and count.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET = 1500  # bytes of the largest packet
QUEUE = 0.3  # seconds of the link's rate that wait at most before packets are dropped
LEAST_QUEUE = 64 * 1024  # bytes that may wait in any case
COUNTS = struct.Struct("6q")


class Counts(NamedTuple):
    """IP bytes and packets since the link began; up is from the namespace."""

    up: int = 0
    down: int = 0
    packets_up: int = 0
    packets_down: int = 0
    lost_up: int = 0
    lost_down: int = 0

    def since(self, then: Counts) -> Counts:
        """What was added since."""
        return Counts(*(now - before for now, before in zip(self, then)))


@dataclass
class Direction:
    """Packets on their way in one direction."""

    source: int  # file descriptors of TUN devices
    sink: int
    rate: float  # bytes a second
    delay: float
    loss: float
    chance: random.Random
    free: float = 0.0  # the time when the last packet has left
    on_the_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # bytes, packets, lost packets

    def read(self, now: float) -> None:
        """Take all packets that wait at the source."""
        with suppress(BlockingIOError):
            while packet := os.read(self.source, 65536):
                starts = max(now, self.free)
                if (starts - now) * self.rate > max(LEAST_QUEUE, QUEUE * self.rate):
                    continue  # the queue is full: never on the link
                self.free = starts + len(packet) / self.rate
                self.counts[0] += len(packet)
                self.counts[1] += 1
                if self.chance.random() < self.loss:
                    self.counts[2] += 1
                else:
                    self.on_the_way.append((self.free + self.delay, packet))

    def write(self, now: float) -> None:
        """Deliver the packets that have arrived."""
        while self.on_the_way and self.on_the_way[0][0] <= now:
            with suppress(OSError):
                os.write(self.sink, self.on_the_way.popleft()[1])


def carry(directions: Sequence[Direction], board: mmap.mmap) -> None:
    """Carry packets until the process ends; counts are on the `board`."""
    waiting = select.poll()
    for direction in directions:
        os.set_blocking(direction.source, False)
        waiting.register(direction.source, select.POLLIN)
    while True:
        ends = [direction.on_the_way[0][0] for direction in directions if direction.on_the_way]
        wait = max(0.0, min(ends) - time.monotonic()) * 1000 if ends else 1000
        waiting.poll(wait)
        now = time.monotonic()
        for direction in directions:
            direction.read(now)
            direction.write(now)
        up, down = (direction.counts for direction in directions)
        COUNTS.pack_into(board, 0, up[0], down[0], up[1], down[1], up[2], down[2])


def why_not() -> str | None:
    """Why links cannot be emulated here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "emulated links need Linux and root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    name = f"fl{os.getpid()}x"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as problem:
        return f"network namespaces are not allowed here ({problem})"
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _tun(name: str) -> int:
    """A new TUN device."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


@dataclass
class EmulatedLink:
    """A namespace behind a link; `up` and `down` in bit/s, `delay` in seconds each way, `loss` of packets each way.

    `congestion` is how TCP reacts to loss at both ends. A namespace may not have CUBIC, Linux's usual way; where few
    packets are on the way at a time, as on slow or lossy links, it does as Reno does.
    """

    up: float
    down: float
    delay: float = 0.0
    loss: float = 0.0
    place: int = 0  # of several links at a time: the third part of its addresses
    congestion: str = "reno"

    @property
    def here(self) -> str:
        """The address of this machine's end."""
        return f"10.{200 + os.getpid() % 50}.{self.place}.1"

    @property
    def there(self) -> str:
        """The address of the namespace's end."""
        return f"10.{200 + os.getpid() % 50}.{self.place}.2"

    def __enter__(self) -> Self:
        self.name = f"fl{os.getpid()}n{self.place}"
        inner, outer = f"i{self.name}"[:15], f"o{self.name}"[:15]
        _ip("netns", "add", self.name)
        self._sockets: list[socket.socket] = []
        self._pump = 0
        try:
            ends = _tun(outer), _tun(inner)
            _ip("link", "set", inner, "netns", self.name)
            _ip("addr", "add", f"{self.here}/30", "dev", outer)
            _ip("link", "set", outer, "mtu", str(PACKET), "up")
            inside = ("-n", self.name)
            _ip(*inside, "addr", "add", f"{self.there}/30", "dev", inner)
            _ip(*inside, "link", "set", inner, "mtu", str(PACKET), "up")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "route", "add", "default", "via", self.here)
            self.run(["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={self.congestion}"])
            self._board = mmap.mmap(-1, COUNTS.size)
            self._pump = self._start(*ends)
            for end in ends:
                os.close(end)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, outer: int, inner: int) -> int:
        """Start the process that carries packets; its number."""
        child = os.fork()
        if child:
            return child
        with suppress(BaseException):
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            up = Direction(inner, outer, self.up / 8, self.delay, self.loss, random.Random(2 * self.place))
            down = Direction(outer, inner, self.down / 8, self.delay, self.loss, random.Random(2 * self.place + 1))
            carry((up, down), self._board)
        os._exit(1)

    def __exit__(self, *problem: object) -> None:
        for end in self._sockets:
            with suppress(OSError):  # which wakes the threads that read from it
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        if self._pump:
            os.kill(self._pump, signal.SIGKILL)
            os.waitpid(self._pump, 0)
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)

    def command(self, words: Sequence[str]) -> list[str]:
        """The command, as run behind the link."""
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, words: Sequence[str]) -> str:
        """Run a command behind the link to its end; what it printed."""
        return subprocess.run(self.command(words), check=True, capture_output=True, text=True).stdout

    def counts(self) -> Counts:
        """What the link has carried so far."""
        return Counts(*COUNTS.unpack_from(self._board, 0))

    def serve(self, port: int) -> int:
        """Pass connections to a new port of this end on to a port of loopback; the new port."""
        listener = socket.create_server((self.here, 0))
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                far, _ = listener.accept()
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.congestion.encode())
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    near = socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:  # nobody listens: as a machine whose program has ended
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    far.close()
                    continue
                near.settimeout(None)
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [far, near]
                threading.Thread(target=_join, args=(far, near), daemon=True).start()


def _join(far: socket.socket, near: socket.socket) -> None:
    """Copy both ways until both ends have closed."""
    with far, near:
        back = threading.Thread(target=_copy, args=(near, far), daemon=True)
        back.start()
        _copy(far, near)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source ends."""
    with suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            end.shutdown(how)
