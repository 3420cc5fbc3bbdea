"""Passwords of clients are in no line that a command writes, at whatever level it logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.logs import run
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.cli.options import client_options
from kafkafmt.client.client_config import parse_client_config
from kafkafmt.mirror.addresses import ClusterAddress, parse_address
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.net import Producer
from kafkafmt.restore.options import RestoreOptions
from mirror.folders import batches, mirror, put_log
from mirror.running import Mirror, address

PASSWORD = "hunter2-and-more"
USERS = f"[mirror]\npassword = {PASSWORD}\n"

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("secrets")]  # which share an endpoint


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an endpoint, and its log."""
    folder = tmp_path_factory.mktemp("west")
    put_log(folder / "logs" / "s-0", batches(0, 100))
    users = folder / "users.ini"
    users.write_text(USERS)
    options = ("--allow-produce", "--sasl-users", str(users), "--log-level", "debug")
    with EndpointProcess(folder / "logs", *options, log=folder / "west.log") as running:
        yield running.address, folder / "west.log"


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("password", [PASSWORD, PASSWORD + "-wrong"], ids=["right", "wrong"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_debug_log_when_clients_have_a_password_then_does_not_tell_it(
    west: tuple[str, Path], tmp_path: Path, mechanism: str, password: str, side: str
) -> None:
    server, its_log = west
    put_log(tmp_path / "source" / f"{mechanism}-0", batches(0, 100))
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "mirror",
        "sasl_plain_password": password,
    }
    file = tmp_path / "settings"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    options = (f"--{side}-config-file", str(file))
    places = (
        (address(server, "s"), tmp_path / "copy")
        if side == "source"
        else (tmp_path / "source", address(server))
    )
    log = tmp_path / "mirror.log"
    with Mirror(*places, "--once", *options, "--log-level", "debug", log=log) as running:
        summary = running.summary(status=0 if password == PASSWORD else 2)
    assert summary.get("records") == (100 if password == PASSWORD else None)
    for said in (running.said, its_log.read_text()):
        assert said
        assert PASSWORD not in said


@pytest.mark.parametrize(
    "setting",
    [
        f"sasl.plain.password={PASSWORD}",
        f'sasl.jaas.config=...PlainLoginModule required username="a" password="{PASSWORD}";',
        f"ssl_password={PASSWORD}",
        f"s3.secret-access-key={PASSWORD}",
        f"azure_storage_account_key={PASSWORD}",
        f"credential=mirror:{PASSWORD}",
        f"uri=postgresql://mirror:{PASSWORD}@localhost/catalog",
        f"socks5_proxy=socks5://mirror:{PASSWORD}@localhost:1080",
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("mirror", "kafka://127.0.0.1:1/t", "copy", "--source-config"),
        ("mirror", "source", "kafka://127.0.0.1:1", "--target-config"),
        ("backup", "kafka://127.0.0.1:1", "copy", "--source-config"),
        ("restore", "source", "kafka://127.0.0.1:1", "--target-config"),
        ("replay", "source", "kafka://127.0.0.1:1", "--target-config"),
        ("table", "kafka://127.0.0.1:1/t", "copy", "--source-config"),
        ("export", "source", "copy", "--format", "delta", "--destination-config"),
        ("gateway", "kafka://127.0.0.1:1", "--cluster-config"),
    ],
    ids=" ".join,
)
def test_setting_when_it_is_a_secret_on_the_command_line_then_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    ended = run(*command, setting)
    assert ended.exit_code == 2
    name = setting.partition("=")[0]
    expected = f"{command[-1]} {name}=...: others can see a command line; use {command[-1]}-file"
    assert expected in ended.stderr
    assert PASSWORD not in ended.stderr


def test_proxy_when_it_has_no_password_then_is_accepted_on_the_command_line() -> None:
    @click.command()
    @client_options("cluster", "", "")
    def shows(cluster_config: object, cluster_config_file: object) -> None:
        click.echo(cluster_config)

    ended = CliRunner().invoke(shows, ["--cluster-config", "proxy_url=socks5://127.0.0.1:1"])
    assert ended.output == "(('proxy_url', 'socks5://127.0.0.1:1'),)\n"


def test_url_of_a_registry_when_it_has_a_password_then_is_refused(tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    registry = f"http://reader:{PASSWORD}@127.0.0.1:1"
    ended = run("inspect", tmp_path / "source", "--records", "--value-format", "avro", "--schemas", registry)
    assert ended.exit_code == 2
    assert "others can see a command line; --schemas-config-file" in ended.stderr
    assert PASSWORD not in ended.stderr


@pytest.mark.parametrize(
    "setting", [f"sasl_plain_password:{PASSWORD}", f"={PASSWORD}", f"sasl_plain_pasword={PASSWORD}"]
)
@pytest.mark.parametrize("option", ["--source-config", "--target-config", "--target-config-file"])
def test_setting_when_it_is_malformed_then_is_not_told(tmp_path: Path, setting: str, option: str) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    value = setting
    if option.endswith("file"):
        (tmp_path / "settings").write_text(f"# of the target\n{setting}\n")
        value = str(tmp_path / "settings")
    source = "kafka://127.0.0.1:1/t" if option == "--source-config" else tmp_path / "source"
    ended = mirror(source, "kafka://127.0.0.1:1", option, value)
    assert ended.status == 2
    assert ended.errors.count("\n") == 1
    assert PASSWORD not in ended.errors


def test_repr_of_what_holds_a_password_does_not_show_it() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="mirror" password="{PASSWORD}";'
    )
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    for given in (
        {**sasl, "sasl.jaas.config": jaas},
        {**sasl, "sasl_plain_username": "mirror", "sasl_plain_password": PASSWORD},
        {"security.protocol": "SSL", "ssl.key.password": PASSWORD},
    ):
        config = parse_client_config(given, Producer)
        assert PASSWORD in config.values()
        assert PASSWORD not in f"{config!r} {config}"
        options = MirrorOptions(
            parse_address("kafka://east:9092"), parse_address("kafka://west:9092"), target_config=given
        )
        assert PASSWORD not in repr(options)
    restored = RestoreOptions(f"s3://key:{PASSWORD}@bucket/backup", ClusterAddress("west:9092"))
    assert PASSWORD not in repr(restored)
