"""Records of ranges of offsets, from real brokers as Arrow rows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import crc32c
import pyarrow as pa
import pytest

import kafkafmt as kf
from broker.batches import RECORDS, send
from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.columns.read import COLUMNS
from kafkafmt.log import LogDirectory
from scanning.brokers.topics import options_of, read_range

if TYPE_CHECKING:
    from pathlib import Path

    from broker.broker import Broker

pytestmark = pytest.mark.broker

CRC_POSITION, CRC_END, PAYLOAD_POSITION = 17, 21, 61


def log_file(broker: Broker, topic: str) -> Path:
    return LogDirectory(broker.log_dir).partition((topic, 0)).segments()[-1].path


def stored(broker: Broker, topic: str) -> pa.Table:
    """The records of the broker's own file."""
    return kf.FileRecords(log_file(broker, topic)).to_arrow(COLUMNS)


def test_ranges_when_cut_at_any_offset_then_have_each_record_once(any_broker: Broker) -> None:
    any_broker.create_topic("records-cut")
    send(any_broker, "records-cut", range(10))
    options = options_of(any_broker)
    whole = read_range("records-cut", 0, 10 * RECORDS, options)
    assert whole.drop_columns(["topic", "partition"]) == stored(any_broker, "records-cut").drop_columns(
        ["topic", "partition"]
    )
    assert set(whole["topic"].to_pylist()) == {"records-cut"}
    assert set(whole["partition"].to_pylist()) == {0}
    cuts = [0, 1, 24, 25, 26, 75, 110, 249, 250]
    parts = [read_range("records-cut", start, end, options) for start, end in pairwise(cuts)]
    assert [part.num_rows for part in parts] == [end - start for start, end in pairwise(cuts)]
    assert pa.concat_tables(parts) == whole


def test_columns_when_projected_then_come_alone_and_in_order(broker: Broker) -> None:
    broker.create_topic("records-columns")
    send(broker, "records-columns", range(4))
    options = options_of(broker)
    found = read_range("records-columns", 30, 80, options, ("timestamp", "key"))
    everything = read_range("records-columns", 30, 80, options)
    assert found == everything.select(["timestamp", "key"])
    assert read_range("records-columns", 30, 80, options, ("value",)) == everything.select(["value"])


def test_batches_when_limited_then_have_few_bytes(broker: Broker) -> None:
    broker.create_topic("records-bounded")
    send(broker, "records-bounded", range(4))
    found = read_range("records-bounded", 10, 90, options_of(broker), batch_bytes=500)
    assert found.num_rows == 80
    assert max(batch.nbytes for batch in found.to_batches()) <= 750


def test_batch_when_its_payload_is_damaged_then_ends_the_reading_or_is_skipped(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("records-damaged")
    send(broker, "records-damaged", range(8))
    whole = stored(broker, "records-damaged")
    path = log_file(broker, "records-damaged")
    damaged = next(one for one in kf.FileRecords(path).batches() if one.codec is kf.Codec.ZSTD)
    data = bytearray(damaged.buffer)
    data[PAYLOAD_POSITION : PAYLOAD_POSITION + 4] = b"none"
    data[CRC_POSITION:CRC_END] = crc32c.crc32c(data[CRC_END:]).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.seek(damaged.position)
        file.write(data)
    first, last = damaged.base_offset, damaged.last_offset
    with pytest.raises(
        CorruptFetchedBatchError, match=rf"^records-damaged-0 at offset {first}: .*zstd"
    ) as caught:
        read_range("records-damaged", 30, 180, options_of(broker))
    assert (caught.value.base_offset, caught.value.last_offset) == (first, last)
    found = read_range("records-damaged", 30, 180, options_of(broker, on_corrupt="skip"))
    left = [offset for offset in range(30, 180) if not first <= offset <= last]
    assert found["offset"].to_pylist() == left
    assert found["value"] == whole["value"].take(left)
    assert [
        message for message in caplog.messages if message.startswith(f"skipped offsets {first} to {last}: ")
    ]
