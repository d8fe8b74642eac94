"""`as_dataset`: whatever a user gives as data, as a dataset, or an error that says how to build one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.data.dataset import NEEDED, OPTIONAL, Dataset
from fedloom.data.from_columns import columns_of, from_columns
from fedloom.data.from_hub import from_hub, is_hub
from fedloom.data.from_torch import from_clients, from_torch, is_torch, pair_of
from fedloom.data.prepare import Part, arranged, assembled, renewed
from fedloom.errors import BadData, BadExperiment

HOW = (
    "expected a fedloom.Dataset; arrays, as {'x_train': ..., 'y_train': ..., 'x_test': ..., 'y_test': ...} or (x, y); "
    "a torch Dataset or DataLoader, or a pair (train, test) of them; a list with one of these per client; a "
    "datasets.Dataset of Hugging Face; or a pandas DataFrame. fedloom.from_torch, from_clients, from_hub, from_frame "
    "and from_images take more settings"
)


def as_dataset(data: Any, tell: Callable[[str], None] | None = None) -> Dataset:
    """A dataset of anything that can be one; targets are checked later, since they depend on the goal."""
    if isinstance(data, Dataset):
        return renewed(data, f"data '{data.name}'")
    if is_hub(data):
        return from_hub(data)
    if is_torch(data):
        return from_torch(data, tell=tell)
    if isinstance(data, Mapping):
        return _of_mapping(data, tell)
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        return from_columns("table", columns_of(data), None, "data 'table'")
    if isinstance(data, tuple) and len(data) == 2:
        if all(is_torch(one) for one in data):
            return from_torch(*data, tell=tell)
        if all(hasattr(one, "shape") for one in data):
            return assembled("arrays", Part(*pair_of(data, "data")), None)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | tuple) and data:
        return from_clients(data, tell=tell)
    if isinstance(data, str | Path):
        raise BadExperiment(
            f"data is {str(data)!r} ({type(data).__name__}); expected a Dataset or what becomes one; names and paths "
            f"go into the experiment: Experiment(data={str(data)!r})."
        )
    kind = type(data)
    raise BadExperiment(f"data is of type {kind.__module__}.{kind.__qualname__}; {HOW}.")


def _of_mapping(data: Mapping[str, Any], tell: Callable[[str], None] | None) -> Dataset:
    """A dictionary of arrays, or of clients' data by their names."""
    keys = list(data)
    if "x_train" in data:
        strange = [key for key in keys if key not in (*NEEDED, *OPTIONAL)]
        if strange:
            raise BadData(
                f"data have arrays {', '.join(map(str, strange))}; expected {', '.join((*NEEDED, *OPTIONAL))}."
            )
        if "x_test" not in data:
            return assembled(
                "arrays", Part(*(data.get(f"{key}_train") for key in ("x", "y", "client", "stratum"))), None
            )
        return arranged("arrays", data, "data 'arrays'", needed=("x_train", "x_test"))
    if {"x", "y"} <= set(keys) <= {"x", "y", "client", "stratum"}:
        return assembled("arrays", Part(*(data.get(key) for key in ("x", "y", "client", "stratum"))), None)
    if data and all(is_torch(one) or isinstance(one, tuple | Mapping | Dataset) for one in data.values()):
        return from_clients(data, tell=tell)
    shown = ", ".join(map(str, keys[:8])) + (" ..." if len(keys) > 8 else "")
    raise BadExperiment(f"data is a {type(data).__name__} with {shown or 'nothing in it'}; {HOW}.")
