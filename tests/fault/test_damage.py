"""A checkpoint that is not what was written is never loaded silently."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedloom.errors import RunStopped
from fedloom.files import write_new
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.checkpoint.tensors import KINDS, bytes_of, pack
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import resume, run

FILES = ("manifest.json", "server.safetensors", "engine.safetensors", "ledger.safetensors", "rounds.parquet")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A run with a checkpoint of each of its three rounds; nobody may change it."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    experiment = Experiment(method="scaffold", model="linear", clients=4, per_round=2, rounds=3)
    run(experiment, out=folder, checkpoints=Checkpoints(rounds=1, keep=3))
    assert [path.name.split("-")[1] for path in store.list_all(folder / "checkpoint")] == ["3", "2", "1"]
    return folder


def test_a_whole_one_is_read(saved):
    found = store.read(store.list_all(saved / "checkpoint")[0])
    assert found.facts["round"] == 3
    assert set(found.files) == set(FILES[1:])


# ---- damage; `one` is to be damaged, `other` is the checkpoint before it


def flip(one: Path, other: Path, chance: random.Random) -> None:
    """One bit."""
    file = one / chance.choice(FILES)
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def truncate(one: Path, other: Path, chance: random.Random) -> None:
    """The end is missing."""
    file = one / chance.choice(FILES)
    file.write_bytes(file.read_bytes()[: chance.randrange(file.stat().st_size)])


def lengthen(one: Path, other: Path, chance: random.Random) -> None:
    """More than there was."""
    file = one / chance.choice(FILES)
    file.write_bytes(file.read_bytes() + bytes(chance.randrange(1, 99)))


def drop(one: Path, other: Path, chance: random.Random) -> None:
    """A file is gone."""
    (one / chance.choice(FILES)).unlink()


def zero(one: Path, other: Path, chance: random.Random) -> None:
    """A block that never reached the disk."""
    file = one / chance.choice(FILES)
    data = file.read_bytes()
    start = chance.randrange(len(data))
    file.write_bytes(data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :])


def swap_files(one: Path, other: Path, chance: random.Random) -> None:
    """Two files of one checkpoint change places."""
    a, b = chance.sample(FILES, 2)
    first, second = (one / a).read_bytes(), (one / b).read_bytes()
    (one / a).write_bytes(second)
    (one / b).write_bytes(first)


def swap_rounds(one: Path, other: Path, chance: random.Random) -> None:
    """A file of another round."""
    name = chance.choice(FILES)
    (one / name).write_bytes((other / name).read_bytes())


def swap_folders(one: Path, other: Path, chance: random.Random) -> None:
    """All files of another round."""
    for name in FILES:
        (one / name).write_bytes((other / name).read_bytes())


def folder_for_file(one: Path, other: Path, chance: random.Random) -> None:
    """A folder where a file should be."""
    file = one / chance.choice(FILES)
    file.unlink()
    file.mkdir()


WAYS: list[Callable[[Path, Path, random.Random], None]] = [
    flip, flip, flip, truncate, lengthen, drop, zero, swap_files, swap_rounds, swap_folders, folder_for_file,
]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_thousand_damaged_checkpoints_are_all_refused(saved, tmp_path):
    newest, before = store.list_all(saved / "checkpoint")[:2]
    chance, whole, refused = random.Random(8), contents(newest), 0
    while refused < 1000:
        one = tmp_path / newest.name
        shutil.copytree(newest, one)
        chance.choice(WAYS)(one, before, chance)
        if contents(one) != whole:  # zeros may have been zeros
            with pytest.raises(store.Damaged):
                store.read(one)
            refused += 1
        shutil.rmtree(one)


def test_every_997th_byte_matters(saved, tmp_path):
    newest = store.list_all(saved / "checkpoint")[0]
    one = tmp_path / newest.name
    shutil.copytree(newest, one)
    for name, data in contents(newest).items():
        for place in range(0, len(data), 997):
            (one / name).write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
            with pytest.raises(store.Damaged):
                store.read(one)
        (one / name).write_bytes(data)
    assert store.read(one).facts["round"] == 3


@pytest.mark.parametrize("way", WAYS[2:], ids=lambda way: way.__name__)
def test_the_one_before_is_used_and_that_is_said(way, saved, tmp_path, caplog):
    shutil.copytree(saved, tmp_path / "run")
    newest, before = store.list_all(tmp_path / "run" / "checkpoint")[:2]
    way(newest, before, random.Random(1))
    told: list[str] = []
    with caplog.at_level(logging.WARNING, "fedloom"):
        resume(tmp_path / "run", tell=told.append)
    assert f"checkpoint '{newest}' is damaged (" in caplog.text
    assert told[-1] == "resumed after round 2 of 3"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()
    assert newest.name not in {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert store.read(store.list_all(tmp_path / "run" / "checkpoint")[0]).facts["round"] == 3


def test_without_a_good_one_the_run_stops(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    for path in store.list_all(tmp_path / "run" / "checkpoint"):
        (path / "manifest.json").unlink()
    with pytest.raises(RunStopped, match=r"all 3 checkpoints in .* damaged"):
        resume(tmp_path / "run")


# ---- tensors as files


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_tensor_comes_back(kind, tmp_path):
    numbers = torch.arange(-6, 6) % 2 if kind == torch.bool else torch.arange(-6, 6)
    given = {
        "whole": numbers.to(kind).view(3, 4), "turned": numbers.to(kind).view(3, 4).T, "number": numbers.to(kind)[3],
        "part": numbers.to(kind)[1::3], "none": numbers.to(kind)[:0].view(0, 5), "a.b c": numbers.to(kind)[:1],
    }  # fmt: skip
    write_new(tmp_path / "file", pack(given))
    found = store.tensors(store.Found(tmp_path, {}, {"file": tmp_path / "file"}), "file")
    assert list(found) == list(given)
    for name, value in given.items():
        assert found[name].dtype == kind
        assert found[name].shape == value.shape
        assert bytes_of(found[name]) == bytes_of(value)
