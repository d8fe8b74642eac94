"""The diabetes table of scikit-learn: one number to predict from ten."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import stream, whole

FILES = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
TESTED = 0.2  # share of the patients that is for testing


def diabetes(*, strata: int = 0) -> Dataset:
    """How far diabetes progresses within a year, from ten measurements of each of 442 patients.

    A fixed fifth of the patients is for testing. Inputs and targets have mean 0 and standard deviation 1 over the
    training patients, so an error of 1 is one standard deviation of the targets: 78 of the table's units. With
    `strata`, partitions that deal by class deal by so many equal parts of the training patients, from the smallest
    targets to the largest.
    """
    strata = whole("strata", strata, 0, 100)
    x, y = _rows()
    test = np.zeros(len(y), bool)
    test[stream(0, "held out").permutation(len(y))[: round(TESTED * len(y))]] = True
    x, y = (((part - part[~test].mean(0)) / part[~test].std(0)).astype(np.float32) for part in (x, y))
    ends = np.quantile(y[~test], np.arange(1, strata) / max(strata, 1))
    part = np.searchsorted(ends, y[~test], side="right") if strata else None
    return Dataset(
        "diabetes", x[~test], y[~test], x[test], y[test], None, None, classes=1, vocabulary=0, stratum_train=part
    )


def _rows() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read measurements [442, 10] and targets [442] from files, since importing scikit-learn takes two seconds."""
    spec = find_spec("sklearn")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        files = [Path(place) / "datasets" / "data" / name for name in FILES]
        if all(file.is_file() for file in files):
            return np.loadtxt(files[0]), np.loadtxt(files[1])
    from sklearn.datasets import load_diabetes  # for versions with the files elsewhere

    bunch = load_diabetes(scaled=False)
    return bunch.data, bunch.target
