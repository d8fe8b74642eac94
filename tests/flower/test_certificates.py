"""An authority, a link's certificate and nodes' keys: TLS accepts the right ones and refuses the wrong ones."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.certificates import Certificates, write_certificates
from fedloom.flower.deploy.keys import write_key


def shake_hands(link: Certificates, authority: Path, name: str) -> str:
    """The protocol of a TLS handshake with a link of that certificate."""
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(link.link, link.link_key)
    there = ssl.create_default_context(cafile=str(authority))
    one, other = socket.socketpair()

    def serve() -> None:
        try:
            with here.wrap_socket(one, server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError:
            pass  # the other side raises

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with other, there.wrap_socket(other, server_hostname=name) as wrapped:
            return str(wrapped.version())
    finally:
        one.close()
        thread.join(10)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "link.example.org", "10.0.0.7"])
def test_the_link_is_known_by_its_names(tmp_path, name):
    files = write_certificates(tmp_path, ["link.example.org", "10.0.0.7"])
    assert shake_hands(files, files.authority, name) == "TLSv1.3"


def test_other_authorities_are_refused(tmp_path):
    files, others = write_certificates(tmp_path / "one"), write_certificates(tmp_path / "two")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(files, others.authority, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        shake_hands(files, files.authority, "other.example.org")


def test_an_expired_certificate_is_refused(tmp_path):
    files = write_certificates(tmp_path, days=0)  # its last moment is now
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(files, files.authority, "localhost")


def test_only_the_owner_can_read_secrets(tmp_path):
    files, key = write_certificates(tmp_path), write_key(tmp_path, "node-0")
    for secret in (files.authority_key, files.link_key, key.private):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert (
        not x509.load_pem_x509_certificate(files.link.read_bytes())
        .extensions.get_extension_for_class(x509.BasicConstraints)
        .value.ca
    )


def test_keys_are_what_flower_reads(tmp_path):
    one, other = (write_key(tmp_path, f"node-{number}") for number in range(2))
    private = load_ssh_private_key(one.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert load_ssh_public_key(one.public.read_bytes()) == private.public_key()
    assert load_ssh_public_key(other.public.read_bytes()) != private.public_key()
    with pytest.raises(FileExistsError):  # an identity is never overwritten
        write_key(tmp_path, "node-0")


@pytest.mark.parametrize("host", ["", "https://link", "link:8000", "two words"])
def test_a_host_is_a_name_or_an_address(tmp_path, host):
    with pytest.raises(BadExperiment, match="host is"):
        write_certificates(tmp_path, [host])
