"""What a file may take is checked before it is taken, and the error says how much it would be and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bombs
from fedloom.data.from_images import from_images
from fedloom.data.load import load
from fedloom.data.shakespeare import shakespeare
from fedloom.errors import BadData, BadExperiment
from fedloom.flower.node.own_data import read_folder
from fedloom.reading.cap import VARIABLE, check_room
from fedloom.runs.folder import experiment_in
from fedloom.world.fleets import make_devices

MAY = 0.125  # GiB

Read = Callable[[Path], object]


def by_path(file: Path) -> object:
    return load(str(file))


def folder_of(file: Path) -> object:
    np.save(file.with_name("x_test.npy"), np.zeros((2, 1)))
    for name in ("y_train", "y_test"):
        np.save(file.with_name(f"{name}.npy"), np.zeros(2, np.int64))
    return load(str(file.parent))


def pictures(file: Path) -> object:
    return from_images(file.parent.parent)


def fleet(file: Path) -> object:
    return make_devices(str(file), 2, 0)


BOMBS: list[tuple[str, Callable[[Path], None], Read, str]] = [
    ("zeros.npz", bombs.zeros_npz, by_path, r"zeros\.npz would take about 1\.3 GB"),
    ("claimed.npz", bombs.claimed_npz, by_path, r"x_train cannot.* claims \[1000000000, 1000\] of float32, and 0"),
    ("lying.npz", bombs.lying_npz, by_path, r"lying\.npz would take about 4\.0 TB|array x_train cannot be read"),
    ("packed.npz", bombs.packed_npz, by_path, r"packed by method 14; np\.savez and"),
    ("7.npz", bombs.zeros_npz, lambda file: read_folder(str(file.parent))(7), r"7\.npz would take about 1\.3 GB"),
    ("equal.parquet", bombs.equal_parquet, by_path, r"equal\.parquet would take about 800\."),
    ("repeated.parquet", bombs.repeated_parquet, by_path, r"repeated\.parquet would take about 2\.0 GB"),
    ("listed.parquet", bombs.listed_parquet, by_path, r"column text holds several values in a cell"),
    ("fleet.parquet", bombs.equal_parquet, fleet, r"fleet\.parquet would take about 800\."),
    ("wide.csv", bombs.wide_csv, by_path, r"wide\.csv would take about 1\.2 GB"),
    ("long.csv", bombs.long_label, by_path, r"long\.csv: column label would take about 400\.0 GB"),
    ("sparse.csv", bombs.sparse, by_path, r"sparse\.csv would take about 2\.2 TB"),
    ("x_train.npy", bombs.sparse, folder_of, r"x_train\.npy would take about 1\.1 GB"),
    ("tiny_shakespeare.txt.gz", bombs.packed_text, lambda file: shakespeare(file.parent), "unpacks to more than"),
    ("ant/huge.png", bombs.huge_picture, pictures, r"huge\.png would take about 648\.0 MB"),
    ("experiment.json", bombs.sparse, lambda file: experiment_in(file.parent), r"would take about 52\.8 TB"),
]  # fmt: skip


def memory(field: str) -> float:
    """MiB of memory that this process has, or had at most since `peak` was reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize(("name", "write", "read", "told"), BOMBS, ids=[name for name, *_ in BOMBS])
def test_small_files_that_would_take_much(
    name: str, write: Callable[[Path], None], read: Read, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal costs a few megabytes, whatever the file would have cost."""
    write(tmp_path / name)
    monkeypatch.setenv(VARIABLE, str(MAY))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    with pytest.raises(BadData, match=told):
        read(tmp_path / name)
    assert memory("VmHWM") - before < 64


def test_the_cap_is_a_share_of_free_memory_or_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("fedloom.reading.cap.free_memory", lambda: 10 * 2**30)
    check_room("file", 8 * 2**30)
    with pytest.raises(
        BadData, match=r"file would take about 8\.6 GB of memory, and a file may take 8\.6 GB \(80% of"
    ) as e:
        check_room("file", 8 * 2**30 + 1)
    assert f"set {VARIABLE}=9 or more (GiB)" in str(e.value)
    monkeypatch.setenv(VARIABLE, "8.5")
    check_room("file", 8 * 2**30 + 1)
    with pytest.raises(BadData, match=f"by {VARIABLE}"):
        check_room("file", 9 * 2**30)
    for wrong in ("much", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(BadExperiment, match=f"{VARIABLE} is '{wrong}'; expected a number of GiB"):
            check_room("file", 1)


def test_good_files_within_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file is read once it may take as much as the error says."""
    x = np.zeros((1000, 1000), np.uint8)
    np.savez_compressed(tmp_path / "good.npz", x_train=x, y_train=x[:, 0], x_test=x, y_test=x[:, 0])
    monkeypatch.setenv(VARIABLE, "0.009")
    with pytest.raises(BadData, match=r"good\.npz would take about 10\.0 MB"):
        load(str(tmp_path / "good.npz"))
    monkeypatch.setenv(VARIABLE, "1")
    assert load(str(tmp_path / "good.npz")).x_train.shape == (1000, 1000)


def test_arrays_of_a_folder_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped arrays of float32 take no memory, so that they may be larger than the cap."""
    for name, array in (("x", np.zeros((40_000, 1000), np.float32)), ("y", np.zeros(40_000, np.int64))):
        np.save(tmp_path / f"{name}_train.npy", array)
        np.save(tmp_path / f"{name}_test.npy", array[:10])
    monkeypatch.setenv(VARIABLE, "0.0625")
    assert isinstance(load(str(tmp_path)).x_train, np.memmap)
