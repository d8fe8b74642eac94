"""Whatever is wrong with an experiment is said by name before anything is written; whatever is right survives JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fedloom.core.optimiser import Adam, Sgd
from fedloom.core.work import Work
from fedloom.data.partition import PARTITIONS
from fedloom.errors import BadData, BadExperiment, BadModel
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.methods.feddyn import feddyn
from fedloom.methods.fedprox import fedprox
from fedloom.models import MODELS
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.runs.set_values import with_settings
from fedloom.studies.forms import takes

SMALL: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 1, "training": {"epochs": 1}}


def near(name: str) -> str:
    """How an error names what was probably meant."""
    return f"did you mean '{name}'?"


def of(section: str, name: str, /, **settings: Any) -> dict[str, Any]:
    """A named choice with settings."""
    return {section: {"name": name, "settings": settings}}


def train(**settings: Any) -> dict[str, Any]:
    """Training settings."""
    return {"training": settings}


# what is changed, and the words its refusal must hold: the argument, and the nearest name where it is a name
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # keys that do not exist, at every level
    "key": ({"round": 5}, ("'round'", near("rounds"))),
    "key of old": ({"client": 5}, ("'client'", near("clients"))),
    "key in the plural": ({"methods": "fedavg"}, ("'methods'", near("method"))),
    "key cut short": ({"evaluate": 5}, ("'evaluate'", near("evaluate_every"))),
    "key unlike any": ({"zzz": 1}, ("'zzz'", "Known:", "partition")),
    "key in training": (train(epoch=1), ("'epoch'", near("epochs"))),
    "key in training misspelt": (train(momentun=0.9), ("'momentun'", near("momentum"))),
    "key in method": ({"method": {"name": "fedavg", "setings": {}}}, ("'setings'", near("settings"))),
    "key in data": ({"data": {"nam": "digits"}}, ("'nam'", near("name"))),
    "key in partition": ({"partition": {"name": "dirichlet", "alpha": 1.0}}, ("'alpha'", "Known: name, settings")),
    "key in model": ({"model": {"name": "mlp", "widths": [8]}}, ("'widths'", "Known: name, settings")),
    # names that do not exist
    "method": ({"method": "fedavgg"}, ("method", "'fedavgg'", near("fedavg"))),
    "method in capitals": ({"method": "FedProx"}, ("method", "'FedProx'", near("fedprox"))),
    "method unlike any": ({"method": "zzz"}, ("method", "'zzz'", "Known:", "scaffold")),
    "data": ({"data": "digit"}, ("data", "'digit'", near("digits"))),
    "data in capitals": ({"data": "MNIST"}, ("data", "'MNIST'", near("mnist"))),
    "partition": ({"partition": "dirichlt"}, ("partition", "'dirichlt'", near("dirichlet"))),
    "model": ({"model": "mpl"}, ("model", "'mpl'", near("mlp"))),
    "engine": ({"engine": "lokal"}, ("engine", "'lokal'", "'local'")),
    "execution": ({"execution": "slised"}, ("execution", "'slised'", "'sliced'")),
    "optimiser": (train(optimiser="sdg"), ("optimiser", "'sdg'", "'sgd'")),
    "device": ({"device": "gpu"}, ("device", "'gpu'", "cuda")),
    "device without data": ({"device": "meta"}, ("device", "'meta'", "cpu")),
    # settings that a thing does not take
    "setting of fedavg": (of("method", "fedavg", mu=0.1), ("fedavg", "'mu'", "no settings")),
    "setting of fedprox": (of("method", "fedprox", nu=0.1), ("fedprox", "'nu'", near("mu"))),
    "setting of scaffold": (of("method", "scaffold", alpha=0.1), ("scaffold", "'alpha'")),
    "setting of iid": (of("partition", "iid", alpha=0.1), ("iid", "'alpha'")),
    "setting of dirichlet": (of("partition", "dirichlet", alfa=0.1), ("dirichlet", "'alfa'", near("alpha"))),
    "setting of shards": (of("partition", "shards", per_cliemt=2), ("shards", "'per_cliemt'", near("per_client"))),
    "setting of mlp": (of("model", "mlp", width=8), ("mlp", "'width'", near("widths"))),
    "setting of linear": (of("model", "linear", width=8), ("linear", "'width'", "no settings")),
    "setting of cnn1": (of("model", "cnn1", width=8), ("cnn1", "'width'", "no settings")),
    "fact of the data": (of("model", "mlp", classes=3), ("mlp", "'classes'")),
    "setting of digits": (of("data", "digits", alpha=1.0), ("digits", "'alpha'")),
    "setting of digits, name": (of("data", "digits", name="mnist"), ("digits", "'name'")),
    "setting of synthetic": (of("data", "synthetic", betta=1.0), ("synthetic", "'betta'", near("beta"))),
    "momentum of adam": (train(optimiser="adam", momentum=0.9), ("adam", "'momentum'")),
    # wrong types
    "clients word": ({"clients": "many"}, ("clients", "'many'", "integer")),
    "rounds broken": ({"rounds": 2.5}, ("rounds", "2.5", "integer")),
    "rounds none": ({"rounds": None}, ("rounds", "None", "integer")),
    "seed word": ({"seed": "x"}, ("seed", "'x'", "integer")),
    "per_round word": ({"per_round": "all"}, ("per_round", "'all'", "integer")),
    "chunk word": ({"chunk": "big"}, ("chunk", "'big'", "integer")),
    "evaluate_every word": ({"evaluate_every": "often"}, ("evaluate_every", "'often'", "integer")),
    "split word": ({"split": "abc"}, ("split", "'abc'")),
    "split of two": ({"split": (0.5, 0.5)}, ("split", "(0.5, 0.5)")),
    "split of four": ({"split": (0.7, 0.1, 0.1, 0.1)}, ("split", "(0.7, 0.1, 0.1, 0.1)")),
    "training word": ({"training": "fast"}, ("training", "'fast'")),
    "rate word": (train(rate="fast"), ("training.rate", "'fast'", "number")),
    "fresh word": (train(fresh="perhaps"), ("training.fresh", "'perhaps'", "boolean")),
    "epochs broken": (train(epochs=1.5), ("training.epochs", "1.5", "integer")),
    "method number": ({"method": 5}, ("method", "5")),
    "method none": ({"method": None}, ("method", "None")),
    "method without name": ({"method": {"settings": {}}}, ("method.name", "required")),
    "settings list": ({"method": {"name": "fedprox", "settings": [1]}}, ("method.settings", "[1]")),
    "mu word": (of("method", "fedprox", mu="much"), ("'mu'", "fedprox", "'much'", "a number")),
    "alpha word": (of("partition", "dirichlet", alpha="small"), ("alpha", "'small'", "number")),
    "widths word": (of("model", "mlp", widths="wide"), ("widths", "'wide'")),
    "device number": ({"device": 5}, ("device", "5", "string")),
    # impossible values
    "no clients": ({"clients": 0}, ("clients", "0", "greater than or equal to 1")),
    "fewer than no clients": ({"clients": -3}, ("clients", "-3")),
    "more clients than examples": ({"clients": 1439}, ("clients", "1439", "1438")),
    "no rounds": ({"rounds": 0}, ("rounds", "0")),
    "nobody a round": ({"per_round": 0}, ("per_round", "0")),
    "negative seed": ({"seed": -1}, ("seed", "-1")),
    "huge seed": ({"seed": 2**63}, ("seed", str(2**63))),
    "never evaluated": ({"evaluate_every": 0}, ("evaluate_every", "0")),
    "empty chunk": ({"chunk": 0}, ("chunk", "0")),
    "split below 1": ({"split": (0.7, 0.1, 0.1)}, ("split", "0.7", "add up to 1")),
    "split above 1": ({"split": (1.4, 0.0, 0.0)}, ("split", "1.4", "add up to 1")),
    "split negative": ({"split": (1.2, -0.2, 0.0)}, ("split", "-0.2")),
    "split without training": ({"split": (0.0, 0.0, 1.0)}, ("split", "training")),
    "split not a number": ({"split": (nan, 0.0, 1.0)}, ("split", "nan")),
    "rate 0": (train(rate=0), ("rate", "0", "above 0")),
    "rate negative": (train(rate=-0.1), ("rate", "-0.1", "above 0")),
    "rate not a number": (train(rate=nan), ("rate", "nan")),
    "rate infinite": (train(rate=inf), ("rate", "inf")),
    "decay 0": (train(decay=0), ("decay", "0")),
    "decay growing": (train(decay=1.5), ("decay", "1.5")),
    "weight_decay negative": (train(weight_decay=-1), ("weight_decay", "-1")),
    "weight_decay not a number": (train(weight_decay=nan), ("weight_decay", "nan")),
    "clip 0": (train(clip=0), ("clip", "0")),
    "momentum 1": (train(momentum=1.0), ("momentum", "1.0", "[0, 1)")),
    "momentum negative": (train(momentum=-0.1), ("momentum", "-0.1")),
    "no epochs": (train(epochs=0), ("epochs", "0", "at least 1")),
    "no steps": (train(steps=0), ("steps", "0", "at least 1")),
    "batch negative": (train(batch=-1), ("batch", "-1")),
    "mu negative": (of("method", "fedprox", mu=-1), ("mu", "-1")),
    "mu not a number": (of("method", "fedprox", mu=nan), ("mu", "nan")),
    "mu infinite": (of("method", "fedprox", mu=inf), ("mu", "inf")),
    "feddyn alpha negative": (of("method", "feddyn", alpha=-1), ("alpha", "-1")),
    "feddyn alpha not a number": (of("method", "feddyn", alpha=nan), ("alpha", "nan")),
    "feddc alpha negative": (of("method", "feddc", alpha=-1), ("alpha", "-1")),
    "dirichlet alpha 0": (of("partition", "dirichlet", alpha=0), ("alpha", "0", "above 0")),
    "dirichlet alpha not a number": (of("partition", "dirichlet", alpha=nan), ("alpha", "nan")),
    "min_size above a fair share": (of("partition", "dirichlet", min_size=360), ("min_size", "360", "359")),
    "no classes": (of("partition", "n-classes", n=0), ("n is 0", "1 to 10")),
    "more classes than there are": (of("partition", "n-classes", n=11), ("n is 11", "1 to 10")),
    "no shards": (of("partition", "shards", per_client=0), ("per_client", "0")),
    "more groups than clients": (of("partition", "groups", groups=5), ("groups", "5", "4")),
    "sigma negative": (of("partition", "lognormal", sigma=-1), ("sigma", "-1")),
    "unknown rare class": (of("partition", "rare-classes", rare=[11]), ("rare", "11")),
    "width 0": (of("model", "2nn", width=0), ("width", "0", "1 or more")),
    "widths negative": (of("model", "mlp", widths=[8, -1]), ("widths", "-1", "1 or more")),
    "dropout 1": (of("model", "ra-mlp", dropout=1.0), ("dropout", "1.0")),
    "three hidden layers": (of("model", "ra-mlp", hidden=3), ("hidden", "3")),
    "synthetic for nobody": (of("data", "synthetic", clients=0), ("clients", "0")),
    # things that do not go together, and files that are not there
    "own clients of data without": ({"partition": "own"}, ("own", "client_train")),
    "images too small": ({"model": "cnn1"}, ("cnn1", "16x16", "1x8x8", "mlp")),
    "words wanted": ({"model": "fasttext"}, ("fasttext", "1x8x8", "mlp")),
    "signals wanted": ({"model": "har-cnn"}, ("har-cnn", "1x8x8", "mlp")),
    "no such file of data": ({"data": "nowhere.npz"}, ("nowhere.npz", "x_train")),
    "no such folder of data": ({"data": "no/where"}, ("no/where", ".npz")),
    "data not on this machine": ({"data": "mnist"}, ("mnist", "mnist.npz", "x_train")),
    "no such file of a method": ({"method": "nowhere.py:mine"}, ("method", "nowhere.py", "file.py:function")),
    "no such file of a model": ({"model": "nowhere.py:Mine"}, ("model", "nowhere.py", "file.py:function")),
}

OWN = '''
"""A user's own method and network, some of them wrong."""
from dataclasses import dataclass
import torch
from torch import nn
from fedloom import Cohort, Method
from fedloom.core.part import Select

@dataclass(frozen=True)
class Everybody(Select):
    "The whole fleet."
    def __call__(self, memory, setting, chance):
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

def mine(mu: float = 0.1) -> Method:
    return Method()

def needy(mu: float) -> Method:
    return Method()

def odd():
    return 3

def broken():
    raise RuntimeError("out of luck")

def own_cohort() -> Method:
    return Method(select=Everybody())

def net(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
'''

# the same for a user's own file: what is changed, and the words
REFUSED_OF_FILES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "method misspelt": ({"method": "own.py:mne"}, ("own.py", "'mne'", near("mine"))),
    "method's setting misspelt": (of("method", "own.py:mine", nu=1.0), ("own.py:mine", "'nu'", near("mu"))),
    "method's setting a word": (of("method", "own.py:mine", mu="much"), ("'mu'", "'much'", "a number")),
    "method's setting missing": ({"method": "own.py:needy"}, ("own.py:needy", "'mu'")),
    "method of another kind": ({"method": "own.py:odd"}, ("own.py:odd", "int", "Method")),
    "method that fails": ({"method": "own.py:broken"}, ("own.py:broken", "out of luck")),
    "method with its own cohort": ({"method": "own.py:own_cohort"}, ("per_round", "own.py:own_cohort")),
    "method in broken Python": ({"method": "torn.py:mine"}, ("torn.py", "line 1")),
    "model misspelt": ({"model": "own.py:nett"}, ("own.py", "'nett'", near("net"))),
    "model's setting misspelt": (of("model", "own.py:net", widht=8), ("own.py:net", "'widht'", near("width"))),
    "model's setting a word": (of("model", "own.py:net", width="wide"), ("'width'", "'wide'", "a whole number")),
    "model of another kind": ({"model": "own.py:odd"}, ("own.py:odd", "int", "nn.Module")),
    "model that fails": ({"model": "own.py:broken"}, ("own.py:broken", "out of luck")),
    "model in broken Python": ({"model": "torn.py:net"}, ("torn.py", "line 1")),
}


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    """An empty place: no data of the machine, no downloader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)


def refuse(values: dict[str, Any], words: tuple[str, ...], tmp_path: Any) -> None:
    """The experiment is refused in these words, and nothing is written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((BadExperiment, BadData, BadModel)) as refused:
        run(Experiment(**{**SMALL, **values}), out=tmp_path / "run")
    for word in words:
        assert word in str(refused.value)
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(values, words, tmp_path):
    refuse(values, words, tmp_path)


@pytest.mark.parametrize(("values", "words"), REFUSED_OF_FILES.values(), ids=REFUSED_OF_FILES.keys())
def test_own_file_refused(values, words, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "torn.py").write_text("def mine(:\n")
    refuse(values, words, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_absent_gpu_refused(tmp_path):
    refuse({"device": "cuda"}, ("device", "'cuda'", "cpu"), tmp_path)


def test_several_faults_are_all_named():
    with pytest.raises(BadExperiment) as refused:
        Experiment(clients=0, rounds="many", training={"rate": "fast"})
    for word in ("clients", "rounds", "training.rate"):
        assert word in str(refused.value)


def test_an_experiment_stands_still():
    experiment = Experiment()
    with pytest.raises(ValueError, match="frozen"):
        experiment.rounds = 3


# ---- round trip

shares = st.floats(0, 1, exclude_max=True)
positive = st.floats(1e-6, 1e3)
STRICT = {"apfl", "fednova"}  # they refuse some settings of training


@st.composite
def experiments(draw: st.DrawFn) -> dict[str, Any]:
    """The values of an experiment that must be accepted."""
    method = draw(st.sampled_from(sorted(METHODS.keys() - STRICT)))
    known = {"fedprox": "mu", "feddyn": "alpha", "feddc": "alpha"}
    settings = {known[method]: draw(shares)} if method in known else {}
    tested = draw(shares)
    optimiser = draw(st.sampled_from(["sgd", "adam"]))
    return {
        "method": draw(st.sampled_from([method, {"name": method, "settings": settings}])),
        "data": draw(st.sampled_from(["digits", "synthetic", "mine.npz", "some/folder"])),
        "partition": draw(st.sampled_from(sorted(PARTITIONS))),
        "model": draw(st.sampled_from(sorted(MODELS))),
        "training": draw(
            st.fixed_dictionaries(
                {"optimiser": st.just(optimiser)},
                optional={"rate": positive, "decay": st.floats(0.1, 1), "clip": positive, "fresh": st.booleans()}
                | {"epochs": st.integers(1, 9), "steps": st.integers(1, 9), "batch": st.integers(0, 99)}
                | ({"momentum": shares} if optimiser == "sgd" else {}),
            )
        ),
        "clients": draw(st.integers(1, 1000)),
        "per_round": draw(st.none() | st.integers(1, 1000)) if takes(method, "per_round") else None,
        "rounds": draw(st.integers(1, 1000)),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "split": (1 - tested, 0.0, tested),
        "chunk": draw(st.none() | st.integers(1, 100)),
    }


@given(experiments())
def test_json_and_back(values):
    experiment = Experiment(**values)
    assert Experiment(**json.loads(experiment.model_dump_json())) == experiment
    assert Experiment(**json.loads(json.dumps(experiment.model_dump(mode="json")))) == experiment


def test_a_name_is_a_choice_without_settings():
    assert Experiment(method="fedprox") == Experiment(method={"name": "fedprox", "settings": {}})
    assert Experiment(method="fedprox") != Experiment(method={"name": "fedprox", "settings": {"mu": 0.1}})


# ---- the method that is meant


def test_defaults_are_the_methods_own():
    assert Experiment().build_method() == Method()
    assert Experiment(method="feddyn").build_method() == feddyn()


def test_every_training_setting_has_its_place():
    sgd = {"rate": 0.2, "decay": 0.9, "momentum": 0.5, "weight_decay": 0.01, "clip": 2.0, "fresh": False}
    work = {"epochs": 3, "steps": 7, "batch": 4}
    method = Experiment(method=of("method", "fedprox", mu=0.5)["method"], training=sgd | work, per_round=3)
    assert method.build_method() == replace(
        fedprox(0.5), optimiser=Sgd(**sgd), work=Work(**work), select=Uniform(count=3)
    )
    assert Experiment(training={"optimiser": "adam", "rate": 0.01}).build_method().optimiser == Adam(rate=0.01)
    assert Experiment(training={"optimiser": "adam"}).build_method().optimiser == Adam()


# ---- `--set`

PLACED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "training": ({}, {"rate": 0.05, "epochs": 2}, {"training": {"rate": 0.05, "epochs": 2}}),
    "in full": ({}, {"training.batch": 5}, {"training": {"batch": 5}}),
    "method": ({"method": "fedprox"}, {"mu": 0.1}, of("method", "fedprox", mu=0.1)),
    "method in full": ({"method": "feddyn"}, {"method.alpha": 0.1}, of("method", "feddyn", alpha=0.1)),
    "partition": ({"method": "fedprox"}, {"alpha": 0.3}, of("partition", "dirichlet", alpha=0.3)),
    "partition in full": ({"method": "feddyn"}, {"partition.alpha": 0.3}, of("partition", "dirichlet", alpha=0.3)),
    "model": ({"model": "2nn"}, {"width": 9}, of("model", "2nn", width=9)),
    "data in full": ({"data": "synthetic"}, {"data.beta": 1}, of("data", "synthetic", beta=1)),
    "data": ({"data": "synthetic"}, {"beta": 1}, of("data", "synthetic", beta=1)),
    "the experiment": ({}, {"per_round": 3, "split": [0.7, 0, 0.3]}, {"per_round": 3, "split": [0.7, 0, 0.3]}),
    "over what was given": ({"rounds": 9}, {"rounds": 2}, {"rounds": 2}),
    "beside what was given": (
        {"training": {"rate": 1.0}, **of("partition", "dirichlet", min_size=0)},
        {"epochs": 2, "partition.alpha": 1},
        {"training": {"rate": 1.0, "epochs": 2}, **of("partition", "dirichlet", min_size=0, alpha=1)},
    ),
}


@pytest.mark.parametrize(("values", "settings", "expected"), PLACED.values(), ids=PLACED.keys())
def test_settings_go_where_they_belong(values, settings, expected):
    given_before = json.dumps(values)
    placed = with_settings(values, settings)
    assert json.dumps(values) == given_before
    assert Experiment(**placed) == Experiment(**{**values, **expected})


MISPLACED: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "ambiguous": ({"method": "feddyn"}, {"alpha": 1}, ("method.alpha or partition.alpha", "write which")),
    "ambiguous with data": ({"data": "synthetic"}, {"alpha": 1}, ("data.alpha", "partition.alpha", "write which")),
    "misspelt": ({}, {"rat": 1}, ("'rat'", near("rate"), "training.rate")),
    "of another method": ({"method": "fedprox"}, {"lambda": 1}, ("'lambda'", "Known:", "method.mu")),
    "misspelt section": ({}, {"methd.mu": 1}, ("section", "'methd'", near("method"))),
    "misspelt in training": ({}, {"training.rat": 1}, ("'rat'", near("rate"))),
    "misspelt in method": ({"method": "fedprox"}, {"method.nu": 1}, ("fedprox", "'nu'", near("mu"))),
    "misspelt in partition": ({}, {"partition.alfa": 1}, ("dirichlet", "'alfa'", near("alpha"))),
    "misspelt in model": ({}, {"model.width": 1}, ("mlp", "'width'", near("widths"))),
    "too deep": ({}, {"a.b.c": 1}, ("section", "'a.b'")),
    "unknown method": ({"method": "fedporx"}, {"mu": 1}, ("'fedporx'", near("fedprox"))),
    "wrong value": ({}, {"epochs": 0}, ("epochs", "0")),
}


@pytest.mark.parametrize(("values", "settings", "words"), MISPLACED.values(), ids=MISPLACED.keys())
def test_misplaced_settings_refused(values, settings, words):
    with pytest.raises(BadExperiment) as refused:
        Experiment(**with_settings(values, settings))
    for word in words:
        assert word in str(refused.value)
