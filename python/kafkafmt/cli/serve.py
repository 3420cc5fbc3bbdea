"""`kafkafmt serve`: a log directory over Kafka's wire protocol."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kafkafmt.cli.log_start import from_segment_start_option
from kafkafmt.cli.values import Address, AddressType, Size
from kafkafmt.ini import IniError
from kafkafmt.serve.options import DEFAULT_HOST, DEFAULT_PORT, GIB, MIB, ServeOptions, TlsOptions
from kafkafmt.serve.security.users import MECHANISMS, Users, read_users
from kafkafmt.serve.topics_file import read_topics_file
from kafkafmt.sizes import size_text
from kafkafmt.types import Codec

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)
_SECONDS = click.FloatRange(min=0, min_open=True)
_MOST_MEMORY_BYTES = 1024 * GIB


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator; `--help` shows them in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _size_option(name: str, setting: str, maximum: int, help_text: str) -> Callable[[_Command], _Command]:
    """An option for a size of ServeOptions, whose default is shown with a unit."""
    default = getattr(ServeOptions, setting)
    return click.option(
        name,
        setting,
        type=Size(maximum),
        default=default,
        metavar="SIZE",
        help=f"{help_text}  [default: {size_text(default)}]",
    )


# The names of parameters are those of ServeOptions where the values are what it takes.
_network_options = _options(
    click.option(
        "--listen",
        type=AddressType(least_port=0),
        default=str(Address(DEFAULT_HOST, DEFAULT_PORT)),
        metavar="HOST:PORT",
        show_default=True,
        help="Where to listen; port 0: any that is free.",
    ),
    click.option(
        "--advertise",
        "advertised",
        type=AddressType(least_port=1),
        metavar="HOST:PORT",
        help="Where clients are told to connect to.  [default: where it listens]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=ServeOptions.workers,
        show_default=True,
        metavar="N",
        help="Processes that share the port.",
    ),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where groups' committed offsets and members are kept.  [default: in memory, until the end]",
    ),
)
_conversion_options = _options(
    click.option(
        "--log-message-downconversion-enable/--no-log-message-downconversion-enable",
        "downconversion_enable",
        default=ServeOptions.downconversion_enable,
        help="Whether clients that do not know v2 get it converted, or an error.  [default: converted]",
    ),
    click.option(
        "--topics-file",
        type=_FILE,
        metavar="FILE",
        help="An INI of topics and their configuration, above DIR/topics.ini.",
    ),
    click.option(
        "--zstd-fallback",
        type=click.Choice(["gzip", "snappy", "lz4", "none"]),
        help="The codec that zstd batches get for clients that cannot have zstd.  [default: they get an error]",
    ),
    _size_option(
        "--max-downconversion-memory",
        "max_downconversion_bytes",
        64 * GIB,
        "What converted chunks of all connections, over all workers, may take together.",
    ),
    _size_option("--chunk-size", "chunk_bytes", GIB, "Bytes read and converted at a time."),
)
_producing_options = _options(
    from_segment_start_option,
    click.option(
        "--allow-produce",
        is_flag=True,
        help="Take records of producers, too, and make topics: DIR is written to.",
    ),
    click.option(
        "--auto-create-topics",
        is_flag=True,
        help="Make topics that producers ask for, of one partition.",
    ),
    _size_option("--max-produce-size", "max_produce_bytes", GIB, "The largest request to produce."),
    _size_option(
        "--max-produce-memory",
        "max_produce_memory_bytes",
        64 * GIB,
        "What requests and responses of all connections of a process may take together, the small ones excepted.",
    ),
)
_security_options = _options(
    click.option(
        "--tls-cert", type=_FILE, metavar="FILE", help="The certificate, in PEM form, with its chain."
    ),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key, not encrypted."),
    click.option(
        "--tls-client-ca",
        type=_FILE,
        metavar="FILE",
        help="Authorities; clients must show a certificate that one of them signed.",
    ),
    click.option("--sasl-users", type=_FILE, metavar="FILE", help="Users who may connect, by SASL."),
    click.option(
        "--sasl-mechanisms",
        metavar="NAMES",
        help=f"Which of {', '.join(MECHANISMS)} users may use, with commas between.  [default: all]",
    ),
)
_limit_options = _options(
    click.option(
        "--memory",
        "memory_bytes",
        type=Size(_MOST_MEMORY_BYTES),
        metavar="SIZE",
        help="What the endpoint may take beyond its start, all workers together: the limits of memory, requests and"
        " connections that are not given follow from it.  [default: each has its own default]",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        metavar="N",
        help="The most connections of each process.  [default: what the limit of open files leaves]",
    ),
    _size_option("--max-request-size", "max_request_bytes", 100 * MIB, "The largest request that is read."),
    _size_option(
        "--max-fetch-size", "max_fetch_bytes", GIB, "The most that a fetch gets, whatever it asks for."
    ),
    *(
        click.option(
            f"--{name}-timeout",
            type=_SECONDS,
            default=getattr(ServeOptions, f"{name}_timeout"),
            show_default=True,
            metavar="SECONDS",
            help=help_text,
        )
        for name, help_text in {
            "write": "How long a client may take nothing of a response.",
            "request": "How long the rest of a request may take to come.",
            "idle": "How long a connection may ask for nothing.",
            "shutdown": "How long responses may take to end at SIGTERM.",
        }.items()
    ),
)
_operations_options = _options(
    click.option(
        "--metrics",
        type=AddressType(least_port=0),
        metavar="HOST:PORT",
        help="Serve metrics in Prometheus' form there.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["auto", "json", "text"]),
        default=ServeOptions.log_format,
        show_default=True,
        help="What log lines on standard error are; auto: text on a terminal, else JSON.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default=ServeOptions.log_level,
        show_default=True,
        help="The least that is logged.",
    ),
)


@click.command()
@click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
)
@_network_options
@_conversion_options
@_producing_options
@_security_options
@_limit_options
@_operations_options
def serve(
    directory: Path,
    listen: Address,
    topics_file: Path | None,
    zstd_fallback: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl_users: Path | None,
    sasl_mechanisms: str | None,
    memory_bytes: int | None,
    **settings: Any,
) -> int:
    """Serve DIR, a log directory, to Kafka consumers of any age, and with --allow-produce to producers.

    \b
    kafkafmt serve /var/lib/kafka
    kafkafmt serve /backup --allow-produce
    kafkafmt serve /backup --listen 0.0.0.0:9093 --advertise backup.example.org:9093 \\
        --tls-cert cert.pem --tls-key key.pem --sasl-users users.ini --state /var/lib/kafkafmt
    kafkafmt serve /var/lib/kafka --workers 4 --metrics 127.0.0.1:9308

    Consumers that know message format v2 get what is on disk; those that know v0 or v1 only get it converted as
    it is sent, in bounded memory (KIP-283). DIR may be a broker's, a copy of one, or what convert wrote; it may
    grow, and lose segments, while it is served.

    With --allow-produce records are appended to the logs of DIR, and are durable when a producer with acks=all is
    answered; topics are made by CreateTopics, and their configuration is kept in DIR/topics.ini. Producers may be
    idempotent; there are no transactions. Nobody else may write to DIR meanwhile.

    Prints "listening on HOST:PORT" once it takes connections. Connections are open to everybody who reaches the
    port, unless --tls-client-ca or --sasl-users say who may connect.

    \b
    A topics file has a section for each topic:    A users file has one for each user:
        [orders]                                       [alice]
        message.downconversion.enable = false          password = wonderland
    In place of a password there may be SCRAM credentials, in the form that Kafka keeps them in:
        SCRAM-SHA-256 = [salt=...,stored_key=...,server_key=...,iterations=4096]

    Sizes are bytes, or have a unit: 524288, 512K, 64MiB. SIGTERM and SIGINT end it once responses in flight are
    sent, a second one at once. SIGHUP reads certificates and the files of users and topics again.
    Needs pip install 'kafkafmt[serve]'.

    Exit status: 0; 2 for wrong arguments.
    """
    try:
        import structlog

        from kafkafmt.serve.groups import OffsetsFileError
        from kafkafmt.serve.logs import configure_logs
        from kafkafmt.serve.running import run
        from kafkafmt.serve.security.tls import TlsError
        from kafkafmt.serve.workers import WorkerError
    except ModuleNotFoundError as error:
        raise click.ClickException(f"serve needs {error.name}: pip install 'kafkafmt[serve]'") from None

    if settings["allow_produce"] and settings["workers"] > 1:
        raise click.UsageError("--allow-produce is for one process: logs have one writer, so --workers is 1")
    if settings["auto_create_topics"] and not settings["allow_produce"]:
        raise click.UsageError("--auto-create-topics is for --allow-produce")
    if _is_wildcard(listen.host) and settings["advertised"] is None:
        raise click.UsageError(f"--listen {listen} needs --advertise HOST:PORT, for clients to connect to")
    try:
        options = ServeOptions(
            directory,
            listen.host,
            listen.port,
            topics_file=None if topics_file is None else read_topics_file(topics_file),
            zstd_fallback=None if zstd_fallback is None else Codec[zstd_fallback.upper()],
            tls=_tls_options(tls_cert, tls_key, tls_client_ca),
            users=_users(sasl_users, sasl_mechanisms),
            **settings,
        )
        if memory_bytes is not None:
            options = _within_memory(memory_bytes, options)
        _ensure_log_directory(options)
        configure_logs(options.log_format, options.log_level)

        def on_listening(host: str, port: int) -> None:
            click.echo(f"listening on {Address(host, port)}")
            for event, about in _warnings(options, sasl_users):
                structlog.get_logger().warning(event, **about)

        run(options, on_listening)
    except (IniError, OffsetsFileError, TlsError, WorkerError) as error:
        raise click.ClickException(str(error)) from None
    return 0


def _within_memory(memory_bytes: int, options: ServeOptions) -> ServeOptions:
    """The options within one number, but for those that the command line has."""
    from kafkafmt.serve.memory_plan import ServeMemoryError, within_memory

    source = click.get_current_context().get_parameter_source
    fixed = {one.name for one in fields(options) if source(one.name) is ParameterSource.COMMANDLINE}
    try:
        return within_memory(memory_bytes, options, fixed)
    except ServeMemoryError as error:
        raise click.UsageError(f"--{error}") from None


def _tls_options(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsOptions | None:
    if certificate is not None and key is not None:
        return TlsOptions(certificate, key, client_ca)
    if certificate is not None or key is not None:
        raise click.UsageError("--tls-cert and --tls-key go together")
    if client_ca is not None:
        raise click.UsageError("--tls-client-ca is for --tls-cert and --tls-key")
    return None


def _users(path: Path | None, names: str | None) -> Users | None:
    if names is not None and path is None:
        raise click.UsageError("--sasl-mechanisms is for --sasl-users")
    mechanisms = MECHANISMS if names is None else tuple(name.strip().upper() for name in names.split(","))
    for name in mechanisms:
        if name not in MECHANISMS:
            raise click.UsageError(f"--sasl-mechanisms: {name!r} is none of {', '.join(MECHANISMS)}")
    return None if path is None else read_users(path, mechanisms)


def _ensure_log_directory(options: ServeOptions) -> None:
    """Raise click.ClickException for a folder without partitions, unless clients may create them in it."""
    from kafkafmt.log import LogDirectory
    from kafkafmt.log.directory import nested_log_directory, no_segments_message

    if LogDirectory(options.directory).folders(on_denied=lambda _: None):
        return
    if not options.allow_produce or nested_log_directory(options.directory) is not None:
        raise click.ClickException(no_segments_message(options.directory))


def _warnings(options: ServeOptions, users_file: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is allowed but seldom meant: events for the log."""
    from kafkafmt.log import LogDirectory

    folders = LogDirectory(options.directory).folders(on_denied=lambda _: None)  # of which the catalog warns
    there = {topic for topic, _ in folders}
    if options.topics_file is not None:
        for topic in options.topics_file.configs:
            if topic not in there:
                yield (
                    "the topics file names a topic that is not there",
                    {"file": str(options.topics_file.path), "topic": topic},
                )
    if not _is_loopback(options.host):
        if options.users is None and (options.tls is None or options.tls.client_ca is None):
            allowed = "read and write" if options.allow_produce else "read"
            yield f"whoever reaches the port can {allowed} all topics", {"host": options.host}
        if options.tls is None:
            yield "without TLS others on the network can read what is sent", {"host": options.host}
    for path in filter(None, (users_file, options.tls.key if options.tls else None)):
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            yield "others can read a file of secrets", {"file": str(path)}


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_wildcard(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
