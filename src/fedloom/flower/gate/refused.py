"""A request that a gate does not pass on."""

from __future__ import annotations


class Refused(Exception):
    """Not passed on: the status of the answer, and why, for the log and for the node."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why
