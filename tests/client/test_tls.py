"""TLS of connections to brokers: the certificate must be of a known authority, and for the name of the broker."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager

from kafkafmt._util.tls_files import TlsError
from kafkafmt.client import tls
from kafkafmt.client.client_config import parse_client_config
from kafkafmt.client.kafka_python import kafka_python_config
from kafkafmt.client.tls import check_tls_files, handshake, ssl_context
from server.security.certificates import Certificates, encrypted_key, make_certificates, revocation_list

TRUSTED, STRANGE = "127.0.0.1", "broker.example.org"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def config_of(ca: Path, **settings: str) -> dict[str, Any]:
    given = {"security.protocol": "SSL", "ssl.cafile": str(ca), **settings}
    config = parse_client_config(given, KafkaConnectionManager)
    return {**KafkaConnectionManager.DEFAULT_CONFIG, "ssl_context": None, **config}


def connect(certificates: Certificates, config: dict[str, Any], host: str) -> str | None:
    """Return the version of TLS of a connection to a server that the client takes for this host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    near, far = socket.socketpair()

    def serve() -> None:
        with far:
            try:
                context.wrap_socket(far, server_side=True).close()
            except OSError:  # the client refuses the certificate
                return

    async def shake_hands() -> str | None:
        near.setblocking(False)
        client = ssl_context(config)
        assert client is not None
        with await handshake(asyncio.get_running_loop(), client, near, host) as secured:
            return secured.version()

    server = threading.Thread(target=serve)
    server.start()
    try:
        return asyncio.run(shake_hands())
    finally:
        near.close()
        server.join()


def test_broker_when_its_certificate_is_for_its_name_then_is_connected(certificates: Certificates) -> None:
    assert connect(certificates, config_of(certificates.server_ca), TRUSTED) == "TLSv1.3"


def test_broker_when_its_certificate_is_for_another_name_then_is_refused(certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(certificates, config_of(certificates.server_ca), STRANGE)


def test_broker_when_names_are_not_compared_then_is_connected(certificates: Certificates) -> None:
    config = config_of(certificates.server_ca, **{"ssl.endpoint.identification.algorithm": ""})
    assert connect(certificates, config, STRANGE) == "TLSv1.3"


def test_broker_when_its_authority_is_unknown_then_is_refused_also_if_names_are_not_compared(
    certificates: Certificates,
) -> None:
    config = config_of(certificates.client_ca, **{"ssl.endpoint.identification.algorithm": ""})
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        connect(certificates, config, TRUSTED)


def test_context_then_takes_no_tls_before_1_2(certificates: Certificates) -> None:
    context = ssl_context(config_of(certificates.server_ca))
    assert context is not None
    near, far = socket.socketpair()
    with far, context.wrap_socket(near, server_hostname=TRUSTED, do_handshake_on_connect=False) as wrapped:
        assert wrapped.context.minimum_version == ssl.TLSVersion.TLSv1_2


def copied_authorities(source: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a copy of a file of authorities, and options with one context that has read it."""
    authorities = folder / "ca.pem"
    authorities.write_bytes(source.read_bytes())
    config = config_of(authorities)
    config["ssl_context"] = ssl_context(config)
    return authorities, config


def test_connection_when_a_file_was_replaced_then_uses_the_new_one(
    certificates: Certificates, tmp_path: Path
) -> None:
    authorities, config = copied_authorities(certificates.client_ca, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        connect(certificates, config, TRUSTED)
    authorities.write_bytes(certificates.server_ca.read_bytes())
    assert connect(certificates, config, TRUSTED) == "TLSv1.3"


def test_connection_when_a_file_was_replaced_by_an_unusable_one_then_uses_the_old_one_and_warns_once(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authorities, config = copied_authorities(certificates.server_ca, tmp_path)
    authorities.write_bytes(b"half")
    assert [connect(certificates, config, TRUSTED) for _ in range(2)] == ["TLSv1.3"] * 2
    assert caplog.messages == [
        "TLS files have changed, and cannot be used; those read before are kept: "
        f"{authorities}: no certificates in PEM form"
    ]


def test_connection_when_a_replaced_file_cannot_be_read_for_a_while_then_uses_it_later(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities, config = copied_authorities(certificates.client_ca, tmp_path)
    authorities.write_bytes(certificates.server_ca.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _too_many_open_files)
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            connect(certificates, config, TRUSTED)
    assert connect(certificates, config, TRUSTED) == "TLSv1.3"


def test_connection_when_another_thread_has_read_older_files_then_uses_the_new_ones(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread continues at each step of the one that reads the new file."""
    read, step, is_last = tls._read, 0, False
    while not is_last:
        authorities = tmp_path / f"{step}.pem"
        replace(authorities, certificates.client_ca, 1)
        context = tls.FileContext(config_of(authorities))
        has_read, may_continue = threading.Event(), threading.Event()
        other = threading.Thread(target=wrap, args=(context,))

        def read_and_wait(options: Any) -> ssl.SSLContext:
            found = read(options)
            if threading.current_thread() is other:  # noqa: B023
                has_read.set()  # noqa: B023
                may_continue.wait()  # noqa: B023
            return found

        def let_continue() -> None:
            may_continue.set()  # noqa: B023
            other.join()  # noqa: B023

        monkeypatch.setattr(tls, "_read", read_and_wait)
        replace(authorities, certificates.client_ca, 2)
        other.start()
        has_read.wait()
        replace(authorities, certificates.server_ca, 3)
        is_last = not call_at_step(step, let_continue, lambda: wrap(context))  # noqa: B023
        let_continue()
        expected = read(context._options).get_ca_certs()
        assert [wrap(context) for _ in range(2)] == [expected] * 2, step
        step += 1
    assert step > 10


def replace(path: Path, source: Path, time: int) -> None:
    path.write_bytes(source.read_bytes())
    os.utime(path, ns=(time, time))


def wrap(context: tls.FileContext) -> list[Any]:
    """Return the authorities with which a socket is made."""
    near, far = socket.socketpair()
    with far, context.wrap_socket(near, server_hostname=TRUSTED, do_handshake_on_connect=False) as wrapped:
        return wrapped.context.get_ca_certs()


def call_at_step(step: int, handler: Callable[[], None], call: Callable[[], object]) -> bool:
    """Make a call, and call `handler` before a step of it in the module. Return False if there are fewer steps."""
    left = step

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_globals.get("__name__") != tls.__name__:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                handler()
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return left < 0


def _too_many_open_files(path: str, *_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def test_ciphers_when_unknown_then_the_error_names_the_setting(certificates: Certificates) -> None:
    with pytest.raises(TlsError, match=r"^ssl.ciphers: expected names of OpenSSL, found 'NOPE'$"):
        check_tls_files({**config_of(certificates.server_ca), "ssl_ciphers": "NOPE"})


def test_password_when_a_function_then_it_is_called(certificates: Certificates, tmp_path: Path) -> None:
    encrypted = encrypted_key(certificates.client_key, "right", tmp_path / "encrypted.pem")
    config = config_of(certificates.server_ca, **{"ssl.certfile": str(certificates.client)})
    assert ssl_context({**config, "ssl_keyfile": str(encrypted), "ssl_password": lambda: "right"})


def test_password_when_longer_than_openssl_takes_then_the_error_names_the_key(
    certificates: Certificates, tmp_path: Path
) -> None:
    encrypted = encrypted_key(certificates.client_key, "right", tmp_path / "encrypted.pem")
    files = {"ssl.certfile": str(certificates.client), "ssl.keyfile": str(encrypted)}
    with pytest.raises(TlsError, match=rf"^{encrypted}: password cannot be longer than"):
        ssl_context(config_of(certificates.server_ca, **files, **{"ssl.key.password": "x" * 2000}))


def test_files_of_a_client_when_wrong_then_the_error_names_the_one_that_is(
    certificates: Certificates, tmp_path: Path
) -> None:
    encrypted = encrypted_key(certificates.client_key, "right", tmp_path / "encrypted.pem")
    found = []
    for settings in (
        {"ssl.keyfile": encrypted},
        {"ssl.keyfile": encrypted, "ssl.password": "wrong"},
        {"ssl.keyfile": certificates.server_key},
        {"ssl.keyfile": certificates.client_key, "ssl.crlfile": certificates.client_ca},
    ):
        given = {"ssl.certfile": certificates.client, **settings}
        with pytest.raises(TlsError) as raised:
            ssl_context(config_of(certificates.server_ca, **{key: str(one) for key, one in given.items()}))
        found.append(str(raised.value))
    assert found == [
        f"{encrypted}: expected a key without a password, or ssl.key.password (ssl_password), found an encrypted one",
        f"{encrypted}: the password is not that of the key",
        f"{certificates.client} and {certificates.server_key}: the key is not that of the certificate",
        f"{certificates.client_ca}: no revocation list in PEM form",
    ]


def test_key_when_encrypted_then_is_read_with_its_password(
    certificates: Certificates, tmp_path: Path
) -> None:
    encrypted = encrypted_key(certificates.client_key, "right", tmp_path / "encrypted.pem")
    files = {"ssl.certfile": str(certificates.client), "ssl.keyfile": str(encrypted)}
    assert ssl_context(config_of(certificates.server_ca, **files, **{"ssl.key.password": "right"}))


def test_certificate_of_a_broker_when_revoked_then_is_refused_by_all_clients(
    certificates: Certificates, tmp_path: Path
) -> None:
    """kafka-python's clients get the context, because kafka-python 3.0 cannot read revocation lists."""
    revocations = tmp_path / "revocations.pem"
    config = config_of(certificates.server_ca, **{"ssl.crlfile": str(revocations)})
    revocations.write_bytes(revocation_list(certificates.server_ca))
    assert connect(certificates, kafka_python_config(config), TRUSTED) == "TLSv1.3"
    revocations.write_bytes(revocation_list(certificates.server_ca, certificates.server))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        connect(certificates, config, TRUSTED)
