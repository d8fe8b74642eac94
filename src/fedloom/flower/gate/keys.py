"""Who a request is from: the node whose registered key has signed it."""

from __future__ import annotations

import asyncio
import binascii
import logging
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime

from fedloom.flower.gate.refused import Refused

log = logging.getLogger("fedloom")

AGAIN = 2.0  # seconds between questions to the link


class Keys:
    """The public keys of registered nodes, which the link is asked for when an unknown one comes."""

    def __init__(self, ask: Callable[[], dict[bytes, str]]) -> None:
        """`ask` returns the keys that are registered now, with their nodes' names; it may block."""
        self._ask, self._names = ask, dict[bytes, str]()
        self._asked, self._asking = float("-inf"), asyncio.Lock()

    async def name(self, key: bytes) -> str | None:
        """The name of the node with this key; None if it is not registered."""
        came = time.monotonic()
        if key not in self._names:
            async with self._asking:  # one question answers all who came before it
                if self._asked < came:
                    await asyncio.sleep(max(0.0, self._asked + AGAIN - came))
                    asked = time.monotonic()
                    self._names = await asyncio.to_thread(self._ask)
                    self._asked = asked
        return self._names.get(key)

    def forget(self, key: bytes) -> None:
        """The link does not take this key any more."""
        self._names.pop(key, None)


def key_shown(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key that a request names; `Refused` if it names none."""
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    try:
        return b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
    except (KeyError, binascii.Error):
        raise Refused(401, "it shows no key") from None


def check_signature(headers: Mapping[bytes, bytes], key: bytes) -> None:
    """Refuse a request whose time is not signed with the key, or is not about now; as Flower's link does."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        said = headers[TIMESTAMP_HEADER.encode()]
        age = (now() - datetime.fromisoformat(said.decode("ascii"))).total_seconds()
        right = verify_signature(bytes_to_public_key(key), said, signature)
    except (KeyError, ValueError, TypeError):
        raise Refused(401, "its signature cannot be read") from None
    if not right:
        raise Refused(401, "its signature is not of its key")
    if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        raise Refused(401, f"it was signed {age:.0f} s ago by its clock; clocks must agree within some minutes")
