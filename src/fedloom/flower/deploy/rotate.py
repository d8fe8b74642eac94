"""New certificates and keys for a deployment, so that link and nodes can change to them one after another.

All state is in the files: while an authority is replaced, `ca.crt` has two, the one whose key is there first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.files import replace_file
from fedloom.flower.deploy.certificates import (
    LINK_DAYS,
    LOCAL,
    Certificates,
    files_in,
    write_authority,
    write_link_certificate,
    write_private,
)
from fedloom.flower.deploy.keys import Key, write_key

if TYPE_CHECKING:
    from cryptography import x509

SOON = 30  # days until a certificate's end, from when on it is warned of
RETIRED, REFUSED = "retired", "refused"  # folders in `keys/`, of public keys that the link is to refuse, or refuses


class Validity(NamedTuple):
    """How long a certificate is valid, and who has signed it."""

    file: Path
    what: str
    until: datetime
    days: float  # that are left; below 0: it has expired
    fingerprint: str  # SHA-256, of the certificate
    note: str = ""  # what is to be done about it


def validity(files: Certificates) -> list[Validity]:
    """The link's certificate, and all authorities that nodes trust."""
    link, trusted = _read(files.link)[0], _read(files.authority)
    found = [_valid(files.link, "link", link, _link_note(link, trusted))]
    for at, one in enumerate(trusted):
        old = at > 0
        note = "old: drop it with --drop-old-ca when the link's certificate is by the new one" if old else ""
        found.append(_valid(files.authority, "old authority" if old else "authority", one, note))
    return found


def _link_note(link: x509.Certificate, trusted: list[x509.Certificate]) -> str:
    """What is unusual about the link's certificate."""
    if _signed(link, trusted[0]):
        return ""
    return "by the old authority: change it with --server" if len(trusted) > 1 else "by an authority that is not here"


def _valid(file: Path, what: str, one: x509.Certificate, note: str) -> Validity:
    """How long a certificate is valid; a warning comes before all else that is to be said of it."""
    from cryptography.hazmat.primitives import hashes

    until = one.not_valid_after_utc
    days = (until - datetime.now(UTC)).total_seconds() / 86400
    if days < SOON:
        change = "--server" if what == "link" else "--ca"
        note = f"{'expired' if days < 0 else 'expires soon'}: change it with `fedloom deploy rotate` {change}"
    return Validity(file, what, until, days, one.fingerprint(hashes.SHA256()).hex(), note)


def hosts_of(files: Certificates) -> list[str]:
    """The names in the link's certificate, without those of its own machine."""
    from cryptography import x509

    found = _read(files.link)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found if str(name.value) not in LOCAL]


def rotate_link(files: Certificates, days: int = LINK_DAYS) -> None:
    """A new certificate and key for the link, for the same names, by the authority whose key is here."""
    if not files.authority_key.exists():
        raise BadExperiment(f"'{files.authority_key}' is missing; put it there from where you keep it.")
    hosts = hosts_of(files)

    def make(fresh: Certificates) -> None:
        write_private(fresh.authority_key, files.authority_key.read_bytes())
        write_link_certificate(fresh, hosts, days)

    _replace(files, make, ("link_key", "link"))


def rotate_authority(files: Certificates) -> None:
    """A new authority, whose certificates will be trusted next to those of the one before."""
    if len(_read(files.authority)) > 1:
        raise BadExperiment(
            f"'{files.authority}' has two authorities already; end that change with --server and --drop-old-ca first."
        )
    before = files.authority.read_bytes()

    def make(fresh: Certificates) -> None:
        write_authority(fresh)
        replace_file(fresh.authority, [fresh.authority.read_bytes(), before])

    _replace(files, make, ("authority", "authority_key"))


def drop_old_authority(files: Certificates) -> None:
    """Trust the new authority alone."""
    from cryptography.hazmat.primitives.serialization import Encoding

    link, trusted = _read(files.link)[0], _read(files.authority)
    if len(trusted) < 2:
        raise BadExperiment(f"'{files.authority}' has one authority; there is no old one to drop.")
    if not _signed(link, trusted[0]):
        raise BadExperiment("the link's certificate is by the old authority; change it with --server first.")
    replace_file(files.authority, [trusted[0].public_bytes(Encoding.PEM)])


def rotate_node(key: Key) -> Path:
    """A new key for a node; the old public key's file, for the link to refuse it once the new one is in use."""
    old = retire(key)
    write_key(key.private.parent, key.private.name)
    return old


def retire(key: Key) -> Path:
    """Forget a node's private key and keep its public key among those that the link is to refuse; its file."""
    folder, name = key.public.parent / RETIRED, key.private.name
    folder.mkdir(exist_ok=True)
    number = 1 + sum(file.name.startswith(f"{name}.") for file in old_keys(key.public.parent))
    key.private.unlink()
    return key.public.rename(folder / f"{name}.{number}.pub")


def old_keys(folder: Path) -> list[Path]:
    """The public keys of nodes that had another key before, or are removed."""
    return sorted(file for name in (RETIRED, REFUSED) for file in (folder / name).glob("node-*.pub"))


def _replace(files: Certificates, make: Callable[[Certificates], None], names: tuple[str, ...]) -> None:
    """Make files in a folder of their own, then put these in the place of the old ones."""
    with tempfile.TemporaryDirectory(dir=files.link.parent, prefix=".new-") as folder:
        fresh = files_in(Path(folder))
        make(fresh)
        for name in names:
            os.replace(getattr(fresh, name), getattr(files, name))


def _read(file: Path) -> list[x509.Certificate]:
    """The certificates in a file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as problem:
        raise BadExperiment(f"'{file}' is not a certificate ({problem}); is its folder a deployment's?") from problem


def _signed(one: x509.Certificate, by: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        one.verify_directly_issued_by(by)
    except (InvalidSignature, ValueError):
        return False
    return True
