"""Where a node keeps the files of clients' states: in a folder, or in Flower's Context.state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from fedloom.files import replace_file
from fedloom.reading.cap import check_room

Chunks = Iterable[bytes | memoryview]


class StateFiles(Protocol):
    """Files by client and name."""

    def names(self, client: int) -> list[str]:
        """The names of a client's files."""
        ...

    def read(self, client: int, name: str) -> bytes:
        """A file's contents."""
        ...

    def write(self, client: int, name: str, chunks: Chunks) -> None:
        """Write a file, whole or not at all."""
        ...

    def remove(self, client: int, name: str) -> None:
        """Remove a file."""
        ...


class StateFolder:
    """A folder of a run with a folder for each client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, client: int) -> list[str]:
        """The names of a client's files."""
        own = self._folder / str(client)
        return [file.name for file in own.iterdir()] if own.is_dir() else []

    def read(self, client: int, name: str) -> bytes:
        """A file's contents."""
        file = self._folder / str(client) / name
        check_room(file, 2 * file.stat().st_size)
        return file.read_bytes()

    def write(self, client: int, name: str, chunks: Chunks) -> None:
        """Write a file, on disk when this returns."""
        own = self._folder / str(client)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(own / name, chunks, mode=0o600)

    def remove(self, client: int, name: str) -> None:
        """Remove a file."""
        (self._folder / str(client) / name).unlink(missing_ok=True)


class StateRecords:
    """Records in Flower's Context.state."""

    def __init__(self, context_state: Any, run: str) -> None:
        self._context, self._run = context_state, run

    def names(self, client: int) -> list[str]:
        """The names of a client's records, without what leads them."""
        lead = self._name(client, "")
        return [str(name).removeprefix(lead) for name in self._context if str(name).startswith(lead)]

    def read(self, client: int, name: str) -> bytes:
        """A record's contents; empty if it holds something else."""
        data = self._context[self._name(client, name)].get("tensors")
        return data if isinstance(data, bytes) else b""

    def write(self, client: int, name: str, chunks: Chunks) -> None:
        """Write a record."""
        from flwr.app import ConfigRecord

        self._context[self._name(client, name)] = ConfigRecord({"tensors": b"".join(bytes(part) for part in chunks)})

    def remove(self, client: int, name: str) -> None:
        """Remove a record."""
        del self._context[self._name(client, name)]

    def _name(self, client: int, name: str) -> str:
        """The name of a record."""
        return f"fedloom.{self._run}.{client}.{name}"
