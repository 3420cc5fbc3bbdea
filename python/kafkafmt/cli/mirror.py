"""`kafkafmt mirror`: batches moved from a cluster or a log directory to another, as they are (KIP-712)."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkafmt.cli.client_settings import ConfigType, client_settings
from kafkafmt.cli.output import in_words, print_json, print_table, size_in_words, tell
from kafkafmt.cli.values import AddressType, Size
from kafkafmt.ini import IniError
from kafkafmt.mirror.addresses import Address as MirrorAddress
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.topic_settings import TopicSettings
from kafkafmt.serve.options import DEFAULT_HOST, GIB, host_and_port
from kafkafmt.sizes import size_text
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.mirror.running import Mirror
    from kafkafmt.mirror.statistics import Statistics

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SECONDS = click.FloatRange(min=0, min_open=True)
# A client that asks for metrics has that long for its request.
_METRICS_SECONDS = 60.0


class _MirrorAddressType(click.ParamType["MirrorAddress"]):
    """A cluster and topics, or a folder."""

    name = "mirror address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MirrorAddress:
        try:
            return parse_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _MetricsAddressType(AddressType):
    """PORT, on this machine alone, or HOST:PORT."""

    def __init__(self) -> None:
        super().__init__(least_port=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.isdecimal():
            value = f"{DEFAULT_HOST}:{value}"
        return super().convert(value, param, ctx)


def _client_options(command: _Command) -> _Command:
    """The options that say how to reach both sides, and where the offset map is."""
    for side in ("target", "source"):
        command = click.option(
            f"--{side}-config-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"The same, a setting a line, for passwords: the {side}'s.",
        )(command)
        command = click.option(
            f"--{side}-config",
            type=ConfigType(),
            multiple=True,
            metavar="KEY=VALUE",
            help=f"A setting of the {side}'s clients, as security.protocol; more than once.",
        )(command)
    return click.option(
        "--offset-map",
        default=MirrorOptions.offset_map,
        show_default=True,
        metavar="PATH|topic:NAME",
        help="Where the source's offsets are at the target cluster: a file, or a topic there.",
    )(command)


class _MirrorCommand(click.Command):
    """A command that has another one below it: a first argument `offsets` is that one's name, and no folder's."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["offsets"]:
            return offsets.make_context(f"{info_name} offsets", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_MirrorCommand)
@click.argument("source", metavar="SRC", type=_MirrorAddressType())
@click.argument("target", metavar="DST", type=_MirrorAddressType())
@click.option(
    "--use-raw-bytes/--deep",
    "is_raw",
    default=True,
    help="Move batches as they are, or decode them and make new ones.  [default: as they are]",
)
@click.option("--group", help="The consumer group at the source.  [default: one for each SRC and DST]")
@click.option(
    "--once/--follow",
    "is_once",
    default=None,
    help="End where the source ends now, or wait for more.  [default: follow a cluster, a folder once]",
)
@click.option(
    "--from",
    "beginning",
    type=click.Choice(["earliest", "latest", "committed"]),
    default=MirrorOptions.beginning,
    show_default=True,
    help="Where a partition begins that was never mirrored to DST; committed: where the group has, else earliest.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="Whether transactions that are open or were aborted are left out."
    "  [default: left out into a cluster; kept, with their markers, into a folder]",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(["stop", "skip"]),
    default=MirrorOptions.on_corrupt,
    show_default=True,
    help="Whether damage at the source ends its partition, or is passed over and reported.",
)
@click.option(
    "--restart-recreated",
    "restarts_recreated",
    is_flag=True,
    help="Mirror a topic that was deleted and made again from its start: its old log in a folder is renamed,"
    " at a cluster the new records follow the old.",
)
@click.option(
    "--append",
    "appends",
    is_flag=True,
    help="Go on behind records at DST that the offset map does not tell of; they may be there twice then.",
)
@click.option("--handler", metavar="MODULE:CALLABLE", help="Sees each batch, or with --deep each record.")
@click.option(
    "--codec", type=click.Choice([one.name.lower() for one in Codec]), help="What --deep compresses with."
)
@click.option(
    "--repartition", "repartitions", is_flag=True, help="Partition by key, with --deep, into a cluster."
)
@click.option(
    "--topic-config",
    multiple=True,
    metavar="[TOPIC:]NAME=VALUE",
    help="Configuration of the topics made at DST, or of one of them, in place of SRC's; more than once.",
)
@_client_options
@click.option(
    "--commit-interval",
    type=_SECONDS,
    default=MirrorOptions.commit_interval,
    show_default=True,
    metavar="SECONDS",
    help="How often what has arrived is made durable, and offsets are committed.",
)
@click.option(
    "--progress",
    "progress_interval",
    type=click.FloatRange(min=0),
    default=MirrorOptions.progress_interval,
    show_default=True,
    metavar="SECONDS",
    help="How often progress is logged; 0: never.",
)
@click.option(
    "--metrics-port",
    "metrics",
    type=_MetricsAddressType(),
    metavar="[HOST:]PORT",
    help="Serve metrics in Prometheus' form there.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(64 * GIB),
    default=MirrorOptions.memory_bytes,
    metavar="SIZE",
    help=f"What the mirror may take beyond what it starts with.  [default: {size_text(MirrorOptions.memory_bytes)}]",
)
@click.option(
    "--shutdown-timeout",
    type=_SECONDS,
    default=MirrorOptions.shutdown_timeout,
    show_default=True,
    metavar="SECONDS",
    help="How long what is under way may take at SIGTERM.",
)
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least that is logged, on standard error.",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
def mirror(
    source: MirrorAddress,
    target: MirrorAddress,
    is_raw: bool,
    is_once: bool | None,
    handler: str | None,
    codec: str | None,
    topic_config: tuple[str, ...],
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    metrics: tuple[str, int] | None,
    log_format: Any,
    log_level: Any,
    as_json: bool,
    **settings: Any,
) -> int:
    """Move batches from SRC to DST as they are, nothing decompressed that need not be (KIP-712).

    \b
    kafkafmt mirror kafka://east:9092/orders,clicks-.* kafka://west:9092
    kafkafmt mirror kafka://east:9092/orders /backup --once
    kafkafmt mirror /backup kafka://west:9092
    kafkafmt mirror offsets kafka://east:9092 kafka://west:9092 --group billing --commit

    SRC and DST are folders, or kafka://HOST:PORT[,HOST:PORT]. Behind a slash SRC may have topics: names and
    regular expressions, with commas between; else all topics are mirrored but those that begin with two
    underscores. Topics are made at DST with SRC's partitions and configuration.

    Into a folder each batch comes exactly once, with its offsets, and DST's end is where it goes on. Into a
    cluster each comes at least once: the offset map there says where a partition goes on. What may be there
    twice is counted. `mirror offsets` looks up in that map where a group goes on at DST. Mirrors that follow
    share the partitions if they have one SRC and one DST, or one --group.

    A handler is called with a RecordBatch, or with --deep a Record, and its TopicPartition; it returns what
    goes on in its place, or None.

    SIGTERM and SIGINT end it once what is under way has arrived, a second one at once.
    Needs pip install 'kafkafmt[mirror]'.

    Exit status: 0; 1 if a partition was stopped, or with --once the end not reached; 2 for what keeps it from
    going on. Damage passed over as asked is no failure.
    """
    with _told_in_one_line():
        from kafkafmt.mirror.handlers import load_handler
        from kafkafmt.mirror.opening import open_mirror
        from kafkafmt.mirror.progress import Progress
        from kafkafmt.serve.logs import configure_logs

        options = MirrorOptions(
            source,
            target,
            follows=None if is_once is None else not is_once,
            is_deep=not is_raw,
            codec=None if codec is None else Codec[codec.upper()],
            handler=None if handler is None else load_handler(handler),
            source_config=client_settings(source_config, source_config_file),
            target_config=client_settings(target_config, target_config_file),
            topic_settings=TopicSettings.parsed(topic_config),
            **settings,
        )
        configure_logs(log_format, log_level)
        if log_level == "info":
            logging.getLogger("kafka").setLevel(logging.WARNING)
            logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)  # warns of a machine that is busy
        with ExitStack() as stack:
            running = stack.enter_context(open_mirror(options, Progress()))
            if metrics is not None:
                _serve_metrics(stack, running.statistics, *metrics)
            stack.enter_context(_ended_by_signals(running))
            try:
                running.run()
            finally:
                _print_summary(running.statistics, as_json=as_json)
    ended = running.statistics
    has_lost = bool(ended.gone) and not options.is_following
    return 1 if ended.stopped or ended.unreached or has_lost else 0


@click.command()
@click.argument("source", metavar="SRC", type=_MirrorAddressType())
@click.argument("target", metavar="DST", type=_MirrorAddressType())
@click.option("--group", required=True, help="The consumer group whose position is looked up.")
@click.option("--commit", is_flag=True, help="Commit what was found for the group at DST.")
@_client_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def offsets(
    source: MirrorAddress,
    target: MirrorAddress,
    group: str,
    commit: bool,
    offset_map: str,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    as_json: bool,
) -> int:
    """Where a consumer group goes on at DST, by the offset map that a mirror from SRC has kept.

    No record is missed there; some may be read again, where the map knows less than every offset.
    """
    with _told_in_one_line():
        from kafkafmt.mirror.group_offsets import look_up_group

        options = MirrorOptions(
            source,
            target,
            source_config=client_settings(source_config, source_config_file),
            target_config=client_settings(target_config, target_config_file),
            offset_map=offset_map,
        )
        found = look_up_group(options, group, commit=commit)
    if as_json:
        for (topic, partition), at, other in found:
            there = {"source_offset": at, "target_offset": other}
            print_json({"topic": topic, "partition": partition, **there})
        return 0
    rows = [
        (topic, str(partition), str(at), "-" if other is None else str(other))
        for (topic, partition), at, other in found
    ]
    print_table(("topic", "partition#", "source offset#", "target offset#"), rows)
    return 0


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        from kafka.errors import KafkaError
    except ModuleNotFoundError as error:
        raise click.ClickException(f"mirror needs {error.name}: pip install 'kafkafmt[mirror]'") from None
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"mirror needs {error.name}: pip install 'kafkafmt[mirror]'") from None
    except (MirrorError, IniError, KafkaError) as error:
        raise click.ClickException(str(error)) from None


def _serve_metrics(stack: ExitStack, statistics: Statistics, host: str, port: int) -> None:
    from kafkafmt.mirror.metrics import registry_of
    from kafkafmt.serve.metrics import metrics_server

    port = stack.enter_context(metrics_server(registry_of(statistics), host, port, _METRICS_SECONDS))
    tell(f"metrics are served on {host_and_port(host, port)}")


@contextmanager
def _ended_by_signals(running: Mirror) -> Iterator[None]:
    """End the mirror when SIGTERM or SIGINT comes; a second one does what it does by itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def told(number: int, _: object) -> None:
        running.end()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    for number in before:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_summary(statistics: Statistics, *, as_json: bool) -> None:
    if as_json:
        print_json(statistics.as_dict())
        return
    total, summary = statistics.total, statistics.as_dict()
    parts = [
        f"{in_words(total.batches, 'batch')}, {in_words(total.records, 'record')}, {size_in_words(total.bytes)}"
        f" in {summary['seconds']:.1f} s"
    ]
    for word, counts in (("opened", statistics.opened), ("left out", statistics.left_out)):
        if counts:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
            parts.append(f"{word}: {reasons}")
    if statistics.skipped:
        parts.append(f"passed over: {in_words(len(statistics.skipped), 'damaged stretch')}")
    if statistics.possibly_doubled:
        parts.append(f"possibly doubled: {in_words(statistics.possibly_doubled, 'record')}")
    if statistics.stopped:  # the log has said which, where, and why
        parts.append(f"stopped: {in_words(len(statistics.stopped), 'partition')}")
    if statistics.unreached:
        parts.append(f"not reached: {in_words(len(statistics.unreached), 'partition')}")
    if statistics.gone:
        parts.append(f"deleted before they were mirrored: {in_words(statistics.gone_offsets, 'offset')}")
    parts.append(f"lag {sum(statistics.lag.values()):,}")
    click.echo("mirrored " + "; ".join(parts))
