"""Logs of a real broker, read by kafkafmt as Java's consumer read them through the broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

import kafkafmt as kf
from data.real_logs import LOGS, NAMES, ExpectedRecord, expected
from kafkafmt.log import AbortedTransaction, LogDirectory, PartitionLog


def partition(name: str) -> PartitionLog:
    topic, _, number = name.rpartition("-")
    return LogDirectory(LOGS).partition((topic, int(number)))


def delivered(records: Iterable[object]) -> list[tuple[object, ...]]:
    fields = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
    return [tuple(getattr(record, name) for name in fields) for record in records]


def data_records(batches: Iterable[kf.RecordBatch]) -> Iterator[object]:
    for batch in batches:
        if not batch.is_control:
            yield from batch


def aborted_offsets(log: PartitionLog, aborted: Iterable[AbortedTransaction]) -> set[int]:
    """The offsets of the batches that transactions in `.txnindex` take back."""
    spans = list(aborted)
    return {
        record.offset
        for batch in log.batches()
        if batch.is_transactional and not batch.is_control
        for record in batch
        if any(
            span.producer_id == batch.producer_id and span.first_offset <= record.offset <= span.last_offset
            for span in spans
        )
    }


@pytest.mark.parametrize("name", NAMES)
def test_read_when_a_broker_wrote_the_log_then_gives_what_a_consumer_got(name: str) -> None:
    assert delivered(data_records(partition(name).batches())) == delivered(expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_batch_when_a_broker_wrote_the_log_then_is_valid(name: str) -> None:
    for batch in partition(name).batches():
        batch.ensure_valid()


@pytest.mark.parametrize("name", ["transactions-0", "compacted-0", "segments-0"])
def test_aborted_transactions_when_a_broker_wrote_the_index_then_hide_what_a_committed_reader_skips(
    name: str,
) -> None:
    log = partition(name)
    aborted = {record.offset for record in expected(name) if not record.committed}
    assert aborted_offsets(log, log.aborted_transactions()) == aborted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("to_magic", [0, 1])
def test_down_convert_when_a_broker_wrote_the_log_then_keeps_every_record(name: str, to_magic: int) -> None:
    read = []
    for segment in partition(name).segments():
        with segment.open() as records:
            converted = records.down_convert(to_magic, zstd_fallback=kf.Codec.LZ4).records
            read += [known_below_v2(record, to_magic) for record in converted.records()]
    assert read == [known_below_v2(record, to_magic) for record in expected(name)]


def known_below_v2(record: ExpectedRecord, magic: int) -> tuple[object, ...]:
    """The fields that v1, and v0, have."""
    timestamp = (record.timestamp, record.timestamp_type) if magic else ()
    return (record.offset, record.key, record.value, *timestamp)
