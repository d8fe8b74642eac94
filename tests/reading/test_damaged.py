"""Damaged files of every kind are read or refused by an error of fedloom's own, never by one of another library."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedloom.data.from_images import from_images
from fedloom.data.load import load
from fedloom.data.shakespeare import EMBEDDED, shakespeare
from fedloom.errors import FedloomError
from fedloom.files import write_new
from fedloom.flower.node.own_data import inputs_from_own_data, read_folder
from fedloom.reading.cap import VARIABLE
from fedloom.report.recorded import read_run
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.checkpoint.tensors import pack
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Widths
from fedloom.runs.load_model import load_model
from fedloom.runs.play import resume, run
from fedloom.world.fleets import make_devices
from fedloom.world.trace import read_trace

TIMES = 40  # a kind of file
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 3)).astype(np.float32), np.arange(24) % 3
ARRAYS = {"x_train": X, "y_train": Y, "client_train": np.array(["a", "b", "c"] * 8), "x_test": X[:6], "y_test": Y[:6]}
FRAME = pd.DataFrame({"text": ["a word", "two"] * 8, "label": ["x", "y"] * 8, "client": [0, 1, 2, 3] * 4})
FLEET = pd.DataFrame({"client": range(6), "up": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
TRACE = pd.DataFrame({"client": range(6), "time": range(6), "available": [0, 1] * 3})

Read = Callable[[Path], object]


def own(file: Path) -> object:
    experiment = Experiment(clients=8, method="fedavg")
    return inputs_from_own_data(experiment, [7], read_folder(str(file.parent)), Widths(3, 0, 3))


def run_folder(file: Path) -> None:
    experiment = Experiment(method="fedspu", model="linear", clients=3, per_round=2, rounds=2)
    run(experiment, out=file.parent, checkpoints=Checkpoints(rounds=1))


def folder_of(file: Path) -> None:
    for name, array in ARRAYS.items():
        np.save(file.with_name(f"{name}.npy"), array)


def state(file: Path) -> None:
    write_new(file, pack({"model": torch.ones(3, 4), "round": torch.tensor(3)}))


def picture(file: Path) -> None:
    for name in ("a", "b"):
        (file.parent.parent / name).mkdir(exist_ok=True)
        pixels = RNG.integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(file.parent.parent / name / file.name)


def pictures(file: Path) -> object:
    return from_images(file.parent.parent, 8)


def by_path(file: Path) -> object:
    return load(str(file))


KINDS: dict[str, tuple[Callable[[Path], object], Read]] = {
    "some.npz": (lambda file: np.savez(file, **ARRAYS), by_path),
    "packed.npz": (lambda file: np.savez_compressed(file, **ARRAYS), by_path),
    "7.npz": (lambda file: np.savez(file, x=X, y=Y, x_test=X, y_test=Y), own),
    "x_train.npy": (folder_of, lambda file: load(str(file.parent))),
    "client_train.npy": (folder_of, lambda file: load(str(file.parent))),
    "some.csv": (lambda file: FRAME.to_csv(file, index=False), by_path),
    "some.parquet": (lambda file: FRAME.to_parquet(file, compression="snappy"), by_path),
    "zstd.parquet": (lambda file: FRAME.to_parquet(file, compression="zstd"), by_path),
    "fleet.csv": (lambda file: FLEET.to_csv(file, index=False), lambda file: make_devices(str(file), 6, 0)),
    "fleet.parquet": (FLEET.to_parquet, lambda file: make_devices(str(file), 6, 0)),
    "trace.csv": (lambda file: TRACE.to_csv(file, index=False), lambda file: read_trace(file, 6)),
    "trace.parquet": (TRACE.to_parquet, lambda file: read_trace(file, 6)),
    "tiny_shakespeare.txt.gz": (lambda f: f.write_bytes(EMBEDDED.read_bytes()), lambda file: shakespeare(file.parent)),
    **{f"a/picture.{kind}": (picture, pictures) for kind in ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm")},
    "model.safetensors": (run_folder, lambda file: load_model(file.parent)),
    "kept.safetensors": (run_folder, lambda file: read_run(file.parent)),
    "rounds.parquet": (run_folder, lambda file: read_run(file.parent)),
    "clients.parquet": (run_folder, lambda file: read_run(file.parent)),
    "experiment.json": (run_folder, lambda file: (read_run(file.parent), resume(file.parent))),
}


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """The file after one accident: bits flipped, bytes replaced, the end or a piece cut out, a piece repeated."""
    data, at = bytearray(whole), chance.randrange(len(whole))
    if chance.random() < 0.5:  # headers are at both ends
        at = chance.choice(
            [chance.randrange(min(200, len(whole))), len(whole) - 1 - chance.randrange(min(200, len(whole)))]
        )
    stop = at + chance.randrange(1, 30)
    way = chance.randrange(6)
    if way <= 1:
        data[at] ^= 1 << chance.randrange(8)
    elif way == 2:
        data[at] = chance.choice([0, 0xFF, 0x7F, 0x80, chance.randrange(256)])
    elif way == 3:
        del data[at:]
    elif way == 4:
        del data[at:stop]
    else:
        data[at:at] = data[at:stop]
    return bytes(data)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore")  # of libraries, about what they find odd
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.25")
    write, read = KINDS[name]
    file, chance = tmp_path / "data" / name, random.Random(name)
    file.parent.mkdir(parents=True)
    write(file)
    if not file.exists():
        pytest.skip(f"a run of this kind writes no {name}")
    whole, refused = file.read_bytes(), 0
    read(file)
    for _ in range(TIMES):
        file.write_bytes(damaged(whole, chance))
        try:
            read(file)
        except FedloomError:
            refused += 1
    assert refused


@pytest.mark.parametrize("name", ["some.npz", "some.csv", "some.parquet", "x_train.npy", "model.safetensors"])
def test_an_empty_file_and_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    write, read = KINDS[name]
    file = tmp_path / "data" / name
    file.parent.mkdir(parents=True)
    write(file)
    file.write_bytes(b"")
    with pytest.raises(FedloomError):
        read(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(FedloomError):
        read(file)
