"""Aborted transactions, from `.txnindex` files and, where those say what cannot be, from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import AbortedTransaction, PartitionLog, PartitionLogWriter
from kafkafmt.log.isolation import TransactionTracker, parse_producer_snapshot
from kafkafmt.log.producer_snapshots import snapshot_bytes
from log.samples import LOGS, batch, marker, name, put_segment, transactional

# Producers 1 and 2 interleaved, over two segments: 1 aborts, 2 aborts, 1 commits, 1 aborts.
FIRST = [
    transactional(0, 1, 3),
    transactional(3, 2, 2),
    batch(5),
    transactional(6, 1),
    marker(7, 1, commit=False),
]
SECOND = [
    transactional(8, 1),
    marker(9, 2, commit=False),
    marker(10, 1, commit=True),
    marker(11, 2, commit=False),  # of no open transaction
    transactional(12, 1, 2),
    marker(14, 1, commit=False),
    transactional(15, 2),
]
ABORTED = [AbortedTransaction(1, 0, 7, 3), AbortedTransaction(2, 3, 9, 8), AbortedTransaction(1, 12, 14, 15)]


def put_log(folder: Path, *, good: bool = True) -> PartitionLog:
    index = [(0, *one) for one in ABORTED]
    put_segment(folder, 0, FIRST, transaction_index=index[:1])
    put_segment(folder, 8, SECOND, transaction_index=index[1:] if good else [(0, 0, 0, 0, 0)] * 3)
    return PartitionLog(folder)


def test_aborted_transactions_are_those_of_the_index(tmp_path: Path) -> None:
    assert put_log(tmp_path).aborted_transactions() == ABORTED


def test_aborted_transactions_are_those_that_overlap_the_range(tmp_path: Path) -> None:
    log = put_log(tmp_path)
    for start in range(17):
        for end in range(start, 17):
            overlapping = [one for one in ABORTED if one.last_offset >= start and one.first_offset < end]
            assert log.aborted_transactions(start, end) == overlapping


def test_aborted_transactions_when_an_index_is_missing_then_of_the_markers_unless_a_broker_left_a_snapshot(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path, 0, FIRST)
    put_segment(tmp_path, 8, SECOND)
    log = PartitionLog(tmp_path)
    assert log.aborted_transactions() == ABORTED
    assert log.aborted_transactions(10, 13) == ABORTED[2:]
    snapshot = tmp_path / name(8, ".snapshot")
    snapshot.write_bytes(snapshot_bytes([]))
    assert log.aborted_transactions() == []
    snapshot.write_bytes(b"half")
    assert log.aborted_transactions() == ABORTED


def test_aborted_transactions_when_kafkafmt_wrote_the_log_then_those_that_committed_reads_leave_out(
    tmp_path: Path,
) -> None:
    with PartitionLogWriter(tmp_path / "orders-0") as writer:
        for one in FIRST:
            writer.append(one)
    log = PartitionLog(tmp_path / "orders-0")
    assert log.aborted_transactions() == ABORTED[:1]
    assert [one.offset for one in log.records(isolation="read_committed")] == []
    assert [one.offset for one in log.records(end_offset=8)] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "entry",
    [
        (1, 1, 8, 9, 9),
        (0, -1, 8, 9, 9),
        (0, 1, -8, 9, 9),
        (0, 1, 9, 9, 9),
        (0, 1, 3, 7, 9),
        (0, 0, 0, 0, 0),
    ],
    ids=["version", "producer", "first offset", "empty", "below the segment", "zeros"],
)
def test_index_that_says_what_cannot_be_is_replaced_by_the_log(
    tmp_path: Path, entry: tuple[int, ...]
) -> None:
    put_segment(tmp_path, 0, FIRST)
    put_segment(tmp_path, 8, SECOND, transaction_index=[entry])
    assert PartitionLog(tmp_path).aborted_transactions() == ABORTED
    assert PartitionLog(tmp_path).aborted_transactions(10, 13) == ABORTED[2:]


def test_index_that_is_torn_or_a_folder_is_replaced_by_the_log(tmp_path: Path) -> None:
    log = put_log(tmp_path)
    first = log.segments()[0].path.with_suffix(".txnindex")
    first.write_bytes(first.read_bytes() + b"\0")
    assert log.aborted_transactions() == ABORTED
    first.unlink()
    first.mkdir()
    assert log.aborted_transactions() == ABORTED


def test_index_of_the_active_segment_may_end_within_an_entry(tmp_path: Path) -> None:
    log = put_log(tmp_path)
    last = log.segments()[1].path.with_suffix(".txnindex")
    last.write_bytes(last.read_bytes() + b"\0" * 20)
    assert log.segments()[1].aborted_transactions() == ABORTED[1:]


def test_damaged_marker_is_told_with_its_file(tmp_path: Path) -> None:
    log = put_log(tmp_path, good=False)
    path = log.segments()[0].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(kf.KafkaFormatError) as caught:
        log.aborted_transactions()
    assert caught.value.path == str(path)


def test_control_batches_that_say_neither_commit_nor_abort_end_no_transaction(tmp_path: Path) -> None:
    fields = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True, "is_control": True}
    emptied = kf.RecordBatchBuilder(base_offset=1, last_offset=1, **fields).build()
    other = kf.RecordBatchBuilder(base_offset=2, **fields)
    other.append(0, b"\0\0\0\2", None)
    data = [transactional(0, 1), emptied, other.build(), marker(4, 1, commit=False)]
    put_segment(tmp_path, 0, data, transaction_index=[(0, 0, 0, 0, 0)])
    assert PartitionLog(tmp_path).aborted_transactions() == [AbortedTransaction(1, 0, 4, 5)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, bytes(6), "key of a control record: expected 4 bytes or more, found null"),
        (b"\0\0\0", bytes(6), "key of a control record: expected 4 bytes or more, found 3 bytes"),
        (b"\xff\xff\0\0", bytes(6), "version of key of a control record: expected 0 or more, found -1"),
        (bytes(4), None, "value of a transaction marker: expected 6 bytes or more, found null"),
        (bytes(4), bytes(5), "value of a transaction marker: expected 6 bytes or more, found 5 bytes"),
    ],
)
def test_aborted_transactions_when_a_marker_is_malformed_then_told_with_file_and_position(
    key: bytes | None, value: bytes | None, message: str, tmp_path: Path
) -> None:
    malformed = kf.RecordBatchBuilder(
        base_offset=1, producer_id=1, producer_epoch=0, is_transactional=True, is_control=True
    )
    malformed.append(0, key, value)
    first = transactional(0, 1)
    path = put_segment(tmp_path, 0, [first, malformed.build()], transaction_index=[(0, 0, 0, 0, 0)])
    with pytest.raises(kf.InvalidRecordError, match=message) as caught:
        PartitionLog(tmp_path).aborted_transactions()
    assert (caught.value.path, caught.value.position) == (str(path), len(first))
    assert caught.value.base_offset == 1


@pytest.mark.parametrize("folder", ["transactions-0", "open-transaction-0", "none-0", "compacted-0"])
def test_log_of_a_real_broker_says_what_its_index_does(folder: str, tmp_path: Path) -> None:
    source = PartitionLog(LOGS / folder)
    for segment in source.segments():
        copy = put_segment(tmp_path / folder, segment.base_offset, [segment.path.read_bytes()])
    copy.with_suffix(".txnindex").write_bytes(bytes(34))
    expected = source.aborted_transactions()
    assert PartitionLog(tmp_path / folder).aborted_transactions() == expected
    assert bool(expected) == ("transaction" in folder)


def test_producer_snapshot_when_a_broker_s_then_tells_the_open_transactions() -> None:
    (path,) = (LOGS / "open-transaction-0").glob("*.snapshot")
    tracker = TransactionTracker()
    with kf.FileRecords(LOGS / "open-transaction-0" / name(0)) as records:
        for run in records.runs():
            list(tracker.add(run))
    found = parse_producer_snapshot(path.read_bytes())
    assert found is not None
    assert min(found.values()) == tracker.first_open_offset == 12


def test_producer_snapshot_when_damaged_then_tells_nothing() -> None:
    (path,) = (LOGS / "open-transaction-0").glob("*.snapshot")
    data = path.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        assert parse_producer_snapshot(bytes(changed)) is None
        assert parse_producer_snapshot(data[:position]) is None
