"""The address of a listening process, `host:port`."""

from __future__ import annotations

from typing import NamedTuple

from fedloom.errors import BadExperiment


class Address(NamedTuple):
    """A host and a port; as text an IPv6 address stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(text: str, what: str) -> Address:
    """Read `host:port`; `what` names the setting in errors."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535 or any(map(str.isspace, host)):
        raise BadExperiment(f"{what} is '{text}'; expected HOST:PORT, such as 127.0.0.1:8001 or [::1]:8001.")
    return Address(host, int(port))
