"""Why is a message refused? One error with one of a few reasons, so that a run can count them."""

from fedloom.core.refused import Reason
from fedloom.errors import FedloomError


class Rejected(FedloomError):
    """A message that is not accepted; `reason` is for counting, `text` for reading."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        """Both."""
        return f"{self.reason}: {self.text}"
