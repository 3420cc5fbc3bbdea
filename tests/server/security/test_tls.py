"""The listener's TLS: which clients it takes, and what is said of files that are wrong."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from kafkafmt._util.tls_files import TlsError
from kafkafmt.server.options import TlsOptions
from kafkafmt.server.security.tls import tls_context
from server.security.certificates import Certificates, encrypted_key, make_certificates, revocation_list


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def connect(options: TlsOptions, client: ssl.SSLContext) -> str | None:
    """The TLS version that listener and client agree on. Raises what the client's side or the listener's does."""
    near, far = socket.socketpair()
    errors: list[Exception] = []

    def listen() -> None:
        try:
            with tls_context(options).wrap_socket(far, server_side=True) as accepted:
                accepted.sendall(b"x")
        except OSError as error:
            errors.append(error)
            far.close()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        with client.wrap_socket(near, server_hostname="127.0.0.1") as connected:
            connected.recv(1)  # only now a client of TLS 1.3 hears that its certificate is wanting
            return connected.version()
    finally:
        listener.join()
        if errors:
            raise errors[0]


@pytest.fixture
def client(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.server_ca)


def test_client_that_trusts_the_authority_then_is_served(
    certificates: Certificates, client: ssl.SSLContext
) -> None:
    assert connect(TlsOptions(certificates.server, certificates.server_key), client) == "TLSv1.3"


def test_client_of_tls_1_2_then_is_served_but_none_before(
    certificates: Certificates, client: ssl.SSLContext
) -> None:
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_2
    options = TlsOptions(certificates.server, certificates.server_key)
    assert connect(options, client) == "TLSv1.2"
    assert tls_context(options).minimum_version == ssl.TLSVersion.TLSv1_2


def test_client_certificate_when_asked_for_then_only_clients_that_show_one_are_served(
    certificates: Certificates, client: ssl.SSLContext
) -> None:
    options = TlsOptions(certificates.server, certificates.server_key, certificates.client_ca)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        connect(options, client)
    client.load_cert_chain(certificates.server, certificates.server_key)
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(options, client)
    client.load_cert_chain(certificates.client, certificates.client_key)
    assert connect(options, client) == "TLSv1.3"


def test_client_certificate_when_revoked_by_a_list_beside_its_authority_then_is_refused(
    certificates: Certificates, client: ssl.SSLContext, tmp_path: Path
) -> None:
    client.load_cert_chain(certificates.client, certificates.client_key)
    authority = tmp_path / "ca.pem"
    options = TlsOptions(certificates.server, certificates.server_key, authority)
    ca = certificates.client_ca
    authority.write_bytes(ca.read_bytes() + revocation_list(ca))
    assert connect(options, client) == "TLSv1.3"
    authority.write_bytes(ca.read_bytes() + revocation_list(ca, certificates.client))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        connect(options, client)


def test_files_when_wrong_then_the_error_names_them(certificates: Certificates, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    encrypted = encrypted_key(certificates.server_key, "x", tmp_path / "encrypted.pem")
    revocations = tmp_path / "revocations.pem"
    revocations.write_bytes(revocation_list(certificates.client_ca))
    found = {}
    for name, options in {
        "text": TlsOptions(text, certificates.server_key),
        "other key": TlsOptions(certificates.server, certificates.client_key),
        "encrypted": TlsOptions(certificates.server, encrypted),
        "authority": TlsOptions(certificates.server, certificates.server_key, text),
        "revocations only": TlsOptions(certificates.server, certificates.server_key, revocations),
    }.items():
        with pytest.raises(TlsError) as raised:
            tls_context(options)
        found[name] = str(raised.value)
    assert found == {
        "text": f"{text} and {certificates.server_key}: no certificate and key in PEM form",
        "other key": f"{certificates.server} and {certificates.client_key}: "
        "the key is not that of the certificate",
        "encrypted": f"{encrypted}: expected a key without a passphrase, found an encrypted one",
        "authority": f"{text}: no certificates in PEM form",
        "revocations only": f"{revocations}: no certificates in PEM form",
    }


def test_file_when_missing_then_the_error_names_it(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        tls_context(TlsOptions(certificates.server, tmp_path / "missing.pem"))
    assert raised.value.filename == str(tmp_path / "missing.pem")
