"""Target: reading record sets.

Input: a byte of options, then a record set. Whatever the bytes are:

- `records` yields what the reference reads in front of the first damaged batch, then raises a documented error
  exactly where the reference finds damage; with and without `verify`;
- `to_numpy` and `to_arrow`, copied and as views, hold the same records, or raise where `records` does;
- `numpy_batches` holds them chunk by chunk, those before the damage too, whether chunks are kept or dropped;
- the shallow index has a row a batch; no attribute of a batch raises anything undocumented;
- a trimmed batch reads as the batch read and cut; a split one as its records, offsets aside, in parts
  that fit where they say so;
- going on behind each error comes to the end.
"""

from __future__ import annotations

import kafkafmt as kf
import reference as ref
from fuzz.oracle import (
    batches_before_damage,
    memory_records,
    outcome,
    rows_before_damage,
    trusting_codecs,
    until_error,
)
from kafkafmt.build.split import measured_parts
from kafkafmt.columns.read import numpy_batches
from records.samples import as_row, as_rows, rows_of_columns, without_sequence

OPTIONS_LENGTH = 1
ATTRIBUTES = [
    name for name in vars(kf.RecordBatch) | vars(kf.RecordBatch.__base__) if not name.startswith("_")
]


def check(data: bytes) -> None:
    options, data = data[0] if data else 0, data[OPTIONS_LENGTH:]
    with trusting_codecs():
        verify = bool(options & 1)
        _check_records(data, verify=verify)
        for bit, looking in enumerate((_check_arrow, _check_batches, _check_trimmed, _check_split)):
            if options & 2 << bit:
                looking(data)
        if options & 0x80:
            _check_walk(data)


def _check_records(data: bytes, *, verify: bool) -> None:
    records = memory_records(data)
    expected, is_damaged = rows_before_damage(data, verify=verify)
    found, error = until_error(as_row(record) for record in records.records(verify=verify, control=True))
    assert found == expected, f"{found} != {expected}"
    assert (error is not None) == is_damaged, error
    columns = outcome(lambda: records.to_numpy(verify=verify, control=True))
    assert (columns is None) == is_damaged
    if columns is not None:
        assert rows_of_columns(columns) == without_sequence(expected)
    for chunk_bytes in (1, 100):
        kept, error = until_error(
            numpy_batches(records, verify=verify, control=True, chunk_bytes=chunk_bytes)
        )
        assert (error is not None) == is_damaged, error
        assert [row for chunk in kept for row in rows_of_columns(chunk)] == without_sequence(expected)
        chunks = numpy_batches(records, verify=verify, control=True, chunk_bytes=chunk_bytes)
        dropped, _ = until_error(row for chunk in chunks for row in rows_of_columns(chunk))
        assert dropped == without_sequence(expected)


def _check_arrow(data: bytes) -> None:
    records = memory_records(data)
    columns = outcome(lambda: records.to_numpy(["key", "value"]))
    for views in (False, True):
        table = outcome(lambda views=views: records.to_arrow(["key", "value"], views=views))
        assert (table is None) == (columns is None)
        if table is not None and columns is not None:
            table.validate(full=True)
            for name in ("key", "value"):
                assert table[name].to_pylist() == [columns[name][i] for i in range(len(columns[name]))]
    table = outcome(records.to_arrow)
    if table is not None:
        table.validate(full=True)
        assert columns is not None


def _check_batches(data: bytes) -> None:
    records = memory_records(data)
    expected, is_damaged = batches_before_damage(data)
    index = outcome(records.index)
    assert (index is None) == is_damaged
    if index is not None:
        assert [(row["magic"], row["size"], row["last_offset"]) for row in index] == [
            (batch.magic, len(batch.data), batch.last_offset) for batch in expected
        ]
    batches, _ = until_error(records.batches())
    assert [bytes(batch.buffer) for batch in batches] == [batch.data for batch in expected]
    for batch, of_reference in zip(batches, expected, strict=True):
        assert bool(outcome(batch.is_valid)) == _is_valid(of_reference)
        for name in ATTRIBUTES:
            outcome(lambda batch=batch, name=name: getattr(batch, name))


def _is_valid(batch: ref.Batch) -> bool:
    """Return whether the CRC holds, and the messages of a wrapper are whole."""
    if batch.magic == 2 or not batch.codec:
        return batch.crc_holds
    try:
        batch.rows(strict=True)
    except ref.Damaged:
        return False
    return True


def _check_trimmed(data: bytes) -> None:
    for batch in until_error(memory_records(data).batches())[0]:
        base_offset = outcome(lambda batch=batch: batch.base_offset)
        if base_offset is None or base_offset >= batch.last_offset:
            continue
        first_offset = (base_offset + batch.last_offset + 1) // 2
        trimmed = outcome(lambda batch=batch, first=first_offset: batch.trim(first))
        if trimmed is not None and trimmed is not batch:
            assert as_rows(trimmed) == [row for row in as_rows(batch) if row.offset >= first_offset]


def _check_split(data: bytes) -> None:
    for batch in until_error(memory_records(data).batches())[0]:
        size = batch.size_in_bytes // 2
        parts = outcome(lambda batch=batch, size=size: kf.split_batch(batch, size))
        measured = outcome(lambda batch=batch, size=size: list(measured_parts(batch, size)))
        if parts is None:
            continue
        # A wrapper may hold messages of the other old format, whose timestamps, or lack of them, its own has not.
        keeps_timestamps = batch.magic == 2 or batch.timestamp_type == kf.TimestampType.CREATE_TIME
        fields = slice(1 if keeps_timestamps else 2, 6)
        expected = [row[fields] for row in as_rows(batch)]
        assert [row[fields] for part in parts for row in as_rows(part)] == expected
        assert [row[fields] for part in measured for row in as_rows(part.batch)] == expected
        assert all(
            part.batch.size_in_bytes <= size if part.fits else part.batch.count == 1 for part in measured
        )


def _check_walk(data: bytes) -> None:
    records, position = memory_records(data), 0
    while (error := _error_from(records, position)) is not None:
        after = records.position_after(error)
        assert error.position is not None
        assert position <= error.position < after <= len(data)
        position = after


def _error_from(records: kf.MemoryRecords, position: int) -> kf.KafkaFormatError | None:
    try:
        for run in records.runs(position, run_bytes=256):
            run.ensure_valid()
    except kf.KafkaFormatError as error:
        return error.with_traceback(None)
    return None
