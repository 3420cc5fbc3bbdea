"""SIGHUP: the files of topics, users and certificates are read again, all of them or none."""

from __future__ import annotations

import signal
import ssl
import time
from pathlib import Path

import pytest
from kafka.errors import UnsupportedVersionError
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from cli.logs import write_log
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import SECONDS, RawClient
from endpoints.requests import Wanted, fetch
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from server.security.certificates import make_certificates

pytestmark = pytest.mark.slow

OLD = 3  # a version of Fetch whose consumers do not know v2
ENABLE = "message.downconversion.enable"
REFUSED = UnsupportedVersionError.errno
READ, KEPT = "the configuration was read again", "the configuration cannot be read again and stays as it was"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs" / "orders-0").parent


def fetched(served: LoggedEndpoint) -> int:
    """The error code of a fetch of an old consumer."""
    with RawClient((served.host, served.port)) as client:
        (topic,) = client.ask(fetch(Wanted("orders")), OLD).responses
        return int(topic.partitions[0].error_code)


def hang_up(served: LoggedEndpoint, workers: int) -> None:
    """Send SIGHUP, and wait until all processes have read the files."""
    served.send_signal(signal.SIGHUP)
    waiting = {None} if workers == 1 else {None, *range(workers)}
    while waiting:
        waiting.discard(served.event(READ).get("worker"))


def wait_for(served: LoggedEndpoint, code: int) -> None:
    """Wait until several fetches have this code: the file is watched, too, so an event may be of an earlier reading."""
    deadline = time.monotonic() + SECONDS
    while (found := {fetched(served) for _ in range(4)}) != {code}:
        assert time.monotonic() < deadline, found


@pytest.mark.parametrize("workers", [1, 2])
def test_topics_file_when_it_changes_then_sighup_has_it_read_again_and_a_wrong_one_changes_nothing(
    logs: Path, tmp_path: Path, workers: int
) -> None:
    file = tmp_path / "topics"
    file.write_text(f"[orders]\n{ENABLE} = false\n")
    with LoggedEndpoint(logs, "--topics-file", file, "--workers", workers) as served:
        assert {fetched(served) for _ in range(4)} == {REFUSED}
        file.write_text(f"[orders]\n{ENABLE} = true\n")
        hang_up(served, workers)
        wait_for(served, 0)

        file.write_text(f"[orders]\n{ENABLE} = maybe\n")
        served.send_signal(signal.SIGHUP)
        assert served.event(KEPT)["error"].startswith(f"{file}, line 2: {ENABLE}: expected true or false")
        assert {fetched(served) for _ in range(4)} == {0}

        file.write_text(f"[orders]\n{ENABLE} = false\n")
        hang_up(served, workers)
        wait_for(served, REFUSED)
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0


def test_topics_ini_when_it_is_wrong_then_sighup_says_so_and_it_stays_as_it_was(logs: Path) -> None:
    set_topic_config(logs, "orders", TopicConfig(1, {ENABLE: "false"}))
    with LoggedEndpoint(logs) as served:
        assert fetched(served) == REFUSED
        (logs / "topics.ini").write_text("what is this")
        served.send_signal(signal.SIGHUP)
        assert "topics.ini, line 1" in served.event(KEPT)["error"]
        assert fetched(served) == REFUSED


def authenticates(served: LoggedEndpoint, name: str) -> bool:
    with RawClient((served.host, served.port)) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0{name}\0{name}".encode()
        return bool(client.ask(SaslAuthenticateRequest(auth_bytes=token), 1).error_code == 0)


def test_users_when_they_change_then_sighup_lets_the_new_ones_in_and_the_old_ones_no_more(
    logs: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text("[alice]\npassword = alice\n")
    users.chmod(0o600)
    with LoggedEndpoint(logs, "--sasl-users", users, "--sasl-mechanisms", "PLAIN") as served:
        assert (authenticates(served, "alice"), authenticates(served, "bob")) == (True, False)
        users.write_text("[bob]\npassword = bob\n")
        hang_up(served, 1)
        assert (authenticates(served, "alice"), authenticates(served, "bob")) == (False, True)


def test_certificate_when_it_changes_then_sighup_has_it_shown_to_new_clients(
    logs: Path, tmp_path: Path
) -> None:
    first, second = (make_certificates(made_folder(tmp_path / name)) for name in ("first", "second"))

    def is_trusted(served: LoggedEndpoint, authority: Path) -> bool:
        context = ssl.create_default_context(cafile=str(authority))
        with RawClient((served.host, served.port)) as client:
            try:
                context.wrap_socket(client.socket, server_hostname=served.host).close()
            except ssl.SSLCertVerificationError:
                return False
            return True

    with LoggedEndpoint(logs, "--tls-cert", first.server, "--tls-key", first.server_key) as served:
        first.server.write_text("no certificate")
        served.send_signal(signal.SIGHUP)
        assert str(first.server) in served.event(KEPT)["error"]
        assert is_trusted(served, first.server_ca)
        for old, new in ((first.server, second.server), (first.server_key, second.server_key)):
            old.write_bytes(new.read_bytes())
        hang_up(served, 1)
        assert (is_trusted(served, first.server_ca), is_trusted(served, second.server_ca)) == (False, True)


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path
