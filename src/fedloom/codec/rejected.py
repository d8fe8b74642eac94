"""`Rejected`, the error of a refused message, with a reason to count."""

from fedloom.core.refused import Reason
from fedloom.errors import FedloomError


class Rejected(FedloomError):
    """A message is not accepted; `reason` is for counting, `text` for reading."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        """Reason and text."""
        return f"{self.reason}: {self.text}"
