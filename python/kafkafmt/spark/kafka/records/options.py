"""The options of `unit=records`: the names, defaults and rules of Spark's Kafka source, and a few more.

If several options give a bound, a timestamp for all partitions has precedence, then timestamps by partition, then
offsets. A stream begins at the latest offsets by default, a batch read at the earliest. Options of streams have no
effect in a batch read, and a warning is logged, as in Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkafmt._util.options import Option, Options
from kafkafmt._util.sizes import size_text
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.listing import Attempts
from kafkafmt.scanning.brokers.options import DEFAULT_POLL_TIMEOUT_MS, BrokerOptions
from kafkafmt.scanning.options import DEFAULT_BATCH_BYTES
from kafkafmt.scanning.selection import EARLIEST, LATEST, TopicSelection
from kafkafmt.spark.kafka.clients import parse_consumers
from kafkafmt.spark.kafka.options import (
    NAMES,
    SELECTION_OPTIONS,
    UNIT,
    ensure_selection,
    parse_isolation,
    split_options,
)
from kafkafmt.spark.kafka.records.bounds import (
    RecordBound,
    ensure_in_order,
    parse_by_partition,
)
from kafkafmt.spark.kafka.subscription import Subscription
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.values import (
    MAX_INT,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_columns,
    parse_count,
    parse_long,
    parse_number,
)
from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

_DURATION = re.compile(r"(?P<number>\d{1,15})\s*(?P<unit>us|ms|s|m|min|h|d)?")
_MILLISECONDS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_GROUPS = ("groupIdPrefix", "kafka.group.id")


def _parse_duration(value: str) -> float:
    """Parse a duration of Spark, as 15m, to seconds. Without a unit it is in milliseconds."""
    match = _DURATION.fullmatch(value.strip().lower())
    if match is None:
        raise ValueError("expected a duration, as 100ms, 30s or 15m")
    return int(match["number"]) * _MILLISECONDS[match["unit"] or "ms"] / 1000


def _parse_attempts(value: str) -> int:
    return parse_number(value, MAX_INT, least=1)


RECORD_SOURCE_OPTIONS = (
    UNIT,
    *SELECTION_OPTIONS,
    Option(
        "startingOffsets",
        str,
        None,
        '`earliest`, `latest`, or JSON for every partition: `{"orders": {"0": 23, "1": -2}}`, where -2 is earliest and '
        "-1 latest. By default a batch read begins at `earliest`, a stream at `latest`. A batch read cannot begin at "
        "`latest`",
    ),
    Option("endingOffsets", str, "latest", "`latest`, or such JSON, where -1 is latest. Only in batch reads"),
    Option(
        "startingOffsetsByTimestamp",
        lambda value: parse_by_partition(value, 0),
        None,
        "milliseconds for every partition, as JSON. Each begins at its first record at or after the timestamp. "
        "Replaces `startingOffsets`",
    ),
    Option(
        "endingOffsetsByTimestamp",
        lambda value: parse_by_partition(value, 0),
        None,
        "the same for the end. A partition without such a record ends at its latest offset. Replaces `endingOffsets`",
    ),
    Option(
        "startingTimestamp", parse_long, None, "milliseconds for all partitions. Replaces both other options"
    ),
    Option("endingTimestamp", parse_long, None, "the same for the end"),
    Option(
        "startingOffsetsByTimestampStrategy",
        one_of(("error", "latest")),
        "error",
        "for partitions without a record at or after the starting timestamp: fail, or begin at the end",
    ),
    Option("includeHeaders", parse_boolean, "false", "`true` adds the column `headers`"),
    Option(
        "failOnDataLoss",
        parse_boolean,
        "true",
        "whether a query fails if offsets or partitions were deleted before they were read",
    ),
    Option(
        "minPartitions",
        lambda value: parse_number(value, MAX_INT, least=1),
        None,
        "about the least number of tasks: large partitions are cut. By default a task for each partition",
    ),
    Option("maxRecordsPerPartition", parse_count, None, "the most offsets of a task"),
    Option("maxOffsetsPerTrigger", parse_count, None, "the most offsets of a micro-batch"),
    Option(
        "minOffsetsPerTrigger", parse_count, None, "the least offsets of a micro-batch: fewer wait for others"
    ),
    Option(
        "maxTriggerDelay", _parse_duration, "15m", "how long offsets wait because of `minOffsetsPerTrigger`"
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        parse_count,
        str(DEFAULT_POLL_TIMEOUT_MS),
        "how long a task waits for a broker, in milliseconds",
    ),
    Option(
        "fetchOffset.numRetries",
        _parse_attempts,
        "3",
        "how often the driver asks for offsets before it takes a missing partition, or an end below the offsets "
        "already read, for data loss",
    ),
    Option(
        "fetchOffset.retryIntervalMs", parse_long, "1000", "the pause between these requests, in milliseconds"
    ),
    Option(
        "groupIdPrefix",
        str,
        None,
        "accepted, as is `kafka.group.id`, with a warning: partitions are assigned, and no group is joined",
    ),
    Option(
        "columns",
        parse_columns,
        None,
        "the columns to read, as `.schema(...)`. Columns that are not selected are not materialised",
    ),
    Option(
        "onCorrupt",
        one_of(("fail", "skip")),
        "fail",
        "`fail`; or `skip`, with a warning in the log of the executor",
    ),
    Option(
        "maxBatchBytes", parse_arrow_size, size_text(DEFAULT_BATCH_BYTES), "about the size of an Arrow batch"
    ),
)
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


@dataclass(frozen=True)
class RecordReadOptions:
    """The parsed options of a read; `RECORD_SOURCE_OPTIONS` describes each.

    brokers: the clients, and what happens at damage and data loss.
    min_offsets, max_delay_seconds: the least offsets of a micro-batch, and how long fewer wait.
    attempts: how often and how far apart ends that went back or are missing are listed.
    """

    brokers: BrokerOptions
    subscription: Subscription
    starting: RecordBound
    ending: RecordBound
    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    min_partitions: int | None = None
    max_records: int | None = None
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    limit: Amount = UNLIMITED
    min_offsets: int | None = None
    max_delay_seconds: float = 0
    attempts: Attempts = field(default_factory=Attempts)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RecordReadOptions:
        """Parse the options of a batch read. Raises ValueError, in one line, for unknown options and invalid values."""
        parsed = cls._of(options, EARLIEST)
        for bound, wrong, word in (
            (parsed.starting, LATEST, "latest"),
            (parsed.ending, EARLIEST, "earliest"),
        ):
            values = [bound.offsets] if isinstance(bound.offsets, int) else bound.offsets.values()
            if wrong in values and bound.timestamps is None:
                raise ValueError(f"option {bound.name}: a batch read cannot have {word} there")
        ensure_in_order(parsed.starting, parsed.ending)
        return parsed

    @classmethod
    def parse_stream(cls, options: Mapping[str, str]) -> RecordReadOptions:
        """Parse the options of a stream. Raises ValueError as `parse` does."""
        _, given = split_options(options, RECORD_SOURCE_OPTIONS)
        given.ensure_none_of(_BATCH_ONLY, "a stream does not take it")
        return cls._of(options, LATEST)

    @classmethod
    def parse_any(cls, options: Mapping[str, str]) -> RecordReadOptions:
        """Parse the options of a batch read or a stream. Raises ValueError as `parse` does."""
        return cls._of(options, LATEST)

    @classmethod
    def _of(cls, options: Mapping[str, str], start: int) -> RecordReadOptions:
        for name in options:
            if name.lower() == "includecontrolbatches":
                raise ValueError(
                    f"option {name}: control batches have no records; expected it with unit=batches"
                )
        clients, given = split_options(options, RECORD_SOURCE_OPTIONS)
        ensure_selection(given)
        least, most = given["minOffsetsPerTrigger"], given["maxOffsetsPerTrigger"]
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"option minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger, {most}, found {least}"
            )
        brokers = BrokerOptions(
            clients=_consumers(clients),
            names=NAMES,
            fails_on_data_loss=given["failOnDataLoss"],
            on_corrupt=given["onCorrupt"],
            poll_timeout_ms=given["kafkaConsumer.pollTimeoutMs"],
        )
        return cls(
            brokers=brokers,
            subscription=Subscription(_topics(given), given["assign"]),
            starting=_bound(given, "starting", start),
            ending=_bound(given, "ending", LATEST),
            **given.in_snake_case("columns", "includeHeaders", "minPartitions", "maxBatchBytes"),
            max_records=given["maxRecordsPerPartition"],
            limit=_limit(least, most),
            min_offsets=least,
            max_delay_seconds=given["maxTriggerDelay"],
            attempts=Attempts(given["fetchOffset.numRetries"], given["fetchOffset.retryIntervalMs"] / 1000),
        )

    def warn_of_ignored(self, options: Mapping[str, str], *, is_stream: bool) -> None:
        """Log a warning for each given option that has no effect in this read."""
        given = {name.lower() for name in options}
        for name in _GROUPS:
            if name.lower() in given:
                _LOG.warning("option %s has no effect: partitions are assigned, and no group is joined", name)
        for name in () if is_stream else _STREAM_ONLY:
            if name.lower() in given:
                _LOG.warning("option %s has no effect in a batch read", name)


def _limit(least: int | None, most: int | None) -> Amount:
    """Return the limit of a micro-batch. With only a least amount it is no limit, but differs from UNLIMITED.

    Spark then passes it on, except for a trigger that reads everything. Such a trigger does not wait.
    """
    if least is not None and most is None:
        return Amount(rows=UNLIMITED.rows - 1)
    return Amount(rows=most or UNLIMITED.rows)


def _bound(given: Options, prefix: str, default: int) -> RecordBound:
    """Return the bound by the option with the highest precedence."""
    is_latest = prefix == "ending" or given["startingOffsetsByTimestampStrategy"] == "latest"
    for name in (f"{prefix}Timestamp", f"{prefix}OffsetsByTimestamp"):
        if name in given:
            return RecordBound(name, default, given[name], is_latest)
    name = f"{prefix}Offsets"
    offsets = given.parse(name, _parse_offsets)
    return RecordBound(name, default if offsets is None else offsets)


def _parse_offsets(value: str) -> int | dict[TopicPartition, int]:
    words = {"earliest": EARLIEST, "latest": LATEST}
    word = words.get(value.strip().lower())
    if word is not None:
        return word
    try:
        return parse_by_partition(value, EARLIEST)
    except ValueError as error:
        raise ValueError(str(error).replace("expected", "expected earliest, latest or", 1)) from None


def _topics(given: Options) -> TopicSelection:
    # Spark's Kafka source finds the pattern anywhere in a name.
    return TopicSelection(given["subscribe"] or (), pattern=given["subscribePattern"], is_anywhere=True)


def _consumers(given: Mapping[str, str]) -> ClientConfig:
    """Return the options of consumers. By default they read uncommitted records, too, as Kafka's consumers do."""
    without_group = {name: value for name, value in given.items() if name.lower() != "group.id"}
    return parse_isolation(parse_consumers(without_group), "read_uncommitted")
