"""What the log says of nodes and their replies; programs find the same in `log.jsonl`."""

from __future__ import annotations

import logging

from fedloom.runs.log_files import facts

log = logging.getLogger("fedloom")


def tell_refused(client: int, number: int, reason: str, node: int | None, host: str) -> None:
    """A reply was refused; `host` is what its node is called."""
    text = "a reply of client %d in round %d was refused: %s; it is from %s"
    extra = facts("refused", client=client, round=number, reason=reason, node=node)
    log.warning(text, client, number, reason, host, extra=extra)


def tell_untrained(client: int, number: int, why: str) -> None:
    """A node says why a client did not train."""
    text, extra = "client %d did not train in round %d: %s", facts("untrained", client=client, round=number, why=why)
    log.warning(text, client, number, why, extra=extra)


def tell_failed(node: int, host: str, number: int, why: str) -> None:
    """A node answered with an error."""
    extra = facts("failed", node=node, round=number, why=why)
    log.warning("%s failed in round %d: %s", host, number, why, extra=extra)


def tell_late(node: int, host: str, number: int, waited: float, rounds: int) -> None:
    """A node did not answer in time, and sits out some rounds."""
    out = f", and sits out {rounds} round(s)" if rounds else ""
    extra = facts("late", node=node, round=number, seconds=round(waited, 1), sits_out=rounds)
    log.warning("%s did not answer round %d within %.1f s%s", host, number, waited, out, extra=extra)
