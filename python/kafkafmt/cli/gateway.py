"""`kafkafmt gateway`: offer a cluster to Kafka clients of any version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kafkafmt._util.sizes import GIB, MIB
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    isolation_option,
    needs,
    options,
    zstd_fallback_option,
)
from kafkafmt.cli.server_options import (
    is_wildcard,
    listening_options,
    operations_options,
    security_options,
    size_option,
    timeout_options,
    tls_options,
    users,
)
from kafkafmt.cli.values import Address, Count
from kafkafmt.server.options import ServerOptions

_conversion_options = options(
    isolation_option(
        "Which records consumers of before Kafka 0.11 get; read_committed: only those of committed transactions.",
        default="read_uncommitted",
    ),
    zstd_fallback_option(
        "Codec of zstd batches for clients without zstd support.  [default: they get an error]"
    ),
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
        help="Most connections of each process.  [default: as many as the limit of open files allows]",
    ),
)


@click.command(
    cls=HelpCommand,
    common="--listen --advertise --workers --cluster-config-file --tls-cert --tls-key --sasl-users --metrics",
    page="gateway.md",
)
@click.argument("cluster", metavar="kafka://HOST:PORT[,HOST:PORT]")
@listening_options
@client_options(
    "cluster",
    "A setting of the connections to the cluster, under Kafka's name or kafka-python's. May be repeated.",
    "A file of such settings, one a line, as for passwords.",
)
@_conversion_options
@security_options
@timeout_options
@operations_options
def gateway(
    cluster: str,
    listen: Address,
    cluster_config: tuple[tuple[str, str], ...],
    cluster_config_file: Path | None,
    isolation: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl_users: Path | None,
    sasl_mechanisms: str | None,
    **settings: Any,
) -> int:
    """Offer a Kafka cluster to clients of any version.

    \b
    kafkafmt gateway kafka://broker1:9092,broker2:9092 --listen 0.0.0.0:9192 --advertise gateway.example.org:9192

    Requests of versions that the cluster takes go through as they are. Older ones are translated: records of
    producers become batches of v2, and records for consumers are converted while they are sent, in bounded memory
    (KIP-283).

    Prints "listening on HOST:PORT" once it accepts connections. SIGTERM and SIGINT end it after responses in flight
    are sent; a second signal ends it at once. Needs pip install 'kafkafmt[serve]'.

    Exit status: 0; 2 for invalid arguments.
    """
    with needs("gateway", "serve"), cluster_errors("gateway"):
        from kafka.net.manager import KafkaConnectionManager

        from kafkafmt.client.client_config import parse_client_config
        from kafkafmt.gateway.addresses import parse_servers
        from kafkafmt.gateway.options import GatewayOptions
        from kafkafmt.gateway.running import run
        from kafkafmt.server.structured_logging import configure_logs

    if is_wildcard(listen.host) and settings["advertised"] is None:
        raise click.UsageError(f"--listen {listen} needs --advertise HOST:PORT, for clients to connect to")
    try:
        servers = parse_servers(cluster)
        config = parse_client_config(
            client_settings(cluster_config, cluster_config_file), KafkaConnectionManager
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    asked = GatewayOptions(
        host=listen.host,
        port=listen.port,
        servers=servers,
        client_config=config,
        is_committed=isolation == "read_committed",
        tls=tls_options(tls_cert, tls_key, tls_client_ca),
        users=users(sasl_users, sasl_mechanisms, None),
        **settings,
    )
    configure_logs(asked.log_format, asked.log_level)
    run(asked, lambda host, port: click.echo(f"listening on {Address(host, port)}"))
    return 0
