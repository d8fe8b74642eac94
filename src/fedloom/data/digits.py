"""Handwritten digits, which come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import held_out


def digits() -> Dataset:
    """Load scikit-learn's digits; a fixed fifth of each class is for testing."""
    rows = _digits_rows()
    x = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = rows[:, -1].astype(np.int64)
    test = held_out(y)
    return Dataset("digits", x[~test], y[~test], x[test], y[test], None, None, classes=10, vocabulary=0)


def _digits_rows() -> NDArray[np.float64]:
    """Read 64 pixels and the label of each digit from the file, since importing scikit-learn takes two seconds."""
    spec = find_spec("sklearn")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (file := Path(place) / "datasets" / "data" / "digits.csv.gz").is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # for versions with the file elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
