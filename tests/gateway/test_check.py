"""`kafkafmt gateway`: what it says of wrong options, its configuration file, and `--check`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result

from cli.logs import is_one_line, run, run_process
from endpoints.endpoint_process import EndpointProcess, gateway_process, lasting_address
from gateway.test_old_and_new import kcat

if TYPE_CHECKING:
    from broker.broker import Broker

NOWHERE = "kafka://127.0.0.1:1"
PASSWORD = "wonderland"
SASL, SASL_PLAIN = "security.protocol=SASL_SSL", "security.protocol=SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kafka://broker"], ["expected HOST:PORT", "found 'broker'"]),
        (["broker:9092"], ["expected kafka://HOST:PORT[,HOST:PORT]"]),
        ([NOWHERE, "--listen", "0.0.0.0:9092"], ["needs --advertise HOST:PORT"]),
        ([NOWHERE, "--sasl-passthrough"], ["--sasl-passthrough needs --tls-cert"]),
        ([NOWHERE, "--sasl-passthrough", "--sasl-users", "u"], ["--sasl-passthrough excludes --sasl-users"]),
        ([NOWHERE, "--cluster-identities", "i"], ["--cluster-identities needs --sasl-users"]),
        (
            [NOWHERE, "--sasl-passthrough", "--tls-cert", "c", "--tls-key", "k"],
            ["expected security.protocol=SASL_SSL of the cluster, found PLAINTEXT"],
        ),
        (
            [
                NOWHERE,
                "--sasl-passthrough",
                "--tls-cert",
                "c",
                "--tls-key",
                "k",
                "--cluster-config",
                SASL_PLAIN,
            ],
            ["--sasl-passthrough sends passwords", "found SASL_PLAINTEXT"],
        ),
        (
            [NOWHERE, "--cluster-config", f"sasl.plain.password={PASSWORD}"],
            ["others can see a command line", "--cluster-config-file"],
        ),
        (
            [NOWHERE, "--cluster-config", SASL],
            ["needs sasl.mechanism, sasl.plain.username, sasl.plain.password"],
        ),
        ([NOWHERE, "--cluster-config", "security.protocol=TLS"], ["expected one of PLAINTEXT", "found TLS"]),
        ([NOWHERE, "--cluster-config", "securty.protocol=SSL"], ["did you mean 'security.protocol'?"]),
        (["kafka://me:wonderland@broker:9092"], ["without a user", "--cluster-config-file"]),
        (
            [NOWHERE, "--cluster-config", "bootstrap.servers=a:1"],
            ["bootstrap.servers has no effect: CLUSTER has the addresses"],
        ),
        (
            [NOWHERE, "--cluster-config", "sasl.mechanism=PLAIN"],
            ["sasl.mechanism has no effect: security.protocol=PLAINTEXT has no SASL"],
        ),
        (
            [NOWHERE, "--cluster-config", "ssl.cafile=ca.pem"],
            ["ssl.cafile has no effect: security.protocol=PLAINTEXT has no TLS"],
        ),
        (
            [NOWHERE, "--cluster-config", "security.protocol=SSL", "--cluster-config", "ssl.keyfile=k"],
            ["ssl.keyfile needs ssl.certfile"],
        ),
        (
            [NOWHERE, "--cluster-config", "request.timeout.ms=-5"],
            ["request.timeout.ms: expected 1 or more milliseconds, found -5"],
        ),
        ([NOWHERE, "--idle-timeout", "nan"], ["--idle-timeout", "a number of seconds, found 'nan'"]),
        ([NOWHERE, "--write-timeout", "inf"], ["--write-timeout", "a number of seconds, found 'inf'"]),
        ([NOWHERE, "--workers", "1.5"], ["--workers", "expected a whole number, found '1.5'"]),
        ([NOWHERE, "--topics-file", "none.ini"], ["none.ini: No such file or directory"]),
        ([NOWHERE, "--config", "none.toml"], ["none.toml: No such file or directory"]),
    ],
    ids=lambda value: " ".join(value[1:3]) if value and value[0].startswith("kafka:") else "",
)
def test_value_when_wrong_then_one_line_says_what_is_expected(arguments: list[str], words: list[str]) -> None:
    result = run("gateway", *arguments, "--check")
    assert result.exit_code == 2
    assert is_one_line(result.stderr)
    assert all(word in result.stderr for word in words), result.stderr
    assert PASSWORD not in result.stderr


def test_identities_when_wrong_then_the_line_is_named_and_no_password_is_shown(tmp_path: Path) -> None:
    users, identities = tmp_path / "users.ini", tmp_path / "identities.ini"
    users.write_text(f"[alice]\npassword = {PASSWORD}\n")
    for text, message in (
        (
            f"[alice]\npasword = {PASSWORD}\n",
            "line 2: property of an identity: expected one of username, password",
        ),
        ("[alice]\nusername = a\n", "line 1: [alice] has no password"),
        (f"[alice]\npassword = {PASSWORD}\nmechanism = GSSAPI\n", "line 3: mechanism: expected one of PLAIN"),
    ):
        identities.write_text(text)
        options = ("--sasl-users", users, "--cluster-identities", identities, "--cluster-config", SASL)
        result = run("gateway", NOWHERE, *options)
        assert result.exit_code == 2
        assert message in result.stderr
        assert PASSWORD not in result.stderr


def configured(tmp_path: Path, text: str, *arguments: str) -> Result:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return run("gateway", "--config", path, "--check", *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('clustr = "kafka://a:1"', "unknown option 'clustr': did you mean 'cluster'?"),
        ("check = true", "unknown option 'check'"),
        ('workers = "many"', "workers: expected a whole number, found 'many'"),
        ("workers = [1, 2]", "workers: expected a text or a number, found a list"),
        ("workers = {a = 1}", "workers: expected a text or a number, found a table"),
        ("listen = 2026-01-01", "listen: expected a text or a number, found a date or a time"),
        ('sasl-passthrough = "yes"', "sasl-passthrough: expected true or false, found 'yes'"),
        ("workers =\nlisten", "Invalid value (at line 1, column 10)"),
    ],
)
def test_configuration_when_wrong_then_file_and_key_are_named(
    tmp_path: Path, text: str, message: str
) -> None:
    result = configured(tmp_path, text)
    assert result.exit_code == 2
    assert f"{tmp_path / 'gateway.toml'}: " in result.stderr
    assert message in result.stderr


def test_configuration_then_its_values_are_used_and_the_command_line_overrides_them(tmp_path: Path) -> None:
    text = (
        f'cluster = "{NOWHERE}"\nworkers = 3\nmax-connections = 7\nmax-downconversion-memory = "32M"\n'
        f'[cluster-config]\nsecurity.protocol = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n'
        f'sasl.plain.username = "me"\nsasl.plain.password = "{PASSWORD}"\n'
    )
    result = configured(tmp_path, text, "--workers", "2")
    assert result.exit_code == 1  # nobody is there
    assert "connections: 7 clients at most in each process (--workers 2)" in result.stdout
    assert "memory: 32M of converted records" in result.stdout
    assert PASSWORD not in result.output


@pytest.fixture
def users_gateway(broker: Broker, tmp_path: Path) -> Iterator[EndpointProcess]:
    """A gateway whose options are in a file, but for its listener."""
    path = tmp_path / "gateway.toml"
    path.write_text('isolation = "read_committed"\nadvertise = "localhost:1"\n')
    with gateway_process(broker.bootstrap, "--config", str(path)) as running:
        yield running


@pytest.mark.broker
def test_configuration_when_a_gateway_runs_then_applies(users_gateway: EndpointProcess) -> None:
    assert "localhost:1 " in kcat(users_gateway.address, None, "-L")


@pytest.mark.broker
def test_check_then_tells_brokers_releases_and_limits(broker: Broker) -> None:
    broker.create_topic("visible", 1)
    done = run_process("gateway", f"kafka://{broker.bootstrap}", "--check", "--advertise", "localhost:9192")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(re.match(r"(ok|warning|failure) +\S", line) for line in lines)
    said = "\n".join(lines)
    assert f"{broker.bootstrap}: connected (PLAINTEXT)" in said
    assert f"broker {broker.node_id} at {broker.bootstrap}: connected" in said
    assert re.search(r"^ok +topics: \d+ visible to this user$", said, re.MULTILINE)
    assert re.search(r"the cluster answers as Kafka 4\.\d", said)
    for release in ("0.8.2", "0.9.0", "0.10.0", "0.10.1"):
        assert f"clients of Kafka {release}: through the gateway only (directly refused: " in said
    assert "clients of Kafka 0.11 and 1.0: directly, too" in said
    assert "--advertise localhost:9192: resolves to 127.0.0.1" in said


def test_check_when_nobody_answers_then_fails_and_says_why() -> None:
    address = lasting_address()
    done = run_process("gateway", f"kafka://{address}", "--check", "--advertise", "nowhere.invalid:9092")
    assert done.returncode == 1
    assert re.search(rf"^failure  {address}: .*Connect call failed", done.stdout, re.MULTILINE)
    assert "warning  --advertise nowhere.invalid:9092: this machine cannot resolve it" in done.stdout


def check_nowhere(*options: object) -> str:
    """Return the report about a cluster that nobody answers for, which always fails."""
    done = run("gateway", NOWHERE, "--check", *options)
    assert done.exit_code == 1
    assert done.stderr == ""
    return done.stdout


def test_check_of_an_address_that_is_used_then_warns_as_the_gateway_may_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        report = check_nowhere("--listen", address, "--metrics", address)
    for option in ("--listen", "--metrics"):
        assert f"warning  {option} {address}: Address already in use" in report


def test_check_of_an_address_that_is_not_of_this_machine_then_fails() -> None:
    report = check_nowhere("--listen", "192.0.2.1:9192", "--metrics", "nowhere.invalid:9308")
    assert "failure  --listen 192.0.2.1:9192: Cannot assign requested address" in report
    assert re.search(r"^failure  --metrics nowhere.invalid:9308: ", report, re.MULTILINE)


def test_check_of_users_then_tells_who_cannot_connect(tmp_path: Path) -> None:
    users, identities, empty = (tmp_path / name for name in ("users.ini", "identities.ini", "empty.ini"))
    users.write_text(f"[alice]\npassword = {PASSWORD}\n[carol]\npassword = {PASSWORD}\n")
    identities.write_text(f"[alice]\npassword = {PASSWORD}\n")
    empty.touch()

    report = check_nowhere(
        "--sasl-users", users, "--cluster-identities", identities, "--cluster-config", SASL
    )

    assert (
        f"warning  --cluster-identities {identities}: users without a section cannot connect: carol" in report
    )
    assert f"failure  --sasl-users {empty}: it has no user" in check_nowhere("--sasl-users", empty)


def test_check_when_a_name_has_control_characters_then_a_terminal_does_not_obey_them(tmp_path: Path) -> None:
    """Brokers choose names and messages in the report, too."""
    users, identities = tmp_path / "users.ini", tmp_path / "identities.ini"
    users.write_text(f"[ca\x1b[2Jrol]\npassword = {PASSWORD}\n")
    identities.write_text(f"[alice]\npassword = {PASSWORD}\n")
    report = check_nowhere(
        "--sasl-users", users, "--cluster-identities", identities, "--cluster-config", SASL
    )
    assert all(line.isprintable() for line in report.splitlines())
    assert r"cannot connect: ca\x1b[2Jrol" in report


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL"])
def test_check_with_another_security_protocol_than_the_cluster_then_asks_about_it(
    broker: Broker, tmp_path: Path, protocol: str
) -> None:
    settings = tmp_path / "cluster.properties"
    credentials = f"sasl.mechanism=PLAIN\nsasl.plain.username=me\nsasl.plain.password={PASSWORD}\n"
    settings.write_text(f"security.protocol={protocol}\n{credentials if protocol.startswith('SASL') else ''}")
    done = run_process("gateway", f"kafka://{broker.bootstrap}", "--check", "--cluster-config-file", settings)
    assert done.returncode == 1
    assert re.search(r"^failure .*\(is security.protocol right\?\)$", done.stdout, re.MULTILINE), done.stdout
