"""Why is a message refused? One error with one of a few reasons, so that a run can count them."""

from typing import Literal

from fedloom.errors import FedloomError

Reason = Literal[
    "size",  # longer than the receiver takes, or too short to be a message
    "header",  # not written as the receiver would write it
    "checksum",  # damaged on the way
    "version",  # written by another version of the format
    "run",  # of another run
    "round",  # of another round or another attempt
    "client",  # of another client, or of one that was not asked
    "base",  # about another model
    "dtype",  # numbers of a kind that was not agreed
    "shape",  # more or fewer numbers than agreed, or than the mask implies
    "mask",  # not the mask that was asked for, or not a mask
    "share",  # more of the model than was allowed
    "value",  # a number that is not finite
    "report",  # a reported number that cannot be
    "duplicate",  # a second reply of a client whose first was accepted
    "late",  # after the round was closed
]


class Rejected(FedloomError):
    """A message that is not accepted; `reason` is for counting, `text` for reading."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        """Both."""
        return f"{self.reason}: {self.text}"
