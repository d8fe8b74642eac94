"""A node's key, which is its identity, in the format that Flower reads and `ssh-keygen` writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedloom.flower.deploy.certificates import write_private


class Key(NamedTuple):
    """The two files of a node's key."""

    private: Path  # goes to that node and nowhere else
    public: Path  # is registered with the link

    @property
    def number(self) -> int:
        """The node's number: 3 of `node-3`."""
        return int(self.private.name.rpartition("-")[2])


def key_in(folder: Path, number: int) -> Key:
    """The files of a node's key."""
    name = f"node-{number}"
    return Key(folder / name, folder / f"{name}.pub")


def write_key(folder: Path, name: str) -> Key:
    """Write a new key, ECDSA on P-384."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    folder.mkdir(parents=True, exist_ok=True)
    key, files = ec.generate_private_key(ec.SECP384R1()), Key(folder / name, folder / f"{name}.pub")
    write_private(files.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    files.public.write_bytes(line + f" {name}\n".encode())
    return files
