"""An authority of our own and the link's certificate, for TLS."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LOCAL = ("localhost", "127.0.0.1", "::1")  # names by which the link's own helpers reach it
AUTHORITY_DAYS, LINK_DAYS = 3650, 730
SLACK = timedelta(hours=1)  # a certificate is valid from so long ago, because clocks differ


class Certificates(NamedTuple):
    """Paths of the files."""

    authority: Path  # goes to every node
    authority_key: Path  # stays where it was made; only a new certificate needs it
    link: Path
    link_key: Path


def files_in(folder: Path) -> Certificates:
    """The files' names in a folder."""
    return Certificates(*(folder / name for name in ("ca.crt", "ca.key", "server.pem", "server.key")))


def write_certificates(folder: Path, hosts: Iterable[str] = (), days: int = LINK_DAYS) -> Certificates:
    """Make an authority, and a certificate for a link that is reached as one of `hosts` or on its own machine."""
    files = files_in(folder)
    _alternatives(hosts)  # raises before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    write_authority(files)
    write_link_certificate(files, hosts, days)
    return files


def write_authority(files: Certificates) -> None:
    """Make an authority with a key of its own."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP384R1()), _name("fedloom authority")
    usage = {"digital_signature": False, "key_encipherment": False, "key_cert_sign": True, "crl_sign": True}
    top = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(files.authority, files.authority_key, top, key, key)


def write_link_certificate(files: Certificates, hosts: Iterable[str], days: int = LINK_DAYS) -> None:
    """Make a certificate and a key for the link, signed by the authority whose key is there."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer = load_pem_private_key(files.authority_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    usage = {"digital_signature": True, "key_encipherment": False, "key_cert_sign": False, "crl_sign": False}
    own = (
        _builder(_name("fedloom link"), _name("fedloom authority"), key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    _write(files.link, files.link_key, own, key, signer)


def _alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """The names of a link that is reached as one of `hosts` or on its own machine."""
    return [_alternative(name) for name in dict.fromkeys([*LOCAL, *hosts])]


def _name(text: str) -> x509.Name:
    """A certificate's subject or issuer."""
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    """A name or an address, which certificates distinguish."""
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(letter.isspace() or letter in "/:@" for letter in host):
        raise BadExperiment(f"host is '{host}'; expected a name such as link.example.org, or an address.")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    """An unsigned certificate without extensions."""
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(allowed: dict[str, bool]) -> x509.KeyUsage:
    """Key usage with these flags; the others are off."""
    from cryptography import x509

    return x509.KeyUsage(
        **allowed, content_commitment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _write(
    certificate: Path,
    key_file: Path,
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> None:
    """Sign a certificate, and write it and its key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate.write_bytes(builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    write_private(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def write_private(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, also while it is written."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as opened:
        opened.write(content)
