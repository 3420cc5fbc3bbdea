"""A stream over the live folder of a real broker, while records are sent to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kafkafmt as kf
from spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.xdist_group("spark")]

PARTITIONS, BATCHES, RECORDS = 2, 40, 25


def a_batch(number: int) -> bytes:
    builder = kf.RecordBatchBuilder(codec=list(kf.Codec)[number % len(kf.Codec)])
    for record in range(RECORDS):
        builder.append(
            1_700_000_000_000 + number, b"key-%d" % record, b"value %d of batch %d" % (record, number)
        )
    return builder.build()


def test_stream_when_a_broker_appends_and_rolls_then_has_what_was_sent(
    spark: SparkSession, broker_3: Broker, tmp_path: Path
) -> None:
    from broker.produce import produce

    broker_3.create_topic("live", PARTITIONS, {"segment.bytes": 4000})
    sent: list[tuple[int, int, bytes | None]] = []
    next_offsets = [0] * PARTITIONS
    with Stream(spark, broker_3.log_dir, tmp_path / "checkpoint") as stream:
        query = stream.start(topics="live", columns="partition,offset,value", isolation="read_committed")
        for number in range(BATCHES):
            partition = number * number % 5 % PARTITIONS
            data = a_batch(number)
            assert produce(broker_3, "live", data, partition) == 0
            base = next_offsets[partition]
            sent += [(partition, base + one.offset, one.value) for one in kf.MemoryRecords(data).records()]
            next_offsets[partition] += RECORDS
            if number == 1:
                query.processAllAvailable()
        query.processAllAvailable()
        query.stop()
        assert len(stream.micro_batches()) > 1
        assert stream.written_offsets()[-1] == {
            "live": {str(number): offset for number, offset in enumerate(next_offsets)}
        }
        found = [(row[0], row[1], bytes(row[2])) for rows in stream.micro_batches() for row in rows]
        assert sorted(found) == sorted(sent)
        assert len(list((broker_3.log_dir / "live-0").glob("*.log"))) > 2
