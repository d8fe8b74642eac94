"""What a partition deals by, for goals with and without classes; names of clients and classes in the run folder."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from fedloom import BadExperiment, Experiment, from_clients, run
from fedloom.data.partition import PARTITIONS
from fedloom.data.prepare import from_arrays
from fedloom.goals import classes, numbers
from fedloom.methods import METHODS
from fedloom.runs.build import prepare
from fedloom.runs.inputs import Inputs, inputs_of

RNG = np.random.default_rng(5)
N = 60
X = RNG.normal(size=(N, 1, 6, 6)).astype(np.float32)
CLASSES, TARGET = np.arange(N) % 4, X.mean((1, 2, 3))
OWN = np.arange(N) % 5
TEST = {"x_test": X[:8], "client_test": OWN[:8]}
SMALL = {"clients": 4, "rounds": 2, "per_round": 2, "training": {"epochs": 1}}


def arrays(goal: str, **more):
    """Examples with classes or numbers as targets."""
    y = CLASSES if goal == "classes" else TARGET
    return {"x_train": X, "y_train": y, "y_test": y[:8], "client_train": OWN, **TEST, **more}


def dealt(goal: str, partition, **more) -> Inputs:
    """The inputs of a run."""
    data = from_arrays("mine", arrays(goal, **more), goal=classes() if goal == "classes" else numbers())
    return inputs_of(Experiment(**SMALL, goal=goal, partition=partition), data=data)


NEUTRAL = ("iid", "own", "lognormal")
LABELLED = [name for name in PARTITIONS if name not in NEUTRAL]


def settings(name: str):
    """Settings that four classes and four clients can do with."""
    return {
        "name": name,
        "settings": {"rare": [0], "n": 2} if name == "rare-classes" else {"n": 2} if name == "n-classes" else {},
    }


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_deals_classes_and_strata(name):
    assert sum(dealt("classes", settings(name)).shards.sizes) > 0
    inputs = dealt("numbers", settings(name), stratum_train=CLASSES)
    assert inputs.shards.sizes == dealt("classes", settings(name)).shards.sizes
    assert inputs.setting.fleet.labels.shape == (4, 4)
    assert not inputs.setting.fleet.by_class


@pytest.mark.parametrize("name", NEUTRAL)
def test_partitions_that_need_no_classes(name):
    inputs = dealt("numbers", name)
    assert inputs.setting.fleet.labels.tolist() == [[size] for size in inputs.shards.sizes]


@pytest.mark.parametrize("partition", [*map(settings, LABELLED), {"name": "lognormal", "settings": {"alpha": 0.3}}])
def test_partitions_by_class_refuse_goals_without(partition):
    words = f"partition '{partition['name']}' deals examples by their class, and goal 'numbers' has none"
    with pytest.raises(BadExperiment, match=words):
        dealt("numbers", partition)


def test_auto_is_dirichlet_with_classes_and_iid_without():
    assert dealt("classes", "auto").shards.sizes == dealt("classes", "dirichlet").shards.sizes
    assert torch.equal(dealt("numbers", "auto").shards.examples, dealt("numbers", "iid").shards.examples)
    assert Experiment(partition={"name": "auto", "settings": {"alpha": 0.3}}).partition.name == "dirichlet"


def test_auto_keeps_clients_that_the_data_come_divided_among():
    data = from_clients([(X[:10], CLASSES[:10]), (X[10:], CLASSES[10:])], (X[:5], CLASSES[:5]))
    inputs = inputs_of(Experiment(clients=100), data=data)
    assert inputs.shards.sizes == [10, 50]
    assert inputs.dealt_by == "own"
    assert inputs_of(Experiment(clients=3, partition="iid"), data=data).shards.sizes == [20, 20, 20]


def test_names_of_clients_and_classes_are_in_the_run_folder(tmp_path):
    who, kind = np.array(["cem", "anna", "ben"])[OWN % 3], np.array(["dog", "cat", "ant", "bee"])[CLASSES]
    data = from_arrays("mine", arrays("classes", y_train=kind, y_test=kind[:8], client_train=who, client_test=who[:8]))
    run(Experiment(**SMALL | {"clients": 2}, partition="own", seed=2), data=data, out=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "experiment.json").read_text())
    taken = inputs_of(Experiment(**SMALL | {"clients": 2}, partition="own", seed=2), data=data)
    whose = [sorted({who[at] for at in rows.tolist()}) for rows in taken.shards.examples.split(taken.shards.sizes)]
    assert [[name] for name in about["client_names"]] == whose
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    assert [row["name"] for row in rows] == [about["client_names"][row["client"]] for row in rows]
    assert about["class_names"] == ["ant", "bee", "cat", "dog"]
    assert about["dealt_by"] == "own"
    run(Experiment(**SMALL, partition="iid"), data=data, out=tmp_path / "dealt")
    assert json.loads((tmp_path / "dealt" / "experiment.json").read_text())["client_names"] is None
    assert "name" not in pq.read_table(tmp_path / "dealt" / "clients.parquet").column_names


# ---- methods that look at classes


def refuses(method, goal: str) -> str | None:
    """Why a method cannot be prepared for a goal; None: it can."""
    data = from_arrays("mine", arrays(goal), goal=classes() if goal == "classes" else numbers())
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4 if goal == "classes" else 1))
    try:
        prepare(
            Experiment(
                **{**SMALL, "per_round": None, "training": {"epochs": 2}},
                method=method,
                goal=goal,
                split=(0.6, 0.2, 0.2),
            ),
            data=data,
            model=net,
        )
    except BadExperiment as why:
        return str(why)
    return None


FEW = {
    "fedbuff": {"buffer": 2},
    "fedat": {"tiers": 2},
    "lg-fedavg": {"shared": "last:1"},
}  # for four clients, two layers


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_goals_without_classes_or_say_what_to_set(name):
    method = {"name": name, "settings": FEW.get(name, {})}
    if name == "hetlora":
        assert "the network has none" in (refuses(method, "classes") or "")  # it needs adapters, whatever the goal
        return
    assert refuses(method, "classes") is None
    why = refuses(method, "numbers")
    if name == "heterofl":
        assert why is not None
        assert "set method.mask_labels=false" in why
        assert refuses({"name": name, "settings": {"mask_labels": False}}, "numbers") is None
    else:
        assert why is None


# ---- files of the user's own

MAPPED = """
import sys
import numpy as np
from fedloom import Experiment, run
where = sys.argv[1]
x = np.load(f"{where}/x.npy", mmap_mode="r") if len(sys.argv) > 2 else np.load(f"{where}/x.npy")
y = np.load(f"{where}/y.npy")
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) // 1024
experiment = Experiment(clients=20, per_round=2, rounds=1, partition="iid", model="linear", training={"epochs": 1})
few = {"x_train": x[:400], "y_train": y[:400], "x_test": x[:10], "y_test": y[:10]}
run(experiment, data=few)
before = anonymous()
data = {"x_train": x, "y_train": y, "x_test": x[:100], "y_test": y[:100]}
result = run(experiment, data=data, out=f"{where}/{len(sys.argv)}")
print(anonymous() - before, result.score, sum(float(p.double().abs().sum()) for p in result.model.parameters()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the kernel's account of a process's memory")
def test_a_memory_mapped_array_stays_in_its_file(tmp_path):
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (100_000, 1024))  # 391 MiB
    for at in range(0, len(x), 10_000):
        x[at : at + 10_000] = rng.random((10_000, 1024), np.float32)
    np.save(tmp_path / "y.npy", rng.integers(0, 10, len(x)))
    x.flush()
    found = [
        subprocess.run([sys.executable, "-c", MAPPED, str(tmp_path), *more], capture_output=True, text=True, check=True)
        for more in (["mapped"], [])
    ]
    (grown, *mapped), (_, *loaded) = (one.stdout.split() for one in found)
    assert int(grown) < 64
    assert mapped == loaded
