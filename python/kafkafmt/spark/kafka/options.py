"""The options of the source: what a user asks for, parsed and checked before any broker is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafkafmt.spark.kafka.clients import ClientOptions
from kafkafmt.spark.selection import Bound, TopicSelection, parse_bound, parse_starting, parse_topic_selection
from kafkafmt.spark.source.options import DEFAULT_BATCH_BYTES, UNLIMITED, Amount
from kafkafmt.spark.values import (
    Given,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_columns,
    parse_count,
)
from kafkafmt.types import TopicPartition

PREFIX = "kafka."
DEFAULT_POLL_TIMEOUT_MS = 120_000

_KNOWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeControlBatches",
    "failOnDataLoss",
    "onCorrupt",
    "minPartitions",
    "maxBatchBytes",
    "kafkaConsumer.pollTimeoutMs",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger",)
_ON_CORRUPT = ("fail", "skip")
_SELECTIONS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True)
class KafkaReadOptions:
    """What is to be read, and how; see the README for each option.

    assigned: the partitions that are read, in place of all those of `topics`.
    limit: of a micro-batch, offsets alone.
    """

    clients: ClientOptions
    topics: TopicSelection
    assigned: frozenset[TopicPartition] | None = None
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

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """Those of a read of what is there.

        Raises ValueError, in one line, for an unknown option, one of streams, and a value that cannot be.
        """
        clients, given = split_options(options, (*_KNOWN, *_STREAM_ONLY))
        given.ensure_none_of(_STREAM_ONLY, "streams have it, as spark.readStream makes them")
        return cls._of(clients, given, can_be_stream=False)

    @classmethod
    def parse_stream(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """Those of a stream. Raises as `parse`."""
        clients, given = split_options(options, (*_KNOWN, *_STREAM_ONLY))
        given.ensure_none_of(_BATCH_ONLY, "a stream does not take it")
        most = Amount(rows=given.parse("maxOffsetsPerTrigger", parse_count, UNLIMITED.rows))
        return replace(cls._of(clients, given, can_be_stream=True), limit=most)

    @classmethod
    def parse_any(cls, options: Mapping[str, str]) -> KafkaReadOptions:
        """As `parse`, where it is not known yet whether they are those of a stream."""
        return cls._of(*split_options(options, (*_KNOWN, *_STREAM_ONLY)), can_be_stream=True)

    @classmethod
    def _of(cls, clients: Mapping[str, str], given: Given, *, can_be_stream: bool) -> KafkaReadOptions:
        if not any(name in given for name in _SELECTIONS):
            raise ValueError(f"no topics: expected one of the options {', '.join(_SELECTIONS)}")
        given.ensure_one_of(*_SELECTIONS)
        includes_control = given.parse("includeControlBatches", parse_boolean, False)
        return cls(
            clients=_consumers(clients, includes_control=includes_control),
            topics=parse_topic_selection(given),
            assigned=given.parse("assign", _parse_assignment, None),
            columns=given.parse("columns", parse_columns, None),
            starting=parse_starting(given, can_be_latest=can_be_stream),
            ending=parse_bound(given, "ending", own="latest", own_number=-1),
            includes_control=includes_control,
            fails_on_data_loss=given.parse("failOnDataLoss", parse_boolean, True),
            on_corrupt=given.parse("onCorrupt", one_of(_ON_CORRUPT), "fail"),
            min_partitions=given.parse("minPartitions", parse_count, 1),
            max_batch_bytes=given.parse("maxBatchBytes", parse_arrow_size, DEFAULT_BATCH_BYTES),
            poll_timeout_ms=given.parse("kafkaConsumer.pollTimeoutMs", parse_count, DEFAULT_POLL_TIMEOUT_MS),
        )


def split_options(options: Mapping[str, str], known: tuple[str, ...]) -> tuple[dict[str, str], Given]:
    """Those of the clients without their prefix `kafka.`, and the others, which all have to be `known`."""
    clients = {name: value for name, value in options.items() if name.lower().startswith(PREFIX)}
    others = {name: value for name, value in options.items() if name not in clients}
    return {name[len(PREFIX) :]: value for name, value in clients.items()}, Given(others, known)


def _consumers(given: Mapping[str, str], *, includes_control: bool) -> ClientOptions:
    """Committed records alone unless told; with the markers, which say what was aborted, all that there is."""
    options = ClientOptions.of_consumers(given)
    natural = "read_uncommitted" if includes_control else "read_committed"
    isolation = options.config.get("isolation_level", natural)
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ValueError(
            f"option kafka.isolation.level: expected read_committed or read_uncommitted, found {isolation!r}"
        )
    if includes_control and isolation != natural:
        raise ValueError(
            "option includeControlBatches: needs kafka.isolation.level=read_uncommitted: without the batches of "
            "aborted transactions their markers mean nothing"
        )
    return replace(options, config={**options.config, "isolation_level": isolation})


def _parse_assignment(value: str) -> frozenset[TopicPartition]:
    expected = 'expected JSON as {"topic": [0, 1]}'
    try:
        given = json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(expected) from None
    found = set()
    for topic, partitions in given.items() if isinstance(given, dict) else [("", None)]:
        for partition in partitions if isinstance(partitions, list) else [None]:
            if type(partition) is not int or partition < 0:
                raise ValueError(expected)
            found.add(TopicPartition(topic, partition))
    if not found:
        raise ValueError(expected)
    return frozenset(found)
