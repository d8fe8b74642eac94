"""C code for CPUs, compiled once for each machine and kept in the cache folder.

Without a compiler, or with FEDLOOM_NATIVE=0, torch's own layers do everything, with the same results but for rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from fedloom.accel.machine import cache_folder

log = logging.getLogger("fedloom")

HERE = Path(__file__).parent
SOURCES = ("net.h", "move.h", "dense.h", "conv.h", "room.h", "head.h", "walk.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC", "-std=gnu11")
PATIENCE = 120  # seconds for the compiler


def library() -> ctypes.CDLL | None:
    """The compiled code; None where there is none, for the reason that `why_no_library` gives."""
    return _found()[0]


def why_no_library() -> str:
    """Why there is no compiled code; empty where there is."""
    return _found()[1]


@cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    """The compiled code, or the reason why there is none."""
    if os.environ.get("FEDLOOM_NATIVE") == "0":
        return None, "FEDLOOM_NATIVE=0 turns it off"
    try:
        return _loaded(_file()), ""
    except (OSError, subprocess.SubprocessError, NoCompiler) as problem:
        log.info("clients train by torch's own layers: %s", problem)
        return None, str(problem)


def identity() -> str:
    """The name of the code that trains on CPUs; the last bits of results depend on it."""
    found = library()
    return "torch's" if found is None else Path(str(found._name)).stem


class NoCompiler(Exception):
    """The C code cannot be compiled on this machine."""


def _loaded(file: Path) -> ctypes.CDLL:
    """Load the library, and declare what its functions take and return."""
    found, number, address = ctypes.CDLL(str(file)), ctypes.c_int64, ctypes.c_void_p
    found.fedloom_room.restype = number
    found.fedloom_room.argtypes = [address, *[number] * 4]
    found.fedloom_walk.restype = number
    found.fedloom_walk.argtypes = [
        address, *[number] * 4, address, number, address, address, number, *[address] * 7, number, number,
    ]  # fmt: skip
    found.fedloom_outputs.restype = None
    found.fedloom_outputs.argtypes = [
        address, *[number] * 4, address, number, address, number, address, address, number, number,
    ]  # fmt: skip
    return found


def _file() -> Path:
    """Where the library for this machine lies; it is compiled if there is none yet."""
    compiler, threads = _compiler(), _threads()
    facts = [*((HERE / name).read_text() for name in SOURCES), compiler, str(threads), processor(), *FLAGS]
    name = f"native-{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:16]}.so"
    folder = cache_folder()
    if (folder / name).exists():
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(dir=folder)
    except OSError:  # the cache folder cannot be written
        folder, place = Path(tempfile.mkdtemp()), tempfile.mkdtemp()
    try:
        made = Path(place) / name
        libraries = ("-nodefaultlibs", str(threads), "-lm", "-lc", "-lgcc")  # torch's threads, not the system's
        command = [compiler, *FLAGS, str(HERE / "walk.c"), "-o", str(made), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise NoCompiler(f"{compiler} failed: {done.stderr.strip()[-300:]}")
        os.replace(made, folder / name)  # atomic, as another process may compile too
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder / name


def _compiler() -> str:
    """The C compiler."""
    if sys.platform != "linux":
        raise NoCompiler(f"the C code was never tried on {sys.platform}")
    found = next(filter(None, (shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "cc"))), None)
    if found is None:
        raise NoCompiler("there is no C compiler (gcc or cc)")
    return found


def _threads() -> Path:
    """The OpenMP library that torch itself uses: two of them would compete for the cores."""
    folder = Path(torch.__file__).parent / "lib"
    found = sorted(folder.glob("libgomp*.so*"))
    if not found:
        raise NoCompiler("this torch does not come with libgomp")
    return found[0]


def processor() -> str:
    """The facts about this machine's processor that compiled code depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    )
