"""Producer state written into a batch that is complete: what a producer does last, and a mirror undoes."""

from __future__ import annotations

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.producer_state import set_producer_state
from records.samples import DAY, SAMPLES, as_rows


def built(codec: kf.Codec = kf.Codec.NONE, count: int = 5, **options) -> bytearray:
    builder = kf.RecordBatchBuilder(codec=codec, **options)
    for i in range(count):
        builder.append(DAY + i, b"key%d" % i, bytes(100), [("h", None)])
    return bytearray(builder.build())


@pytest.mark.parametrize("codec", list(kf.Codec))
@pytest.mark.parametrize("is_transactional", [False, True])
def test_state_when_written_then_the_batch_that_a_builder_makes_with_it(is_transactional, codec):
    state = {
        "producer_id": 2**40,
        "producer_epoch": 2**15 - 1,
        "base_sequence": 2**31 - 3,
        "is_transactional": is_transactional,
    }
    batch = built(codec)
    set_producer_state(batch, **state)
    assert batch == built(codec, **state)
    assert [row.sequence for row in ref.read_rows(bytes(batch))] == [2**31 - 3, 2**31 - 2, 2**31 - 1, 0, 1]


def test_state_when_batches_stand_end_to_end_then_their_sequence_numbers_follow_one_another():
    batches = built(count=5) + built(kf.Codec.ZSTD, count=1) + built(count=2)
    set_producer_state(batches, 7, 1, 2**31 - 6, True)
    state = {"producer_id": 7, "producer_epoch": 1, "is_transactional": True}
    assert batches == b"".join(
        built(codec, count, base_sequence=sequence, **state)
        for codec, count, sequence in (
            (kf.Codec.NONE, 5, 2**31 - 6),
            (kf.Codec.ZSTD, 1, 2**31 - 1),
            (kf.Codec.NONE, 2, 0),
        )
    )


@pytest.mark.parametrize("attributes", [0, ref.TIMESTAMP_TYPE, ref.DELETE_HORIZON])
def test_state_when_cleared_then_all_else_is_kept(attributes):
    fields = {"base_offset": 7, "leader_epoch": 6, "attributes": attributes | ref.TRANSACTIONAL}
    rows = ref.read_rows(SAMPLES["v2 headers"])
    batch = bytearray(ref.batch_of(rows, producer=(7, 1, 5), **fields))
    cleared = ref.batch_of(rows, **{**fields, "attributes": attributes})
    set_producer_state(batch, -1, -1, -1)
    assert bytes(batch) == cleared


def test_state_when_written_and_cleared_then_the_batch_of_before():
    batch = built(kf.Codec.ZSTD)
    before = bytes(batch)
    set_producer_state(memoryview(batch), 5, 0, 0, True)
    assert bytes(batch) != before
    set_producer_state(np.frombuffer(batch, np.uint8), -1, -1, -1)
    assert bytes(batch) == before


def test_state_when_control_batch_then_no_sequence_is_needed():
    builder = kf.RecordBatchBuilder(producer_id=5, producer_epoch=0, is_transactional=True, is_control=True)
    builder.append_end_transaction_marker(DAY, commit=True)
    batch = bytearray(builder.build())
    set_producer_state(batch, 6, 1, -1, True)
    (marker,) = kf.MemoryRecords(batch).batches()
    assert (marker.producer_id, marker.base_sequence, marker.is_control) == (6, -1, True)
    assert len(as_rows(marker)) == 1


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ((-2, -1, -1), "producer_id: expected -1 to"),
        ((5, -1, 0), "producer_epoch: expected 0 to 32767, found -1"),
        ((5, 2**15, 0), "producer_epoch"),
        ((5, 0, -1), "base_sequence: expected 0 to 2147483647, found -1"),
        ((5, 0, 2**31), "base_sequence"),
        ((-1, 0, -1), "producer_epoch without a producer_id: expected -1, found 0"),
        ((-1, -1, 0), "base_sequence without a producer_id: expected -1, found 0"),
        ((-1, -1, -1, True), "a transactional batch needs a producer_id"),
    ],
)
def test_state_when_no_producer_has_it_then_value_error_and_nothing_is_written(state, what):
    batch = built()
    before = bytes(batch)
    with pytest.raises(ValueError, match=what):
        set_producer_state(batch, *state)
    assert bytes(batch) == before


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (b"", "expected 61 bytes or more, found 0"),
        (built()[:60], "expected 61 bytes or more, found 60"),
        (built()[:-1], "expected a length of"),
        (built() + b"\0", "expected 61 bytes or more, found 1"),
        (built() + built()[:-1], "expected a length of"),
        (SAMPLES["v1"], "expected message format v2, found v1"),
        (SAMPLES["v0 gzip"], "expected message format v2, found v0"),
    ],
    ids=["empty", "no header", "cut", "more", "two, cut", "v1", "v0"],
)
def test_state_when_the_buffer_is_not_whole_v2_batches_then_value_error_and_nothing_is_written(batch, what):
    buffer = bytearray(batch)
    with pytest.raises(ValueError, match=what):
        set_producer_state(buffer, 5, 0, 0)
    assert buffer == batch


def test_state_when_the_buffer_is_read_only_then_refused():
    with pytest.raises((BufferError, ValueError)):
        set_producer_state(bytes(built()), 5, 0, 0)
