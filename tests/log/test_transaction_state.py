"""Transactions out of `__transaction_state` and of the logs beside it: as brokers told them, open and hanging."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import LogTransaction, PartitionLog, transactions
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.internal_topics.open_transactions import open_transactions
from kafkafmt.schemas.transaction_coordinator import TransactionLogKey, TransactionLogValue
from kafkafmt.types import TopicPartition
from log.coordinators import (
    FOLDER,
    RELEASES,
    STATE,
    assert_transactions_are_as_told,
    copied,
    is_clean,
    told,
    transactional,
    write_log,
)
from log.samples import DAY, batch, malformed_marker, marker, name, put_segment

ORDERS = TopicPartition("orders", 0)
PRODUCER_ID, EPOCH, TIMEOUT_MS = 7, 3, 1000


def state(
    *,
    status: int = 1,
    epoch: int = EPOCH,
    producer_id: int = PRODUCER_ID,
    partitions: tuple[int, ...] = (0,),
    start: int = DAY,
) -> tuple[bytes, bytes]:
    """The record of a transactional id."""
    topics = (TransactionLogValue.PartitionsSchema("orders", partitions),) if partitions else ()
    value = TransactionLogValue(
        producer_id,
        producer_epoch=epoch,
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_status=status,
        transaction_partitions=topics,
        transaction_last_update_timestamp_ms=start,
        transaction_start_timestamp_ms=start,
    )
    return bytes(2) + TransactionLogKey("id").encode(0), b"\0\1" + value.encode(1)


def judged(folder: Path, *states: tuple[bytes, bytes], now: int = DAY + TIMEOUT_MS) -> LogTransaction:
    """The open transaction of orders-0, beside these records of the coordinator."""
    write_log(folder / STATE, [[one] for one in states])
    put_segment(folder / str(ORDERS), 0, [transactional(0, PRODUCER_ID, [(b"k", b"v")], epoch=EPOCH)])
    (found,) = transactions(folder, now=now).open
    assert found.transaction.topic_partition == ORDERS
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_transactions_when_read_then_are_what_the_broker_told(release: str) -> None:
    found = transactions(FOLDER / release)
    assert_transactions_are_as_told(found, told(release))
    assert [(str(one.transaction.topic_partition), one.is_hanging) for one in found.open] == [
        ("__consumer_offsets-0", False),
        ("orders-2", False),
    ]
    assert not found.unknown
    newest = max(one.last_update_timestamp for one in found.states.values())
    assert found.now >= newest


@pytest.mark.parametrize("release", RELEASES)
def test_transactions_when_read_without_snapshots_then_are_the_same(release: str, tmp_path: Path) -> None:
    folder = copied(release, tmp_path)
    for number, snapshot in enumerate(sorted(folder.glob("*/*.snapshot"))):
        if number % 2:
            snapshot.unlink()
        else:
            snapshot.write_bytes(snapshot.read_bytes()[:-1])  # damaged
    before, found = transactions(FOLDER / release), transactions(folder)
    assert found.open == before.open
    assert found.states == before.states


def test_transaction_when_the_coordinator_has_it_then_hangs_only_after_its_timeout(tmp_path: Path) -> None:
    found = judged(tmp_path, state())
    assert (found.is_hanging, found.hanging_reason, found.open_ms) == (False, None, TIMEOUT_MS)
    (late,) = transactions(tmp_path, now=DAY + TIMEOUT_MS + 1).open
    assert (late.is_hanging, late.hanging_reason) == (
        True,
        f"open for longer than its timeout of {TIMEOUT_MS} ms",
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (state(producer_id=8), "no transactional id has this producer id"),
        (state(status=4), "the coordinator has no transaction: its state is CompleteCommit"),
        (state(status=0, partitions=()), "the coordinator has no transaction: its state is Empty"),
        (state(epoch=4), "the transaction of the coordinator has producer epoch 4"),
        (state(epoch=2), "the transaction of the coordinator has producer epoch 2"),
        (state(partitions=(1,)), "the transaction of the coordinator does not include the partition"),
        (state(status=99), "the coordinator has no transaction: its state is 99"),
    ],
)
def test_transaction_when_no_coordinator_will_end_it_then_hangs(
    tmp_path: Path, record: tuple[bytes, bytes], reason: str
) -> None:
    found = judged(tmp_path, record)
    assert (found.is_hanging, found.hanging_reason) == (True, reason)


@pytest.mark.parametrize("status", [2, 3, 7])
def test_transaction_when_its_markers_are_being_written_then_may_have_an_earlier_epoch(
    tmp_path: Path, status: int
) -> None:
    assert judged(tmp_path, state(status=status, epoch=EPOCH + 1)).is_hanging is False


def test_transaction_when_partitions_of_the_coordinators_are_missing_then_is_not_judged(
    tmp_path: Path,
) -> None:
    assert judged(tmp_path, state(producer_id=8)).is_hanging
    (tmp_path / STATE).rename(tmp_path / "__transaction_state-1")
    (found,) = transactions(tmp_path).open
    assert (found.is_hanging, found.state) == (None, None)
    for file in (tmp_path / "__transaction_state-1").iterdir():
        file.unlink()
    (found,) = transactions(tmp_path).open
    assert found.is_hanging is None


def test_transaction_when_a_real_brokers_log_has_one_that_no_coordinator_knows_then_hangs(
    tmp_path: Path,
) -> None:
    folder = copied("4.x", tmp_path)
    with (folder / "orders-0" / name(0)).open("ab") as file:
        file.write(transactional(10, 4711, [(b"k", b"v")]))
        file.write(batch(11))
    rows = [row for row in transactions(folder).rows() if row["is_hanging"]]
    assert [(row["topic"], row["partition"], row["first_offset"], row["producer_id"]) for row in rows] == [
        ("orders", 0, 10, 4711)
    ]


def test_open_transactions_when_batches_follow_the_snapshot_then_are_those_at_the_end(tmp_path: Path) -> None:
    folder = copied("4.x", tmp_path) / "orders-2"
    log = PartitionLog(folder)
    (before,) = open_transactions(log, TopicPartition("orders", 2)).transactions
    assert before.first_offset == 10
    with (folder / name(0)).open("ab") as file:
        file.write(marker(11, before.producer_id, commit=False))
        file.write(transactional(12, 50, [(b"k", b"v")], epoch=2))
        file.write(transactional(13, 50, [(b"k", b"v")], epoch=2))
    found = open_transactions(log, TopicPartition("orders", 2))
    assert [(one.producer_id, one.producer_epoch, one.first_offset) for one in found.transactions] == [
        (50, 2, 12)
    ]
    assert found.transactions[0].start_timestamp == DAY + 12


def test_rows_when_made_then_have_every_id_and_every_open_transaction() -> None:
    found = transactions(FOLDER / "4.x")
    rows = [(row["transactional_id"], row["state"], row["topic"]) for row in found.rows()]
    assert rows == [
        ("aborts", "CompleteAbort", None),
        ("commits", "CompleteCommit", None),
        ("empty", "Empty", None),
        ("open", "Ongoing", "__consumer_offsets"),
        ("open", "Ongoing", "orders"),
    ]
    pytest.importorskip("pyarrow")
    assert found.to_arrow().to_pylist() == list(found.rows())


def test_partition_when_only_the_coordinator_knows_it_then_is_a_row_without_an_offset(tmp_path: Path) -> None:
    write_log(tmp_path / STATE, [[state(partitions=(0, 1))]])
    found = transactions(tmp_path / STATE, now=DAY + 5)
    rows = [
        (row["partition"], row["first_offset"], row["open_ms"], row["is_hanging"]) for row in found.rows()
    ]
    assert rows == [(0, None, 5, None), (1, None, 5, None)]


def test_record_when_unknown_or_deleted_then_is_kept_raw_or_gone(tmp_path: Path) -> None:
    key, value = state()
    write_log(tmp_path / STATE, [[(key, value), (b"\0\x09x", b"\0\0"), (b"\0\0\0\5", value)], [(key, None)]])
    found = transactions(tmp_path)
    assert not found.states
    assert [one.offset for one in found.unknown] == [1, 2]


def test_replicas_when_a_partition_is_in_two_directories_then_it_counts_once(tmp_path: Path) -> None:
    folder = copied("3.9", tmp_path)
    found = transactions([FOLDER / "3.9", folder])
    assert found.open == transactions(folder).open
    assert len(found.notes) == 5
    assert found.notes[-1].startswith(f"orders-2: read from {FOLDER / '3.9' / 'orders-2'}, the longest log")


def test_damage_when_in_a_log_then_is_raised_or_skipped(tmp_path: Path) -> None:
    folder = copied("3.9", tmp_path)
    path = folder / STATE / name(0)
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=f"{STATE} at offset 0: .*position 0"):
        transactions(folder)
    damage: list[object] = []
    assert "open" in transactions(folder, on_damage=damage.append).states
    assert len(damage) == 1


def test_marker_when_its_crc_is_valid_and_its_key_is_not_then_is_damage(tmp_path: Path) -> None:
    batches = [
        transactional(0, 7, [(b"k", b"v")]),
        malformed_marker(1, 7),
        transactional(2, 8, [(b"k", b"v")]),
        marker(3, 8, commit=True),
    ]
    put_segment(tmp_path / str(ORDERS), 0, batches)
    with pytest.raises(CorruptRecordError, match=f"{ORDERS} at offset 1: {tmp_path / str(ORDERS)}: "):
        transactions(tmp_path)
    damage: list[SourceDamage] = []
    found = transactions(tmp_path, on_damage=damage.append)
    assert [one.transaction.producer_id for one in found.open] == [7]
    assert [(one.topic_partition, one.offset, one.next_offset) for one in damage] == [(ORDERS, 1, 2)]


def test_truncation_and_flip_when_anywhere_then_gives_a_state_or_one_clean_error(tmp_path: Path) -> None:
    source = (FOLDER / "4.x" / STATE / name(0)).read_bytes()[:900]
    path = put_segment(tmp_path / STATE, 0, [])
    for end in range(0, len(source), 7):
        path.write_bytes(source[:end])
        transactions(path.parent)
    for position in range(0, len(source), 5):
        data = bytearray(source)
        data[position] ^= 0x10
        path.write_bytes(data)
        assert is_clean(partial(transactions, path.parent))


def test_log_when_it_is_of_another_topic_then_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a partition of __transaction_state, found orders-0"):
        transactions(PartitionLog(FOLDER / "3.9" / "orders-0"))
