"""A `Record` as an object: unpacked, printed, pickled, and what a control record says."""

from __future__ import annotations

import pickle
import struct
from datetime import datetime, timedelta, timezone

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.types import ControlRecord, ControlRecordType
from records.samples import DAY, EVERY_KIND, end_marker
from reference import Row

FIELDS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "sequence", "size_in_bytes")


def every_record() -> list[kf.Record]:
    return [record for batch in kf.MemoryRecords(EVERY_KIND).batches() for record in batch]


def control_record(key: bytes | None, value: bytes | None) -> kf.Record:
    (record,) = next(
        kf.MemoryRecords(
            ref.batch_of([Row(0, DAY, key, value)], attributes=ref.CONTROL | ref.TRANSACTIONAL)
        ).batches()
    )
    return record


def test_record_when_pickled_then_the_copy_has_every_field() -> None:
    for record in every_record():
        copy = pickle.loads(pickle.dumps(record))
        assert copy == record
        assert [getattr(copy, name) for name in FIELDS] == [getattr(record, name) for name in FIELDS]
        assert (copy.is_control, copy.control) == (record.is_control, record.control)


def test_record_when_pickled_then_its_batch_does_not_come_along() -> None:
    data = ref.batch_of([Row(number, DAY, b"k", bytes(1000)) for number in range(50)])
    record = next(kf.MemoryRecords(data).records())
    assert len(pickle.dumps(record)) < 1500


def test_record_when_unpacked_then_offset_timestamp_key_value_and_headers() -> None:
    offset, timestamp, key, value, headers = every_record()[0]
    assert (offset, timestamp, key, value, headers) == (10, -1, b"a", b"first", [])


def test_repr_when_there_are_names_then_it_has_them_and_no_numbers() -> None:
    data = ref.batch_of([Row(0, DAY, b"k", None)], codec=ref.ZSTD, attributes=ref.TIMESTAMP_TYPE)
    (batch,) = kf.MemoryRecords(data).batches()
    assert "codec=ZSTD" in repr(batch)
    assert "timestamp_type=LOG_APPEND_TIME" in repr(next(iter(batch)))


@pytest.mark.parametrize("commit", [True, False])
def test_control_when_the_record_ends_a_transaction_then_its_type_and_epoch(commit: bool) -> None:
    (marker,) = next(kf.MemoryRecords(end_marker(3, commit=commit)).batches())
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    assert marker.control == ControlRecord(kind, 0)
    assert every_record()[0].control is None


@pytest.mark.parametrize(
    ("kind", "expected"), [(2, ControlRecordType.LEADER_CHANGE), (99, ControlRecordType.UNKNOWN)]
)
def test_control_when_it_is_no_marker_then_the_type_alone(kind: int, expected: ControlRecordType) -> None:
    assert control_record(struct.pack(">hh", 0, kind), b"").control == ControlRecord(expected, None)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (None, b"", "key of a control record: expected 4 bytes or more, found null"),
        (b"\0\0\0", b"", "found 3 bytes"),
        (struct.pack(">hh", -1, 0), bytes(6), "version of key of a control record"),
        (struct.pack(">hh", 0, 1), None, "value of a transaction marker"),
        (struct.pack(">hh", 0, 1), bytes(5), "expected 6 bytes or more, found 5 bytes"),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 0), "version of value"),
    ],
)
def test_control_when_a_marker_is_malformed_then_invalid_record(
    key: bytes | None, value: bytes | None, told: str
) -> None:
    with pytest.raises(kf.InvalidRecordError, match=told):
        _ = control_record(key, value).control


def test_append_when_the_timestamp_is_an_aware_datetime_then_its_milliseconds() -> None:
    builder = kf.RecordBatchBuilder()
    when = datetime(2024, 5, 6, 7, 8, 9, 123999, tzinfo=timezone(timedelta(hours=2)))
    builder.append(when, None, b"v")
    (record,) = kf.MemoryRecords(builder.build()).records()
    assert record.timestamp == 1_714_972_089_123


def test_append_when_an_argument_is_wrong_then_the_error_names_it() -> None:
    builder = kf.RecordBatchBuilder()
    with pytest.raises(ValueError, match="timestamp: expected a datetime with a timezone"):
        builder.append(datetime(2024, 1, 1), None, b"v")
    with pytest.raises(TypeError, match="timestamp: expected milliseconds"):
        builder.append(1.5, None, b"v")
    with pytest.raises(TypeError, match="key: expected bytes"):
        builder.append(1, "text", b"v")
    with pytest.raises(TypeError, match="value: expected bytes"):
        builder.append(1, None, 7)
    assert len(builder) == 0
