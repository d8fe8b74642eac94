"""Arrays of .npz and .npy files; headers are read first, nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedloom.errors import BadData
from fedloom.reading.cap import check_room, reason

PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes; others unpack without a bound
# bytes of a number's copy as training takes it, float32 or int64, by type
COPIES = {"float32": 0, "int64": 0, "uint8": 4, "float16": 4, "float64": 4}
COPY = 8  # of any other type


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz archive, all or those of these names that are there."""
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            wanted = {name: inside[name] for name in (inside if names is None else names) if name in inside}
            needed, arrays = dict[str, int](), dict[str, NDArray[Any]]()
            for name, member in wanted.items():
                needed[name] = _claimed(archive, member)
            check_room(path, sum(needed.values()))
            for name, member in wanted.items():
                with archive.open(member) as opened:
                    arrays[name] = npy.read_array(opened, allow_pickle=False)
            return arrays
    except BadData:
        raise
    except Exception as error:  # what damaged archives raise is not documented
        raise _refused(path, name, error) from error


def map_array(path: Path) -> NDArray[Any]:
    """The array of an .npy file, which stays on disk and can only be read."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        check_room(path, found.size * COPIES.get(found.dtype.name, COPY))
        return found
    except BadData:
        raise
    except Exception as error:  # as above
        raise BadData(f"{path} cannot be read ({reason(error)}); expected an array of numbers (np.save)") from error


def _claimed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Bytes of memory that an array takes, with a copy as training takes it, by its header."""
    if member.compress_type not in PACKED:
        raise ValueError(f"packed by method {member.compress_type}; np.savez and np.savez_compressed write 0 and 8")
    with archive.open(member) as opened:
        shape, kind = _header(opened)
        left = member.file_size - opened.tell()
    if kind.hasobject:
        raise ValueError("allow_pickle")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * kind.itemsize > left:
        raise ValueError(f"its header claims {list(shape)} of {kind}, and {left} bytes follow")
    return count * (kind.itemsize + COPIES.get(kind.name, COPY))


def _header(opened: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type that the header of an array names."""
    version = npy.read_magic(opened)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format; expected plain numbers or texts")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, kind = read(opened)
    return shape, kind


def _refused(path: Path, name: str, error: Exception) -> BadData:
    """The error for a file that cannot be read."""
    where = f"{path}: array {name}" if name else f"{path}"
    if "allow_pickle" in str(error):
        return BadData(f"{where} holds Python objects; expected numbers: save it with a number type")
    if isinstance(error, zipfile.BadZipFile) and _begins_with(path, npy.MAGIC_PREFIX):
        return BadData(f"{path}: expected an .npz archive of named arrays (np.savez), found a single array")
    return BadData(f"{where} cannot be read, the file is damaged or cut short ({reason(error)}); copy it again")


def _begins_with(path: Path, start: bytes) -> bool:
    """Whether a file begins with these bytes."""
    with path.open("rb") as opened:
        return opened.read(len(start)) == start
