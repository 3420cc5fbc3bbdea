"""The options of the source. They are parsed and checked before any request to a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafkafmt._util.options import Option, Options
from kafkafmt._util.sizes import size_text
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.options import DEFAULT_POLL_TIMEOUT_MS, BrokerOptions, OptionNames
from kafkafmt.scanning.options import DEFAULT_BATCH_BYTES
from kafkafmt.scanning.selection import Bound
from kafkafmt.spark.kafka.clients import PREFIX, parse_consumers
from kafkafmt.spark.kafka.subscription import Subscription
from kafkafmt.spark.selection import parse_bound, parse_starting, parse_topic_selection
from kafkafmt.spark.source.options import BATCH_ONLY, BOUNDS, UNLIMITED, Amount
from kafkafmt.spark.values import (
    json_value,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_columns,
    parse_count,
    parse_names,
    parse_pattern,
)
from kafkafmt.types import TopicPartition

NAMES = OptionNames(skip_data_loss="failOnDataLoss=false", poll_timeout="kafkaConsumer.pollTimeoutMs")

_SELECTIONS = ("subscribe", "subscribePattern", "assign")


def _parse_assignment(value: str) -> frozenset[TopicPartition]:
    expected = 'expected JSON as {"topic": [0, 1]}'
    given = json_value(value)
    found = set()
    for topic, partitions in given.items() if isinstance(given, dict) else [("", None)]:
        for partition in partitions if isinstance(partitions, list) else [None]:
            if type(partition) is not int or partition < 0:
                raise ValueError(expected)
            found.add(TopicPartition(topic, partition))
    if not found:
        raise ValueError(expected)
    return frozenset(found)


UNITS = ("records", "batches")
UNIT = Option(
    "unit",
    one_of(UNITS),
    "records",
    "`records`; or `batches` as they are stored, which have [options of their own](#mirror)",
)
SELECTION_OPTIONS = (
    Option("subscribe", parse_names, None, "topics by name. This option or one of the next two is required"),
    Option(
        "subscribePattern",
        parse_pattern,
        None,
        "topics by a regular expression: found anywhere in a name, or with `unit=batches` for whole names",
    ),
    Option("assign", _parse_assignment, None, 'partitions, `{"packages": [0, 1]}`'),
)
KAFKA_SOURCE_OPTIONS = (
    Option("unit", one_of(UNITS), None, "`batches`"),
    *SELECTION_OPTIONS,
    Option(
        "columns",
        parse_columns,
        None,
        "those of `unit=batches`, without `file`, `position` and `damage`. Columns that are not selected are not "
        "materialised",
    ),
    *BOUNDS,
    Option(
        "includeControlBatches",
        parse_boolean,
        "false",
        "`true`: read all stored batches, also control batches and aborted ones, in `read_uncommitted`",
    ),
    Option(
        "failOnDataLoss",
        parse_boolean,
        "true",
        "whether a query fails if offsets were deleted before they were read",
    ),
    Option(
        "onCorrupt",
        one_of(("fail", "skip")),
        "fail",
        "`fail`; or `skip`, with a warning in the log of the executor",
    ),
    Option(
        "minPartitions",
        parse_count,
        "1",
        "the least number of tasks. Partitions are cut into tasks between batches",
    ),
    Option(
        "maxBatchBytes", parse_arrow_size, size_text(DEFAULT_BATCH_BYTES), "about the size of an Arrow batch"
    ),
    Option("maxOffsetsPerTrigger", parse_count, None, "the most offsets that a micro-batch reads"),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        parse_count,
        str(DEFAULT_POLL_TIMEOUT_MS),
        "how long a task waits for a broker, in milliseconds",
    ),
)
_STREAM_ONLY = ("maxOffsetsPerTrigger",)


@dataclass(frozen=True)
class KafkaReadOptions:
    """The parsed options of a read; `KAFKA_SOURCE_OPTIONS` describes each.

    limit: of a micro-batch, only in offsets.
    """

    clients: ClientConfig
    subscription: Subscription
    columns: tuple[str, ...] | None = None
    starting: Bound = field(default_factory=Bound)
    ending: Bound = field(default_factory=Bound)
    includes_control: bool = False
    fails_on_data_loss: bool = True
    on_corrupt: str = "fail"
    min_partitions: int = 1
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    poll_timeout_ms: int = DEFAULT_POLL_TIMEOUT_MS
    limit: Amount = UNLIMITED

    @property
    def brokers(self) -> BrokerOptions:
        """How the partitions are read."""
        return BrokerOptions(
            self.clients,
            NAMES,
            includes_control=self.includes_control,
            on_corrupt=self.on_corrupt,
            fails_on_data_loss=self.fails_on_data_loss,
            poll_timeout_ms=self.poll_timeout_ms,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """Parse the options of a batch read.

        Raises ValueError, in one line, for an unknown option, an option of streams, and an invalid value.
        """
        clients, given = split_options(options, KAFKA_SOURCE_OPTIONS)
        given.ensure_none_of(_STREAM_ONLY, "streams have it, as spark.readStream makes them")
        return cls._of(clients, given, can_be_stream=False)

    @classmethod
    def parse_stream(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """Parse the options of a stream. Raises ValueError, in one line."""
        clients, given = split_options(options, KAFKA_SOURCE_OPTIONS)
        given.ensure_none_of(BATCH_ONLY, "a stream does not take it")
        most = Amount(rows=given["maxOffsetsPerTrigger"] or UNLIMITED.rows)
        return replace(cls._of(clients, given, can_be_stream=True), limit=most)

    @classmethod
    def parse_any(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """Parse the options of a batch read or a stream. Raises ValueError, in one line."""
        return cls._of(*split_options(options, KAFKA_SOURCE_OPTIONS), can_be_stream=True)

    @classmethod
    def _of(cls, clients: Mapping[str, str], given: Options, *, can_be_stream: bool) -> KafkaReadOptions:
        ensure_selection(given)
        includes_control = given["includeControlBatches"]
        return cls(
            clients=_consumers(clients, includes_control=includes_control),
            subscription=Subscription(parse_topic_selection(given), given["assign"]),
            starting=parse_starting(given, can_be_latest=can_be_stream),
            ending=parse_bound(given, "ending", own="latest", own_number=-1),
            includes_control=includes_control,
            fails_on_data_loss=given["failOnDataLoss"],
            **given.in_snake_case("columns", "onCorrupt", "minPartitions", "maxBatchBytes"),
            poll_timeout_ms=given["kafkaConsumer.pollTimeoutMs"],
        )


def unit_of(options: Mapping[str, str]) -> str:
    """Return the unit of a read. Raises ValueError for an unknown one."""
    given = {name: value for name, value in options.items() if name.lower() == UNIT.name}
    unit: str = Options(given, [UNIT])["unit"]
    return unit


def ensure_selection(given: Options) -> None:
    """Raise ValueError unless exactly one option selects topics or partitions."""
    if not any(name in given for name in _SELECTIONS):
        raise ValueError(f"no topics: expected one of the options {', '.join(_SELECTIONS)}")
    given.ensure_one_of(*_SELECTIONS)


def split_options(options: Mapping[str, str], table: Iterable[Option]) -> tuple[dict[str, str], Options]:
    """Return the options of clients without their prefix `kafka.`, and the others, which must be in the table."""
    clients = {name: value for name, value in options.items() if name.lower().startswith(PREFIX)}
    others = {name: value for name, value in options.items() if name not in clients}
    return {name[len(PREFIX) :]: value for name, value in clients.items()}, Options(others, table)


def _consumers(given: Mapping[str, str], *, includes_control: bool) -> ClientConfig:
    """Return the options of consumers. By default they read committed records, or all records with control batches."""
    options = parse_consumers(given)
    natural = "read_uncommitted" if includes_control else "read_committed"
    options = parse_isolation(options, natural)
    if includes_control and options.config["isolation_level"] != natural:
        raise ValueError(
            "option includeControlBatches: needs kafka.isolation.level=read_uncommitted: without the batches of "
            "aborted transactions their markers mean nothing"
        )
    return options


def parse_isolation(options: ClientConfig, default: str) -> ClientConfig:
    """Return the options with their isolation level, or the default one. Raises ValueError for an unknown one."""
    isolation = options.config.get("isolation_level", default)
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ValueError(
            f"option kafka.isolation.level: expected read_committed or read_uncommitted, found {isolation!r}"
        )
    return replace(options, config={**options.config, "isolation_level": isolation})
