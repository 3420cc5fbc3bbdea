"""`kafkafmt gateway`: offer a cluster to Kafka clients of any version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt._util.sizes import GIB, MIB
from kafkafmt.cli.config_file import config_file, config_option
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    isolation_option,
    options,
    zstd_fallback_option,
)
from kafkafmt.cli.output import echo
from kafkafmt.cli.server_options import (
    connections_per_ip_option,
    downconversion_codec_option,
    is_wildcard,
    listening_options,
    operations_options,
    security_options,
    security_warnings,
    size_option,
    timeout_options,
    tls_options,
    users,
)
from kafkafmt.cli.values import FILE, Address, Count
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.security.users import UncheckedUsers

if TYPE_CHECKING:
    from kafkafmt.gateway.broker_ports import BrokerPorts
    from kafkafmt.gateway.options import GatewayOptions

_starting_options = options(
    config_option(),
    click.option(
        "--check",
        "is_check",
        is_flag=True,
        help="Only connect to the cluster, and print what would work. Exit status 1 if something would not.",
    ),
)
_per_broker_option = click.option(
    "--listener-per-broker",
    "broker_ports",
    metavar="FIRST-LAST",
    help="Ports that stand for one broker each: FIRST plus the node id, modulo the number of ports.",
)
_conversion_options = options(
    click.option(
        "--topics-file",
        type=FILE,
        help="INI file with message.downconversion.enable of topics. Changes to it apply at once.",
    ),
    isolation_option(
        "Which records consumers of before Kafka 0.11 get; read_committed: only those of committed transactions.",
        default="read_uncommitted",
    ),
    zstd_fallback_option(
        "Codec of zstd batches that are converted for consumers of before Kafka 0.11.  [default: they get an error]"
    ),
    downconversion_codec_option,
    size_option(
        ServerOptions,
        "--max-downconversion-memory",
        "max_downconversion_bytes",
        64 * GIB,
        "Limit for converted chunks in memory, over all connections and workers.",
    ),
    size_option(ServerOptions, "--chunk-size", "chunk_bytes", GIB, "Bytes converted at a time."),
    size_option(ServerOptions, "--max-produce-size", "max_produce_bytes", GIB, "Largest Produce request."),
    size_option(
        ServerOptions,
        "--max-produce-memory",
        "max_produce_memory_bytes",
        64 * GIB,
        "Limit for requests and responses in memory, over all connections of a process; small ones do not count.",
    ),
    size_option(
        ServerOptions,
        "--max-request-size",
        "max_request_bytes",
        100 * MIB,
        "Largest request, except Produce.",
    ),
    click.option(
        "--max-connections",
        type=Count(),
        help="Most clients of each process.  [default: a third of what the limit of open files allows]",
    ),
    connections_per_ip_option,
)
_identity_options = options(
    security_options,
    click.option(
        "--sasl-passthrough",
        is_flag=True,
        help="Authenticate at the cluster with each client's own name and password (PLAIN, over TLS).",
    ),
    click.option(
        "--cluster-identities",
        type=FILE,
        help="File with the name and password at the cluster for each user.  [default: one for all]",
    ),
)


@dataclass(frozen=True)
class _Security:
    """The options of security, as they are on the command line."""

    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    sasl_users: Path | None
    sasl_mechanisms: str | None
    sasl_passthrough: bool
    cluster_identities: Path | None
    cluster_config_file: Path | None

    def ensure_consistent(self) -> None:
        """Raise click.UsageError for options that exclude each other, or need another one."""
        if self.sasl_passthrough:
            for name, value in {
                "--sasl-users": self.sasl_users,
                "--sasl-mechanisms": self.sasl_mechanisms,
                "--cluster-identities": self.cluster_identities,
            }.items():
                if value is not None:
                    raise click.UsageError(f"--sasl-passthrough excludes {name}: the cluster knows the users")
            if self.tls_cert is None:
                raise click.UsageError(
                    "--sasl-passthrough needs --tls-cert and --tls-key: it sends passwords"
                )
        elif self.cluster_identities is not None and self.sasl_users is None:
            raise click.UsageError("--cluster-identities needs --sasl-users, which tells users apart")

    @property
    def has_own_identity(self) -> bool:
        """Whether the gateway authenticates at the cluster as itself."""
        return not self.sasl_passthrough and self.cluster_identities is None

    def fields(self) -> dict[str, Any]:
        """Return the fields of GatewayOptions that are about security. Raises IniError and OSError."""
        from kafkafmt.gateway.identities import read_identities

        identities = self.cluster_identities
        checked = users(self.sasl_users, self.sasl_mechanisms, None)
        return {
            "tls": tls_options(self.tls_cert, self.tls_key, self.tls_client_ca),
            "users": UncheckedUsers() if self.sasl_passthrough else checked,
            "passes_credentials": self.sasl_passthrough,
            "identities": None if identities is None else read_identities(identities),
        }


@click.command(
    cls=HelpCommand,
    common="--listen --advertise --cluster-config-file --tls-cert --tls-key --sasl-users --metrics --config --check",
    page="gateway.md",
)
@click.argument("cluster", metavar="CLUSTER")
@_starting_options
@listening_options
@_per_broker_option
@client_options(
    "cluster",
    "A setting of the connections to the cluster, under Kafka's name or kafka-python's. May be repeated.",
    "File of settings of the connections to the cluster, a KEY=VALUE a line: security, passwords.",
)
@_conversion_options
@_identity_options
@timeout_options
@operations_options
def gateway(
    cluster: str,
    is_check: bool,
    listen: Address,
    broker_ports: str | None,
    cluster_config: tuple[tuple[str, str], ...],
    cluster_config_file: Path | None,
    topics_file: Path | None,
    isolation: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl_users: Path | None,
    sasl_mechanisms: str | None,
    sasl_passthrough: bool,
    cluster_identities: Path | None,
    **settings: Any,
) -> int:
    """Offer a Kafka cluster to clients of any version.

    \b
    kafkafmt gateway kafka://broker1:9092,broker2:9092 --check
    kafkafmt gateway kafka://broker1:9092,broker2:9092 \\
        --listen 0.0.0.0:9192 --advertise gateway.example.org:9192

    Requests of versions that the cluster takes go through as they are. Older ones are translated: records of
    producers become batches of v2, and records for consumers are converted while they are sent, in bounded memory
    (KIP-283).

    Prints "listening on HOST:PORT" once it accepts connections. Every client that reaches the port may connect,
    unless --tls-client-ca, --sasl-users or --sasl-passthrough is given.

    \b
    A users file has a section for each user.      A file of identities says who they are at the cluster:
        [alice]                                        [alice]
        password = wonderland                          username = alice-upstream
                                                       password = looking-glass

    Passwords for the cluster belong into --cluster-config-file or --config: others can see a command line. A file of
    --config has the names of the options as keys, and CLUSTER as `cluster`.

    SIGTERM and SIGINT end it after responses in flight are sent; a second signal ends it at once. SIGHUP reads the
    certificates, and the files of users, identities and topics again. Needs pip install 'kafkafmt[serve]'.

    Exit status: 0; 1 if --check found a problem; 2 for invalid arguments.
    """
    with cluster_errors("gateway", extra="serve"):
        from kafkafmt.gateway.options import GatewayOptions

    if is_wildcard(listen.host) and settings["advertised"] is None:
        raise click.UsageError(f"--listen {listen} needs --advertise HOST:PORT, for clients to connect to")
    security = _Security(
        tls_cert,
        tls_key,
        tls_client_ca,
        sasl_users,
        sasl_mechanisms,
        sasl_passthrough,
        cluster_identities,
        cluster_config_file,
    )
    security.ensure_consistent()
    asked = GatewayOptions(
        host=listen.host,
        port=listen.port,
        is_committed=isolation == "read_committed",
        topics_file=_topics_file(topics_file),
        broker_ports=_broker_ports(broker_ports, listen.port),
        **_cluster(cluster, cluster_config, security),
        **security.fields(),
        **settings,
    )
    return _check(asked) if is_check else _run(asked, security)


def _cluster(uri: str, settings: tuple[tuple[str, str], ...], security: _Security) -> dict[str, Any]:
    """Return the fields of GatewayOptions about the cluster. Raises click.UsageError."""
    from kafka.net.manager import KafkaConnectionManager

    from kafkafmt.client.client_config import parse_client_config
    from kafkafmt.gateway.addresses import parse_servers
    from kafkafmt.gateway.cluster_config import check_identities, check_passthrough, check_settings

    try:
        given: Mapping[str, str] = client_settings(settings, security.cluster_config_file)
        config = parse_client_config(given, KafkaConnectionManager, has_identity=security.has_own_identity)
        if not security.has_own_identity:
            check_identities(config)
        if security.sasl_passthrough:
            check_passthrough(config)
        check_settings(config)
        return {"servers": parse_servers(uri), "client_config": config}
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _broker_ports(text: str | None, port: int) -> BrokerPorts | None:
    """Return the ports for one broker each. Raises click.UsageError. port: the one for all brokers."""
    from kafkafmt.gateway.broker_ports import BrokerPorts

    if text is None:
        return None
    try:
        ports = BrokerPorts.parse(text)
    except ValueError as error:
        raise click.UsageError(f"--listener-per-broker: {error}") from None
    if port in ports.all:
        raise click.UsageError(f"--listener-per-broker {ports} has the port of --listen")
    return ports


def _topics_file(path: Path | None) -> Any:
    from kafkafmt.gateway.down_conversion import PROPERTIES
    from kafkafmt.server.topics_file import read_topics_file

    return None if path is None else read_topics_file(path, PROPERTIES)


def _check(asked: GatewayOptions) -> int:
    """Print what would work. Returns the exit status."""
    import asyncio

    from kafkafmt._util.descriptors import raise_limit
    from kafkafmt._util.visible import visible
    from kafkafmt.gateway.checking import check
    from kafkafmt.server.structured_logging import configure_logs

    configure_logs(asked.log_format, "error")  # the report has what failed
    raise_limit()  # as `run` does
    is_good = asyncio.run(check(asked, lambda line: echo(visible(line))))  # brokers choose some of it
    return 0 if is_good else 1


def _run(asked: GatewayOptions, security: _Security) -> int:
    """Run the gateway until a signal ends it. Returns the exit status."""
    import structlog

    from kafkafmt.client.client_config import Secret
    from kafkafmt.gateway.running import run
    from kafkafmt.server.structured_logging import configure_logs

    configure_logs(asked.log_format, asked.log_level)
    secrets = [security.sasl_users, security.cluster_identities]
    if any(isinstance(value, Secret) for value in asked.client_config.values()):
        secrets += [security.cluster_config_file, config_file(click.get_current_context())]
    if asked.client_config.get("ssl_keyfile"):
        secrets.append(Path(asked.client_config["ssl_keyfile"]))

    def on_listening(host: str, port: int) -> None:
        echo(f"listening on {Address(host, port)}")
        for event, about in security_warnings(asked, "use the cluster as the gateway does", secrets):
            structlog.get_logger().warning(event, **about)

    run(asked, on_listening)
    return 0
