"""Atheris on the checkpoint reader: `python fuzz/read_checkpoint.py -runs=1000000 -rss_limit_mb=2048`.

The first byte of an input says which file of a checkpoint it replaces, the second whether sizes, hashes and the
folder's name are made to agree with it afterwards, as a forger would; the rest is the file. Only `Damaged` may come
out. A change that was not covered up must be noticed, and what is read may not be more than is there.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import atheris
import campaign
import numpy as np
import torch

with atheris.instrument_imports(include=["fedloom"]):
    from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.tensors import pack

FACTS = {"format": 1, "experiment": {"clients": 4}, "fingerprint": {"data": "0" * 64}, "surroundings": {"torch": "2"}}
ROOM = 2**18 + 2**16  # bytes: files are hashed 256 KiB at a time, and an interpreter needs some for names
WORDS = [b"{", b"}", b"[", b'"', b":", b",", b"null", b"-1", b"1e999", b"NaN", b'"F32"', b'"shape"', b'"data_offsets"']
WORDS += [b'"round"', b'"files"', b'"size"', b'"sha256"', b"18446744073709551615", b"[" * 2000, b"../", b"\xff", b"\0"]
tally = campaign.Tally(("damaged", "read", "tensors refused"))


def checkpoint() -> dict[str, bytes]:
    """A small checkpoint's files, without its manifest; one of tensors, for all are read alike."""
    server = {"model": torch.arange(6.0), "memory.mask.turn": torch.tensor(3), "memory.select.seen": torch.ones(2) > 0}
    return {"server.safetensors": b"".join(pack(server))}


def manifest(files: dict[str, bytes]) -> bytes:
    """What names them all."""
    said = {name: {"size": len(data), "sha256": sha256(data).hexdigest()} for name, data in files.items()}
    return json.dumps({"round": 1, **FACTS, "files": said}, indent=1).encode()


def name_of(text: bytes) -> str:
    """The folder's name."""
    return f"round-1-{sha256(text).hexdigest()[:32]}"


GOOD = checkpoint()
GOOD = {store.MANIFEST: manifest(GOOD), **GOOD}


class Disk:
    """The checkpoint on a disk, of which one or two files are changed at a time."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self.place = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.path, self.changed = self.place / "round-1-", set(GOOD)
        self.path.mkdir()

    def write(self, files: dict[str, bytes], name: str) -> Path:
        """Put the files there, and those of before back."""
        for file in self.changed | files.keys():
            (self.path / file).write_bytes(files.get(file, GOOD[file]))
        self.changed = set(files)
        os.rename(self.path, self.place / name)
        self.path = self.place / name
        return self.path


disk: list[Disk] = []


def read(data: bytes) -> None:
    """Read the checkpoint with one file replaced."""
    if len(data) < 2:
        return
    if not disk:
        disk.append(Disk())
    file, covered, content = list(GOOD)[data[0] % len(GOOD)], data[1] & 1, data[2:]
    files = {file: content}
    if covered and file != store.MANIFEST:
        files[store.MANIFEST] = manifest({**{n: d for n, d in GOOD.items() if n != store.MANIFEST}, **files})
    text = files.get(store.MANIFEST, GOOD[store.MANIFEST])
    path = disk[0].write(files, name_of(text if covered else GOOD[store.MANIFEST]))
    with tally.measured(len(content) + ROOM):
        try:
            found = store.read(path)
        except store.Damaged:
            tally.count("damaged")
            return
        outcome = "read"
        for part in [name for name in found.files if name.endswith(".safetensors")]:
            try:
                held = store.tensors(found, part)
            except store.Damaged:
                outcome = "tensors refused"
                continue
            size = sum(value.numel() * value.element_size() for value in held.values())
            assert size <= found.files[part].stat().st_size, "more than is there"
    tally.count(outcome)
    assert covered or content == GOOD[file], f"{file} has changed, and nobody noticed"


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """libFuzzer's own mutation, or a word put somewhere into the file."""
    if seed % 3 or len(data) < 3:
        return bytes(atheris.Mutate(data, most))
    random = np.random.default_rng(seed)
    at, word = int(random.integers(2, len(data) + 1)), WORDS[random.integers(0, len(WORDS))]
    return (data[:at] + word + data[at + (len(word) if random.integers(0, 2) else 0) :])[:most]


def seeds(folder: Path) -> None:
    """Every file as it is, covered and not."""
    for number, content in enumerate(GOOD.values()):
        for covered in (0, 1):
            (folder / f"good-{number}-{covered}").write_bytes(bytes([number, covered]) + content)


if __name__ == "__main__":
    sys.exit(campaign.fuzz(read, mutate, seeds, ["-max_len=6000", *sys.argv[1:]], tally))
