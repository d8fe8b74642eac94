"""The process of a gate: its sockets, certificates and signals."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

import httpx

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.certificates import Certificates
from fedloom.flower.deploy.control import Control
from fedloom.flower.gate.keys import Keys
from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.pass_on import Passage
from fedloom.flower.gate.serve import Gate

POOL = 64  # connections to the link
KEPT = 4.0  # seconds that they are kept; the link closes them after five
BUSY = 60.0  # seconds that the link has to answer
FILES = 64  # open files besides connections
MOST_FILES = 2**16


def run_gate(
    listen: Address, link: Address, certificates: Certificates, limits: Limits, told: Callable[[], None]
) -> None:
    """Serve at `listen`, for a link at another address, until SIGTERM or SIGINT; `told` is called when it listens."""
    limits = limits._replace(connections=min(limits.connections, _files() - POOL - FILES))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificates.link, certificates.link_key)
        trusted = ssl.create_default_context(cafile=str(certificates.authority))
    except OSError as problem:
        raise BadExperiment(
            f"certificates is '{certificates.link.parent}': ca.crt, server.pem and server.key there cannot be used "
            f"({problem}); expected those of the deployment's folder."
        ) from problem
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        listener = socket.create_server(listen, family=family, backlog=limits.connections)
    except OSError as problem:
        raise RunStopped(f"nothing can listen at {listen} ({problem}); name another address or port.") from problem
    with listener, Control(str(link), certificates.authority) as control:
        told()
        asyncio.run(_serve(listener, context, trusted, link, control, limits))


async def _serve(
    listener: socket.socket,
    context: ssl.SSLContext,
    trusted: ssl.SSLContext,
    link: Address,
    control: Control,
    limits: Limits,
) -> None:
    """Serve until a signal."""
    pool = httpx.Limits(max_connections=POOL, max_keepalive_connections=POOL, keepalive_expiry=KEPT)
    async with httpx.AsyncClient(
        base_url=f"https://{link}", verify=trusted, timeout=BUSY, limits=pool, trust_env=False
    ) as client:
        gate = Gate(Passage(Keys(control.keys), client, limits), limits)
        serving = asyncio.ensure_future(gate.serve(listener, context))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        with suppress(asyncio.CancelledError):
            await serving


def _files() -> int:
    """The number of files that this process may open, after asking for all that it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
