"""Headers of many batches written over in place: state of a source taken out, offsets of a target put in."""

from __future__ import annotations

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.batches.stamp import assign_offsets, copy_without_state
from records.samples import DAY, GAPS, ROWS, WITH_HEADERS, rows_of

PRODUCER = {"producer": (7, 1, 5)}


def run_of(data: bytes) -> BatchRun:
    return scan(data)[0]


@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP, ref.ZSTD])
@pytest.mark.parametrize("attributes", [0, ref.TIMESTAMP_TYPE])
def test_copy_without_state_when_batches_have_producers_then_those_of_none(attributes, codec):
    fields = {"codec": codec, "leader_epoch": 4}
    states = [{}, PRODUCER, {"producer": (9, 0, 0)}]
    transactional = [0, ref.TRANSACTIONAL, 0]
    given = b"".join(
        ref.batch_of(ROWS, attributes=attributes | bits, **fields, **state)
        for bits, state in zip(transactional, states, strict=True)
    )
    expected = ref.batch_of(ROWS, attributes=attributes, **fields) * 3
    assert bytes(copy_without_state(run_of(given))) == expected


def test_copy_without_state_when_producers_stay_then_only_the_delete_horizon_goes():
    given = ref.batch_of(
        ROWS, attributes=ref.DELETE_HORIZON | ref.TRANSACTIONAL, base_timestamp=DAY + 9, **PRODUCER
    )
    copied = bytes(copy_without_state(run_of(given), producer=False))
    expected = ref.batch_of(ROWS, attributes=ref.TRANSACTIONAL, base_timestamp=DAY + 9, **PRODUCER)
    assert copied == expected
    assert rows_of(copied) == rows_of(given)


def test_copy_without_state_when_log_append_time_then_records_have_their_own_timestamps():
    given = ref.batch_of(ROWS, attributes=ref.TIMESTAMP_TYPE, max_timestamp=DAY + 99)
    copied = bytes(copy_without_state(run_of(given), log_append_time=True))
    assert rows_of(copied) == ROWS


def test_copy_without_state_when_nothing_is_to_do_then_equal_and_not_the_same_memory():
    given = bytearray(ref.batch_of(ROWS) + ref.batch_of(GAPS))
    copied = copy_without_state(run_of(bytes(given)))
    assert copied == given


def test_copy_without_state_when_rows_of_a_run_are_left_out_then_those_are_not_there():
    parts = [ref.batch_of(ROWS, **PRODUCER), ref.batch_of(GAPS), ref.batch_of(WITH_HEADERS)]
    run = run_of(b"".join(parts))
    some = BatchRun(run.buffer, run.index[[0, 2]], run.origin)
    assert bytes(copy_without_state(some)) == ref.batch_of(ROWS) + parts[2]


def test_copy_without_state_when_older_message_then_value_error():
    with pytest.raises(ValueError, match="batch 1 of the run: expected message format v2, found v1"):
        copy_without_state(run_of(ref.batch_of(ROWS) + ref.messages(1, ROWS)))


def test_assign_offsets_when_many_batches_then_they_follow_one_another_under_the_same_crcs():
    batches = bytearray(ref.batch_of(ROWS, codec=ref.GZIP) + ref.batch_of(GAPS) + ref.batch_of(ROWS))
    before = run_of(bytes(batches)).index["crc"]
    assert assign_offsets(batches, 1000, 6) == 1000 + 3 + 6 + 3
    index = run_of(bytes(batches)).index
    assert index["base_offset"].tolist() == [1000, 1003, 1009]
    assert index["partition_leader_epoch"].tolist() == [6, 6, 6]
    assert (index["crc"] == before).all()
    assert [row.offset for row in rows_of(bytes(batches))] == [
        1000,
        1001,
        1002,
        1003,
        1005,
        1007,
        1008,
        *range(1009, 1012),
    ]


def test_assign_offsets_when_log_append_time_then_all_records_have_it():
    batches = bytearray(ref.batch_of(ROWS, codec=ref.LZ4) + ref.batch_of(WITH_HEADERS))
    assign_offsets(batches, 0, -1, DAY + 5)
    rows = rows_of(bytes(batches))  # verifies the CRCs
    assert {(row.timestamp, row.timestamp_type) for row in rows} == {(DAY + 5, ref.LOG_APPEND_TIME)}


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (ref.batch_of(ROWS)[:-1], "position 0: expected a length of"),
        (ref.batch_of(ROWS) + ref.batch_of(ROWS)[:60], "expected 61 bytes or more, found 60"),
        (ref.batch_of(ROWS) + ref.messages(1, ROWS * 2), "expected message format v2, found v1"),
        (ref.batch(b"", 0, last_offset_delta=-1), "last offset delta: expected 0 or more, found -1"),
    ],
)
def test_assign_offsets_when_not_whole_v2_batches_then_value_error_and_nothing_written(batches, message):
    given = bytearray(batches)
    with pytest.raises(ValueError, match=message):
        assign_offsets(given, 1000, 6)
    assert given == batches


def test_assign_offsets_when_they_would_pass_int64_then_value_error_and_nothing_written():
    batch = bytearray(ref.batch_of(ROWS) * 2)
    assert assign_offsets(batch, 2**63 - 7, 0) == 2**63 - 1
    before = bytes(batch)
    with pytest.raises(ValueError, match="expected them to end below 2\\^63"):
        assign_offsets(batch, 2**63 - 6, 0)
    assert batch == before


def test_assign_offsets_when_no_batches_then_the_offset_is_the_next_one():
    assert assign_offsets(bytearray(), 12, 0) == 12
    assert list(kf.MemoryRecords(b"").batches()) == []
