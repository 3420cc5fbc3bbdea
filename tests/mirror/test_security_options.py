"""Settings of security that are wrong end a command before it connects: no password is sent in plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.logs import is_one_line, run
from endpoints.endpoint_process import EndpointProcess
from mirror.folders import batch, put_log
from server.security.certificates import make_certificates, revocation_list

NOWHERE = "kafka://127.0.0.1:1/t"
SASL = "sasl.mechanism=PLAIN\nsasl.plain.username=me\nsasl.plain.password=secret\n"


@pytest.mark.parametrize("command", ["mirror", "replay", "backup", "export"])
def test_security_protocol_when_unknown_then_the_command_ends_before_it_connects(
    tmp_path: Path, command: str
) -> None:
    settings = tmp_path / "cl.conf"
    settings.write_text(f"security.protocol=SASL_SLL\n{SASL}")
    cluster = "kafka://127.0.0.1:1" if command == "backup" else NOWHERE
    result = run(command, cluster, tmp_path / "copy", "--source-config-file", settings)
    assert result.exit_code == 2
    assert is_one_line(
        result.stderr, ["security.protocol: expected one of PLAINTEXT, SSL,", "found SASL_SLL"]
    )


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_trust_store_when_unusable_then_the_error_names_its_file(tmp_path: Path, text: str | None) -> None:
    store, settings = tmp_path / "ca.pem", tmp_path / "cl.conf"
    if text is not None:
        store.write_text(text)
    settings.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={store}\n")
    put_log(tmp_path / "source" / "t-0", [batch(0, 1)])
    reason = "No such file or directory" if text is None else "no certificates in PEM form"
    for command in (
        ("mirror", NOWHERE, tmp_path / "copy", "--source-config-file", settings),
        ("replay", NOWHERE, tmp_path / "copy", "--source-config-file", settings),
    ):
        result = run(*command)
        assert result.exit_code == 2
        assert is_one_line(result.stderr, [f"{store}: ", reason])


@pytest.mark.clients
@pytest.mark.parametrize("is_trusted", [True, False])
def test_connection_when_refused_then_the_error_names_the_credentials_or_the_certificate(
    tmp_path: Path, is_trusted: bool
) -> None:
    put_log(tmp_path / "logs" / "t-0", [batch(0, 1)])
    users, settings = tmp_path / "users.ini", tmp_path / "cl.conf"
    users.write_text("[me]\npassword = right\n")
    certificates = make_certificates(tmp_path)
    trusted = certificates.server_ca if is_trusted else certificates.client_ca
    settings.write_text(f"security.protocol=SASL_SSL\n{SASL}ssl.cafile={trusted}\n")
    options = ("--sasl-users", users, "--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    with EndpointProcess(tmp_path / "logs", *map(str, options), log=tmp_path / "log") as running:
        address = f"kafka://{running.address}/t"
        result = run("mirror", address, tmp_path / "copy", "--once", "--source-config-file", settings)
    assert result.exit_code == 2
    reason = "the broker refuses the credentials" if is_trusted else "the broker's certificate is not trusted"
    assert is_one_line(result.stderr, [f"{address}: {reason} ("])


@pytest.mark.clients
def test_mirror_when_its_user_has_a_comma_and_revocations_are_checked_then_copies(tmp_path: Path) -> None:
    """Admin clients and consumers of kafka-python are used, and connections of our own."""
    put_log(tmp_path / "logs" / "t-0", [batch(0, 1)])
    users, settings, revocations = (tmp_path / name for name in ("users.ini", "cl.conf", "crl.pem"))
    users.write_text("[a,b=c]\npassword = right\n")
    certificates = make_certificates(tmp_path)
    revocations.write_bytes(revocation_list(certificates.server_ca))
    settings.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=scram-sha-256\nsasl.plain.username=a,b=c\n"
        f"sasl.plain.password=right\nssl.cafile={certificates.server_ca}\nssl.crlfile={revocations}\n"
    )
    options = ("--sasl-users", users, "--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    with EndpointProcess(tmp_path / "logs", *map(str, options), log=tmp_path / "log") as running:
        address = f"kafka://{running.address}/t"
        result = run("mirror", address, tmp_path / "copy", "--once", "--source-config-file", settings)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "copy" / "t-0").is_dir()
