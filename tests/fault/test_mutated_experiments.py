"""Row 1: one good experiment, spoilt in one place at a time; each is refused in Python and on the command line.

Refused means: before any file is written, exit code 2, no traceback, and a message with the argument, what came and the
nearest name that exists (or the range or kind that was expected).
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedloom.cli.main import main
from fedloom.errors import BadData, BadExperiment, BadModel
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

GOOD: dict[str, Any] = {
    "method": "fedprox", "method.mu": 0.1, "data": "digits", "partition": "dirichlet", "partition.alpha": 0.5,
    "model": "mlp", "model.widths": [8], "fleet": "equal", "fleet.latency": 0.1, "channel": "bernoulli",
    "channel.up": 0.1, "codec.values": "float16", "codec.scale": "block", "world.deadline": 300.0, "world.pieces": 2,
    "world.piece_loss": 0.1, "world.compute": "flops", "training.optimiser": "sgd", "training.rate": 0.1,
    "training.momentum": 0.5, "training.epochs": 1, "training.batch": 32, "clients": 4, "per_round": 2, "rounds": 1,
    "seed": 0, "split": [0.8, 0.0, 0.2], "evaluate_every": 1, "engine": "local", "execution": "sliced", "chunk": 2,
    "device": "cpu",
}  # fmt: skip
NAMED = (
    "method",
    "data",
    "partition",
    "model",
    "fleet",
    "channel",
    "engine",
    "execution",
    "codec.values",
    "codec.scale",
)
WHOLE = ("clients", "per_round", "rounds", "seed", "evaluate_every", "chunk", "training.epochs", "training.batch")
NUMBERS = (*WHOLE, "method.mu", "partition.alpha", "fleet.latency", "channel.up", "training.rate", "world.piece_loss")
IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    "clients": (0, 1439), "per_round": (0,), "rounds": (-1,), "seed": (2**63,), "evaluate_every": (0,), "chunk": (0,),
    "split": ([0.5, 0.5, 0.5], [1.4, -0.4, 0.0], [1.0, 0.0]), "training.rate": (0, -0.1), "training.momentum": (1.0,),
    "training.epochs": (0,), "training.batch": (-1,), "method.mu": (-1.0,), "partition.alpha": (0, 1e300),
    "model.widths": ([0], [10**30]), "fleet.latency": (-1.0,), "channel.up": (1.4,), "world.deadline": (0,),
    "world.pieces": (0,), "world.piece_loss": (1.5,),
}  # fmt: skip


class Spoilt(NamedTuple):
    """One change, and what its refusal must say."""

    key: str
    value: Any
    says: tuple[str, ...]
    instead_of: str | None = None  # the key that it replaces


def typo(word: str, random: np.random.Generator) -> str:
    """The word with one letter left out, doubled or replaced by one that no name has."""
    at = int(random.integers(1, len(word)))
    return (word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word[:at] + "Q" + word[at + 1 :])[
        random.integers(0, 3)
    ]


def mutations(seed: int = 1) -> list[Spoilt]:
    """Misspelt keys, misspelt names, wrong kinds and impossible values."""
    random, found = np.random.default_rng(seed), []
    for key in (key for key in GOOD if key not in ("method", "data")):
        section, _, name = key.rpartition(".")
        wrong = typo(name, random)
        if len(name) > 3 and wrong not in (name, *(other.rpartition(".")[2] for other in GOOD)):
            found.append(Spoilt(f"{section}.{wrong}".lstrip("."), GOOD[key], (f"'{wrong}'", f"'{name}'"), key))
    for key in NAMED:
        wrong = typo(GOOD[key], random)
        found.append(Spoilt(key, wrong, (key.rpartition(".")[2], f"'{wrong}'", f"'{GOOD[key]}'")))
    for key in NUMBERS:
        found += [Spoilt(key, value, (key.rpartition(".")[2], str(value))) for value in ("many", [1], True)]
    for key, values in IMPOSSIBLE.items():
        found += [
            Spoilt(key, value, (key.rpartition(".")[2], str(value).strip("[]").split(",")[0])) for value in values
        ]
    return found


ALL = mutations()
each = pytest.mark.parametrize("spoilt", ALL, ids=[f"{m.key}={str(m.value)[:12]}" for m in ALL])


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty place without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)


def with_change(spoilt: Spoilt | None) -> dict[str, Any]:
    """The good experiment's settings with one change."""
    if spoilt is None:
        return GOOD
    return {**{key: value for key, value in GOOD.items() if key != spoilt.instead_of}, spoilt.key: spoilt.value}


def as_values(pairs: dict[str, Any]) -> dict[str, Any]:
    """Dotted settings as an Experiment takes them."""
    values: dict[str, Any] = {}
    named = ("method", "data", "partition", "model", "fleet", "channel")
    for key, value in pairs.items():
        section, _, name = key.partition(".")
        if section in named and not name:
            values.setdefault(section, {"settings": {}})["name"] = value
        elif section in named:
            values.setdefault(section, {"settings": {}})["settings"][name] = value
        elif name:
            values.setdefault(section, {})[name] = value
        else:
            values[key] = value
    return values


def commanded(pairs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command with these settings."""
    method = pairs["method"]
    words = [("--set", f"{key}={json.dumps(value)}") for key, value in pairs.items() if key != "method"]
    monkeypatch.setattr(sys, "argv", ["fedloom", "run", method, *chain(*words), "--out", "run"])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_there_are_enough_of_them():
    assert len(ALL) >= 80
    assert len({(m.key, str(m.value)) for m in ALL}) == len(ALL)


def test_the_good_one_runs(monkeypatch, tmp_path):
    assert run(Experiment(**as_values(GOOD))).accuracy is not None
    assert commanded(with_change(None), monkeypatch) == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


@each
def test_refused_in_python(spoilt, tmp_path):
    with pytest.raises((BadExperiment, BadModel, BadData)) as refused:
        run(Experiment(**as_values(with_change(spoilt))), out=tmp_path / "run")
    for word in spoilt.says:
        assert word in str(refused.value)
    assert not list(tmp_path.iterdir())


@each
def test_refused_on_the_command_line(spoilt, monkeypatch, capsys, tmp_path):
    assert commanded(with_change(spoilt), monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    for word in spoilt.says:
        assert word in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, '{"a":' * 5000, "1e999", "\ud800"])
def test_strange_values_on_the_command_line(value, monkeypatch, capsys, tmp_path):
    """Nesting and numbers that Python's JSON reader refuses in its own ways."""
    monkeypatch.setattr(sys, "argv", ["fedloom", "run", "fedavg", "--set", f"rate={value}"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
