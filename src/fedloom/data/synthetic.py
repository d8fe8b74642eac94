"""Synthetic(alpha, beta): data of clients that differ by two parameters (FedProx, Sec. 5.1)."""

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import number, stream, whole
from fedloom.errors import BadExperiment

FEATURES, CLASSES = 60, 10
LEAST = 50  # fewest examples of a client
MOST = 1_000_000  # most clients: their data are in memory


def synthetic(alpha: float = 0.0, beta: float = 0.0, clients: int = 30, seed: int = 0, iid: bool = False) -> Dataset:
    """Each client's labels come from its own linear model; alpha sets how much models differ, beta how much inputs do.

    alpha and beta are standard deviations, as in the authors' code (the paper's notation suggests variances; they
    agree at 0 and 1). As published, alpha shifts all weights of a client equally, and so the scores of all classes: it
    changes no label. With iid, all clients share one model and one centre. A fifth of each client's examples is for
    testing.
    """
    alpha, beta = number("alpha", alpha, 0, 1e3), number("beta", beta, 0, 1e3)
    whole("clients", clients, 1, MOST)
    if not isinstance(iid, bool):
        raise BadExperiment(f"iid is {iid!r}; expected true or false")
    spread = np.arange(1, FEATURES + 1) ** -0.6  # variances j^-1.2
    shared = stream(seed, "synthetic shared")
    weight, bias = shared.standard_normal((FEATURES, CLASSES)), shared.standard_normal(CLASSES)
    centre = np.zeros(FEATURES)
    xs, ys, tests = [], [], []
    for client in range(clients):
        rng = stream(seed, f"synthetic {client}")  # a client does not depend on how many there are
        size = LEAST + int(rng.lognormal(4, 2))
        if not iid:
            model, middle = alpha * rng.standard_normal(), beta * rng.standard_normal()
            weight = model + rng.standard_normal((FEATURES, CLASSES))
            bias = model + rng.standard_normal(CLASSES)
            centre = middle + rng.standard_normal(FEATURES)
        x = centre + spread * rng.standard_normal((size, FEATURES))
        xs.append(x.astype(np.float32))
        ys.append((x @ weight + bias).argmax(axis=1))
        tests.append(rng.permutation(size) < round(0.2 * size))
    x_all, y_all, test = np.concatenate(xs), np.concatenate(ys).astype(np.int64), np.concatenate(tests)
    client_all = np.repeat(np.arange(clients), [len(y) for y in ys])
    parts = (x_all[~test], y_all[~test], x_all[test], y_all[test], client_all[~test], client_all[test])
    return Dataset("synthetic", *parts, classes=CLASSES, vocabulary=0)
