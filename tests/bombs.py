"""Small files that claim, or unpack to, far more memory than they have bytes."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BILLION = 10**9


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    """The beginning of an .npy file."""
    np.lib.format.write_array_header_1_0(
        opened := io.BytesIO(), {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return opened.getvalue()


def zeros_npz(path: Path) -> None:
    """A quarter of a gigabyte of zeros, packed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as opened:
        opened.write(header((2**28,), "|u1"))
        for _ in range(2**8):
            opened.write(bytes(2**20))


def claimed_npz(path: Path) -> None:
    """A header of terabytes, and nothing after it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", header((BILLION, 1000)))


def lying_npz(path: Path) -> None:
    """The same, and the archive claims that it is there."""
    claimed_npz(path)
    data, size = bytearray(path.read_bytes()), struct.pack("<I", 2**32 - 2)
    end = data.rindex(b"PK\x01\x02")
    data[24 + end : 28 + end] = size
    path.write_bytes(data)


def packed_npz(path: Path) -> None:
    """Packed by a method that unpacks a block of any size at once."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x_train.npy", header((2**24,), "|u1") + bytes(2**24))


def equal_parquet(path: Path) -> None:
    """Rows of one number, as run lengths."""
    column = pa.array(np.ones(10**6, np.int64))
    with pq.ParquetWriter(path, pa.schema([("y", pa.int64())])) as writer:
        for _ in range(100):
            writer.write_table(pa.table({"y": column}), row_group_size=10**6)


def repeated_parquet(path: Path) -> None:
    """A text of a megabyte in every row, written once."""
    table = pa.table({"text": pa.array(["x" * 10**6] * 200), "label": pa.array([0, 1] * 100)})
    pq.write_table(table, path, dictionary_pagesize_limit=2**30, compression="zstd")


def listed_parquet(path: Path) -> None:
    """The same in lists."""
    table = pa.table({"text": pa.array([["x" * 10**6] * 5] * 20)})
    pq.write_table(table, path, dictionary_pagesize_limit=2**30, compression="zstd")


def wide_csv(path: Path) -> None:
    """A hundred thousand columns."""
    path.write_text(",".join(f"{place:x}" for place in range(100_000)) + "\n1\n")


def sparse(path: Path) -> None:
    """Gigabytes or terabytes that take no room on the disk."""
    with path.open("wb") as opened:
        opened.write(header((2**28, 1), "<f8") if path.suffix == ".npy" else b"a,b\n1,2\n")
        opened.truncate(2**31 + 128 if path.suffix == ".npy" else 2**41)


def long_label(path: Path) -> None:
    """A label of a megabyte among short ones."""
    path.write_text("x,label\n1," + "z" * 10**6 + "\n" + "1,a\n" * 10**5)


def packed_text(path: Path) -> None:
    """A quarter of a gigabyte of one letter."""
    with gzip.open(path, "wb") as opened:
        for _ in range(2**8):
            opened.write(b"x" * 2**20)


def huge_picture(path: Path) -> None:
    """A PNG whose header claims 9,000 x 9,000 pixels."""
    path.parent.mkdir(exist_ok=True)
    head = struct.pack(">IIBBBBB", 9_000, 9_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
