"""`kafkafmt serve`: serve a log directory over Kafka's wire protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kafkafmt._util.sizes import GIB, MIB
from kafkafmt.cli.config_file import config_option
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    from_segment_start_option,
    key_ring_option,
    memory_errors,
    needs,
    options,
    zstd_fallback_option,
)
from kafkafmt.cli.output import echo, notify
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
from kafkafmt.cli.values import FILE, KEY_RING, Address, Count, Folder, LocalPath, Size
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.security.users import Users
from kafkafmt.server.topics_file import read_topics_file
from kafkafmt.storage import RemotePath, StoragePath

_MAX_MEMORY_BYTES = 1024 * GIB


# A parameter has the name of the field in ServeOptions that takes its value unchanged.
_network_options = options(
    config_option(),
    listening_options,
    click.option(
        "--state",
        type=LocalPath(file_okay=False),
        metavar="DIR",
        help="Folder for groups' committed offsets and members.  [default: in memory, lost at exit]",
    ),
)
_conversion_options = options(
    click.option(
        "--log-message-downconversion-enable/--no-log-message-downconversion-enable",
        "downconversion_enable",
        default=ServeOptions.downconversion_enable,
        help="Whether clients without v2 support get converted records, or an error.  [default: converted]",
    ),
    click.option(
        "--topics-file",
        type=FILE,
        help="INI file with the configuration of topics; overrides DIR/topics.ini.",
    ),
    zstd_fallback_option(
        "Codec of zstd batches for clients without zstd support.  [default: they get an error]"
    ),
    downconversion_codec_option,
    size_option(
        ServeOptions,
        "--max-downconversion-memory",
        "max_downconversion_bytes",
        64 * GIB,
        "Limit for converted chunks in memory, over all connections and workers.",
    ),
    size_option(ServeOptions, "--chunk-size", "chunk_bytes", GIB, "Bytes read and converted at a time."),
)
_producing_options = options(
    from_segment_start_option(),
    click.option(
        "--allow-produce",
        is_flag=True,
        help="Also accept records from producers, and create topics. Writes to DIR.",
    ),
    click.option(
        "--allow-alter-configs",
        is_flag=True,
        help="Accept changes of the configuration of topics, which writes DIR/topics.ini. Included in --allow-produce.",
    ),
    click.option(
        "--auto-create-topics", is_flag=True, help="Create topics that producers ask for, with one partition."
    ),
    size_option(ServeOptions, "--max-produce-size", "max_produce_bytes", GIB, "Largest Produce request."),
    size_option(
        ServeOptions,
        "--max-produce-memory",
        "max_produce_memory_bytes",
        64 * GIB,
        "Limit for requests and responses in memory, over all connections of a process; small ones do not count.",
    ),
)
_limit_options = options(
    click.option(
        "--memory",
        "memory_bytes",
        type=Size(most=_MAX_MEMORY_BYTES),
        help="Memory limit for all workers together, beyond what they take at start. Limits of memory, requests and"
        " connections that are not given are derived from it.  [default: each has its own default]",
    ),
    click.option(
        "--max-connections",
        type=Count(),
        help="Most connections of each process.  [default: as many as the limit of open files allows]",
    ),
    connections_per_ip_option,
    size_option(
        ServeOptions, "--max-request-size", "max_request_bytes", 100 * MIB, "Largest request, except Produce."
    ),
    size_option(
        ServeOptions,
        "--max-fetch-size",
        "max_fetch_bytes",
        GIB,
        "Most bytes in the response to a fetch, whatever it asks for.",
    ),
    timeout_options,
)


@click.command(
    cls=HelpCommand,
    common="--listen --advertise --allow-produce --workers --state --tls-cert --tls-key --sasl-users --metrics",
    page="serve.md",
)
@click.argument("directory", metavar="DIR", type=Folder(must_exist=True))
@_network_options
@_conversion_options
@_producing_options
@security_options
@_limit_options
@operations_options
@key_ring_option()
def serve(
    directory: StoragePath,
    listen: Address,
    topics_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl_users: Path | None,
    sasl_mechanisms: str | None,
    memory_bytes: int | None,
    **settings: Any,
) -> int:
    """Serve a log directory to Kafka consumers of any version.

    With --allow-produce, producers can write to it.

    \b
    kafkafmt serve /var/lib/kafka
    kafkafmt serve /backup --allow-produce
    kafkafmt serve /backup --listen 0.0.0.0:9093 --advertise example.org:9093 \\
        --tls-cert cert.pem --tls-key key.pem --sasl-users users.ini
    kafkafmt serve /var/lib/kafka --workers 4 --metrics 127.0.0.1:9308

    Consumers that support message format v2 receive the stored bytes. Older consumers receive records that are
    converted while they are sent, in bounded memory (KIP-283). DIR may be a broker's log directory, a copy of one, or
    the output of convert. It may grow and lose segments meanwhile. A URI, as s3://bucket/logs, is served read-only.

    With --allow-produce, records are appended to the logs of DIR. They are durable before a producer with acks=all
    gets its answer. CreateTopics creates topics; DIR/topics.ini keeps their configuration. Producers may be
    idempotent, but not transactional. No other process may write to DIR meanwhile.

    Prints "listening on HOST:PORT" once it accepts connections. Every client that reaches the port may connect,
    unless --tls-client-ca or --sasl-users is given.

    \b
    A topics file has a section for each topic:    A users file has one for each user:
        [orders]                                       [alice]
        message.downconversion.enable = false          password = wonderland
    Instead of a password, a user may have SCRAM credentials, in Kafka's own form:
        SCRAM-SHA-256 = [salt=...,stored_key=...,server_key=...,iterations=4096]

    Sizes are bytes, or have a unit: 524288, 512K, 64MiB. SIGTERM and SIGINT end it after responses in flight are
    sent; a second signal ends it at once. SIGHUP reads certificates, the users file and the topics file again.
    Needs pip install 'kafkafmt[serve]'.

    Exit status: 0; 1 if a log could not be flushed, so that it may lack records; 2 for invalid arguments.
    """
    with needs("serve", "serve"):
        import structlog

        from kafkafmt.serve.producing.writers import UnflushedLogError
        from kafkafmt.serve.running import run
        from kafkafmt.server.structured_logging import configure_logs

    for name in ("allow_produce", "allow_alter_configs"):
        if settings[name] and isinstance(directory, RemotePath):
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option}: expected a local folder, found {directory}")
    if settings["allow_produce"] and settings["workers"] > 1:
        raise click.UsageError("--allow-produce is for one process: logs have one writer, so --workers is 1")
    if settings["auto_create_topics"] and not settings["allow_produce"]:
        raise click.UsageError("--auto-create-topics needs --allow-produce")
    if is_wildcard(listen.host) and settings["advertised"] is None:
        raise click.UsageError(f"--listen {listen} needs --advertise HOST:PORT, for clients to connect to")
    asked = ServeOptions(
        directory,
        host=listen.host,
        port=listen.port,
        topics_file=None if topics_file is None else read_topics_file(topics_file),
        tls=tls_options(tls_cert, tls_key, tls_client_ca),
        users=_users(sasl_users, sasl_mechanisms, settings["state"]),
        **settings,
    )
    if memory_bytes is not None:
        asked = _within_memory(memory_bytes, asked)
    _ensure_log_directory(asked)
    configure_logs(asked.log_format, asked.log_level)

    def on_listening(host: str, port: int) -> None:
        echo(f"listening on {Address(host, port)}")
        for event, about in _warnings(asked, sasl_users):
            structlog.get_logger().warning(event, **about)

    try:
        run(asked, on_listening)
    except UnflushedLogError as error:
        notify(f"kafkafmt: {error.filename}: {error.strerror}")
        return 1
    return 0


def _within_memory(memory_bytes: int, options: ServeOptions) -> ServeOptions:
    """Return the options for a memory limit. Those on the command line and in --config keep their values."""
    from kafkafmt.serve.memory_plan import within_memory

    source = click.get_current_context().get_parameter_source
    said = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    given = {one.name for one in fields(options) if source(one.name) in said}
    with memory_errors():
        return within_memory(memory_bytes, options, given - {"memory_bytes"})


def _users(path: Path | None, names: str | None, state: Path | None) -> Users | None:
    """Return the users of a file. Raises click.UsageError if it has none."""
    found = users(path, names, state)
    if found is not None and not found.names:
        raise click.UsageError(f"--sasl-users {path}: it has no user, so no client can connect")
    return found


def _ensure_log_directory(options: ServeOptions) -> None:
    """Raise click.ClickException for a folder without partitions, unless clients may create them in it."""
    from kafkafmt.log import LogDirectory
    from kafkafmt.log.directory import nested_log_directory, no_segments_message

    if LogDirectory(options.directory).folders(on_denied=lambda _: None):
        return
    if not options.allow_produce or nested_log_directory(options.directory) is not None:
        raise click.ClickException(no_segments_message(options.directory))


def _warnings(options: ServeOptions, users_file: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield log events for options that are allowed but seldom intended."""
    from kafkafmt.log import LogDirectory

    folders = LogDirectory(options.directory).folders(on_denied=lambda _: None)  # the catalog warns
    there = {topic for topic, _ in folders}
    if options.topics_file is not None:
        for topic in options.topics_file.configs:
            if topic not in there:
                yield (
                    "the topics file names a topic that does not exist",
                    {"file": str(options.topics_file.path), "topic": topic},
                )
    allowed = "read and write all topics" if options.allow_produce else "read all topics"
    yield from security_warnings(options, allowed, [users_file, *_key_files()])


def _key_files() -> list[Path]:
    """Return the files of keys in `--key-ring` that exist. What is wrong with the ring is an error where it is used."""
    from kafkafmt.storage.keys import KeyRing, KeyRingError

    path = click.get_current_context().meta.get(KEY_RING)
    try:
        return [] if path is None else [file for file in KeyRing(Path(path)).files if file.is_file()]
    except KeyRingError:
        return []
