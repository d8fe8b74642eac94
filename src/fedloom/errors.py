"""The exceptions that fedloom raises, as one tree.

FedloomError
├── BadExperiment     an unknown name, a wrong type, an impossible value (exit code 2)
├── BadData           a file or array that cannot be used, named with file, array and row (exit code 2)
├── BadModel          a network that fedloom cannot run, named with its layer (exit code 2)
├── Rejected          a message that is not accepted, with a reason to count; a round goes on (codec/rejected.py)
└── RunStopped        a run that could not go on (exit code 3)
"""

from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr
from typing import Any


class FedloomError(Exception):
    """Any error of fedloom; its text says what was expected, what came and what to do."""


class BadExperiment(FedloomError, ValueError):
    """An experiment that cannot be run as it is written."""


class BadData(FedloomError, ValueError):
    """Data that cannot be used."""


class BadModel(FedloomError, ValueError):
    """A network that cannot be used."""


class RunStopped(FedloomError, RuntimeError):
    """A run that had to stop; saved rounds are not lost."""


ELSEWHERE = {  # what other libraries call a setting
    "lr": "rate",
    "learning_rate": "rate",
    "optimizer": "optimiser",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "local_steps": "steps",
    "bs": "batch",
    "batch_size": "batch",
    "wd": "weight_decay",
    "num_clients": "clients",
    "clients_per_round": "per_round",
    "num_rounds": "rounds",
    "dataset": "data",
    "algorithm": "method",
}


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """The error text for an unknown name: the nearest known name, then all of them."""
    names = sorted(names)
    lowered = {known.lower(): known for known in names}
    near = [word for word in (ELSEWHERE.get(name.lower()),) if word in lowered]
    near = near or get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    hint = f"; did you mean '{lowered[near[0]]}'?" if near else "."
    return f"unknown {kind} '{name}'{hint} Known: {', '.join(names)}"


class _Short(Repr):
    """Values for error texts, cut to a line; arrays by their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120

    def repr_ndarray(self, value: Any, level: int) -> str:
        """A NumPy array."""
        return f"<array {list(value.shape)} {value.dtype}>"

    repr_Tensor = repr_ndarray


short = _Short().repr
