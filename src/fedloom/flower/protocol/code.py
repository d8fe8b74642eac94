"""Hashes of the code that trains: server and nodes must have the same, or a run is not what its experiment says.

They find mistakes. A node that wants to deceive can send any hash.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from fedloom.codec import Rejected
from fedloom.flower.protocol.said import said
from fedloom.runs.checkpoint.fingerprint import own_files
from fedloom.runs.experiment import Experiment

OURS = "fedloom"
SOURCES = (".py", ".c")


def code_of(experiment: Experiment) -> dict[str, str]:
    """The hash of fedloom's code, and of each Python file of the user's own, by its name in the experiment."""
    own = {str(file): sha256(file.read_bytes()).hexdigest() for _, file in own_files(experiment)}
    return {OURS: code_of_fedloom(), **own}


@lru_cache(maxsize=1)
def code_of_fedloom() -> str:
    """The hash of fedloom's own source files, as they were when this process first asked."""
    root, digest = Path(__file__).parents[2], sha256()
    for file in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        digest.update(f"{file.relative_to(root).as_posix()} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def check_code(theirs: object, ours: dict[str, str]) -> None:
    """Refuse a node whose files are not the server's, and name them."""
    if theirs == ours:
        return
    found = theirs if isinstance(theirs, dict) else {}
    differ = [name for name in ours if found.get(name) != ours[name]]
    differ += [said(name) for name in found if name not in ours]
    raise Rejected("version", f"its code is not the server's: {', '.join(differ[:5])}; give both the same files.")
