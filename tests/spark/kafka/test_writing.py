"""Batches sent to real brokers, by a task in this process as Spark would run it, without a JVM of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kafkafmt as kf
from broker.batches import batch
from kafkafmt.log import LogDirectory
from kafkafmt.spark.kafka.writing import TaskStats
from kafkafmt.spark.kafka_data_source import KafkaDataSource
from spark.kafka.topics import arrow, options_of, records, rows
from spark.writes import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("spark")]


def write(broker: Broker, *parts: Sequence[tuple[str, int, bytes]], **options: Any) -> kf.ForwardingStats:
    """What one task sends, a part a time."""
    of_reads = ("subscribe", "unit")
    given = {name: value for name, value in options_of(broker, "", **options).items() if name not in of_reads}
    writer = KafkaDataSource(given).writer(schema_of("topic", "partition", "batch"), overwrite=False)
    found = writer.write(arrow(part) for part in parts)
    assert isinstance(found, TaskStats)
    writer.commit([found])
    return found.sent


def test_batches_when_sent_then_are_those_that_were_given(any_broker: Broker) -> None:
    any_broker.create_topic("sent", 2)
    sent = [("sent", number % 2, batch(number)) for number in range(12)]
    stats = write(any_broker, sent[:7], [], sent[7:])
    assert (stats.batches, stats.opened.total(), stats.left_out.total()) == (12, 0, 0)
    for partition in range(2):
        wanted = [data for _, where, data in sent if where == partition]
        found = [
            bytes(one.buffer)
            for one in LogDirectory(any_broker.log_dir).partition(("sent", partition)).batches()
        ]
        assert [codec_and_payload(data) for data in found] == [codec_and_payload(data) for data in wanted]


def codec_and_payload(data: bytes) -> tuple[kf.Codec, bytes]:
    """What is not the log's or the producer's of a batch: its codec, and its records as they are stored."""
    (found,) = kf.MemoryRecords(data).batches()
    return found.codec, bytes(found.buffer[61:])


def test_batches_that_no_broker_takes_when_sent_then_are_mended_or_left_out(broker: Broker) -> None:
    broker.create_topic("mended")
    builder = kf.RecordBatchBuilder(magic=1, codec=kf.Codec.GZIP)
    builder.append(5, b"old", b"message")
    (whole,) = kf.MemoryRecords(batch(4)).batches()
    trimmed = whole.trim(20)
    stats = write(
        broker,
        [("mended", 0, builder.build()), ("mended", 0, bytes(trimmed.buffer)), ("mended", 0, batch(1))],
    )
    assert stats.opened.total() == 1
    found = records(rows(options_of(broker, "mended")))
    assert [one[3] for one in found] == [
        b"old",
        *(b"key-%d" % n for n in range(20, 25)),
        *(b"key-%d" % n for n in range(25)),
    ]


def test_rows_that_cannot_be_sent_when_met_then_one_line(broker: Broker) -> None:
    broker.create_topic("refused")
    damaged = bytearray(batch(0))
    damaged[100] ^= 1
    for data, message in [
        (bytes(damaged), "^partition refused-0: .*CRC"),
        (batch(0)[:-1], "^partition refused-0: expected whole batches"),
        (b"no batch at all, but longer than the header of one, which takes 61 bytes", "^partition refused-0: "),
    ]:  # fmt: skip
        with pytest.raises((ValueError, kf.KafkaFormatError), match=message):
            write(broker, [("refused", 0, data)])
    with pytest.raises(ValueError, match=r"^partition refused-7: Unrecognized partition 7"):
        write(broker, [("refused", 7, batch(0))])
    with pytest.raises(OSError, match=r"nowhere: not found within"):
        write(broker, [("nowhere", 0, batch(0))], kafka__max__block__ms=1000)
    assert rows(options_of(broker, "refused")) == []
