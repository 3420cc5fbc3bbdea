"""A table is what the slow obvious one is, however often it was left off, and its state belongs to one source."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reference as ref
from jobs.logs import NOW, LogMaker, Row, latest, make_logs
from kafkafmt.errors import CorruptRecordError
from kafkafmt.jobs.partition_readers import READER_BYTES, PartitionReaders, select_logs
from kafkafmt.jobs.table import TABLE_COLUMNS, Table, TableError, TableRow, TableState, write_table
from kafkafmt.memory import MemoryPlan
from kafkafmt.types import TopicPartition

pytest.importorskip("rocksdict")

MIB = 1024 * 1024

Latest = dict[tuple[TopicPartition, bytes], Row]


def plan_of(total_bytes: int | str = "16m") -> MemoryPlan:
    return MemoryPlan(
        total_bytes, producer_bytes=0, consumer_bytes=READER_BYTES, buffered_bytes_per_partition="1m"
    )


def state_of(tmp_path: Path, *, topics: str | None = None, isolation: str = "read_committed") -> TableState:
    return TableState(tmp_path / "state", tmp_path / "logs", topics=topics, isolation=isolation)


def table_of(tmp_path: Path, plan: MemoryPlan | None = None, *, is_committed: bool = True) -> Table:
    readers = PartitionReaders(select_logs(tmp_path / "logs"), is_committed=is_committed)
    isolation = "read_committed" if is_committed else "read_uncommitted"
    return Table(readers, state_of(tmp_path, isolation=isolation), plan or plan_of())


def read_all(table: Table) -> None:
    while table.step() is not None:
        pass


def rows_in(table: Table) -> Latest:
    return {
        (row.topic_partition, row.key): Row(row.offset, row.timestamp, row.timestamp_type, row.key, row.value)
        for row in table.rows()
    }


def expected(logs: dict[TopicPartition, LogMaker], *, is_committed: bool = True) -> Latest:
    rows = {tp: log.committed if is_committed else log.every for tp, log in logs.items()}
    return {key: row._replace(headers=()) for key, row in latest(rows).items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_committed", [True, False])
def test_rows_when_logs_are_of_every_kind_then_are_the_latest_of_each_key(
    tmp_path: Path, seed: int, is_committed: bool
) -> None:
    logs = make_logs(tmp_path / "logs", seed=seed, topics=("a", "b"))
    with table_of(tmp_path, is_committed=is_committed) as table:
        table.assign(select_logs(tmp_path / "logs"))
        read_all(table)
        table.commit()
        assert rows_in(table) == expected(logs, is_committed=is_committed)
        seen = [row for log in logs.values() for row in (log.committed if is_committed else log.every)]
        assert table.records == len(seen)
        assert table.null_keys == sum(row.key is None for row in seen)


def test_rows_when_partitions_come_and_go_and_it_is_opened_anew_then_are_the_same(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs", partitions=6)
    rng = random.Random(3)
    records = 0
    for _ in range(6):
        with table_of(tmp_path) as table:
            for _ in range(4):
                table.revoke(logs)
                table.assign(rng.sample(sorted(logs), 3))
                for _ in range(2):
                    table.step()
            table.commit()
            records += table.records
    with table_of(tmp_path) as table:
        table.assign(logs)
        read_all(table)
        table.commit()
        assert rows_in(table) == expected(logs)
        assert records + table.records == sum(len(log.committed) for log in logs.values())


def test_table_when_it_was_not_committed_then_reads_that_again(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs")
    for commits in (False, True):
        with table_of(tmp_path) as table:
            table.assign(logs)
            read_all(table)
            assert table.records == sum(len(log.committed) for log in logs.values())
            if commits:
                table.commit()
    with table_of(tmp_path) as table:
        table.assign(logs)
        assert table.step() is None
        assert rows_in(table) == expected(logs)


def test_step_when_a_batch_cannot_be_read_then_what_is_behind_it_is_not_passed_over(tmp_path: Path) -> None:
    one = TopicPartition("t", 0)
    log = LogMaker(tmp_path / "logs" / "t-0", random.Random(1))
    log.plain(2, 5)
    claims_two = ref.batch(ref.record(0, 0, None, b"v"), 2, base_offset=log.next_offset, max_timestamp=NOW)
    log.batches.append(claims_two)
    log.next_offset += 2
    log.plain(2, 5)
    log.write()
    with table_of(tmp_path) as table:
        table.assign([one])
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="t-0 at offset"):
                read_all(table)
        table.commit()
    readers = PartitionReaders(select_logs(tmp_path / "logs"), skips_damage=True)
    with Table(readers, state_of(tmp_path), plan_of()) as table:
        table.assign([one])
        read_all(table)
        assert rows_in(table) == expected({one: log})


def test_table_when_logs_have_grown_then_reads_what_is_new(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs")
    with table_of(tmp_path) as table:
        table.assign(logs)
        read_all(table)
        table.commit()
    log = logs[TopicPartition("orders", 0)]
    log.plain(2, 40)
    log.write()
    more = make_logs(tmp_path / "logs", topics=("behind", "zebra"), partitions=1, seed=8)
    with table_of(tmp_path) as table:
        table.assign([*logs, *more])
        read_all(table)
        table.commit()
        assert table.records == 40 + sum(len(one.committed) for one in more.values())
        assert rows_in(table) == expected({**logs, **more})


def test_rows_when_a_partition_is_gone_then_are_those_of_the_others(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs")
    with table_of(tmp_path) as table:
        table.assign(logs)
        read_all(table)
        table.commit()
    shutil.rmtree(tmp_path / "logs" / "orders-2")
    del logs[TopicPartition("orders", 2)]
    with table_of(tmp_path) as table:
        table.assign(logs)
        assert rows_in(table) == expected(logs)


def test_table_when_its_memory_is_small_then_is_the_same_and_within_its_budget(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs", batches=60)
    with table_of(tmp_path, plan_of("4m")) as table:
        table.assign(logs)
        read_all(table)
        table.commit()
        assert rows_in(table) == expected(logs)
    assert table.budget.held_bytes == 0
    assert table.budget.peak_bytes <= table.budget.total_bytes


def test_assign_when_the_log_ends_in_front_of_its_position_then_says_so(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs", partitions=1)
    with table_of(tmp_path) as table:
        table.assign(logs)
        read_all(table)
        table.commit()
    shutil.rmtree(tmp_path / "logs")
    make_logs(tmp_path / "logs", partitions=1, batches=1)
    with table_of(tmp_path) as table, pytest.raises(TableError, match="orders-0 was read to offset"):
        table.assign(logs)


def test_state_when_of_another_source_or_selection_then_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    state_of(tmp_path)
    assert not state_of(tmp_path).is_new
    with pytest.raises(TableError, match="topics None, expected a"):
        state_of(tmp_path, topics="a")
    with pytest.raises(TableError, match="isolation read_committed, expected read_uncommitted"):
        state_of(tmp_path, isolation="read_uncommitted")
    with pytest.raises(TableError, match="expected the state of a table"):
        TableState(tmp_path, tmp_path, topics=None, isolation="read_committed")
    with pytest.raises(TableError, match="source"):
        TableState(tmp_path / "state", tmp_path, topics=None, isolation="read_committed")
    (tmp_path / "state" / "table.json").write_text("{}")
    with pytest.raises(TableError, match="found something else"):
        state_of(tmp_path)


def row(number: int, **changes: object) -> TableRow:
    made = TableRow(TopicPartition("t", number % 3), b"key %d" % number, b"v" * 50, number, number, 0)
    return made._replace(**changes)  # type: ignore[arg-type]


def test_write_table_when_memory_is_small_then_row_groups_are(tmp_path: Path) -> None:
    rows = [row(number) for number in range(1000)]
    path = tmp_path / "t.parquet"
    assert write_table(path, rows, memory_bytes=64 * 1024) == 1000
    with pq.ParquetFile(path) as file:
        assert file.schema_arrow.names == list(TABLE_COLUMNS)
        assert file.num_row_groups > 20
        found = file.read().to_pylist()
    assert [one["key"] for one in found] == [one.key for one in rows]
    assert list(tmp_path.iterdir()) == [path]


def test_write_table_when_memory_is_plenty_then_row_groups_stay_small(tmp_path: Path) -> None:
    value = bytes(16 * MIB)
    rows = (row(number, value=value) for number in range(9))
    assert write_table(tmp_path / "t.parquet", rows, memory_bytes=1 << 40) == 9
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    assert len(sizes) == 2
    assert max(sizes) <= 128 * MIB


def test_write_table_when_rows_fail_then_nothing_is_left(tmp_path: Path) -> None:
    def rows() -> Iterator[TableRow]:
        yield row(1)
        raise OSError(errno.EIO, os.strerror(errno.EIO), "store")

    with pytest.raises(OSError, match="store"):
        write_table(tmp_path / "t.parquet", rows(), memory_bytes=10**6)
    assert list(tmp_path.iterdir()) == []


def test_write_table_when_a_timestamp_is_any_of_kafkas_then_it_is_kept(tmp_path: Path) -> None:
    path, times = tmp_path / "t.parquet", [-1, 0, 1_700_000_000_123, 2**63 // 1000, 2**63 - 1]
    write_table(path, [row(number, timestamp=time) for number, time in enumerate(times)], memory_bytes=10**6)
    found = pq.read_table(path, columns=["timestamp"])
    assert found.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert found["timestamp"].cast(pa.int64()).to_pylist() == times
