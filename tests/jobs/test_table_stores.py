"""Tables with each kind of store have the same rows, within the same budget.

Memory Management in Kafka Streams, "Triggering based Caches" and "Open Questions", 2.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kafkafmt as kf
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.jobs.table import Table, TableState
from kafkafmt.log import PartitionLogWriter
from kafkafmt.memory import MemoryPlan, StoreKind
from kafkafmt.types import TopicPartition

pytestmark = pytest.mark.slow

pytest.importorskip("rocksdict")

MIB = 1024 * 1024


Expected = dict[tuple[TopicPartition, bytes], tuple[int, bytes]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    """Two partitions whose keys take about 5 MiB in memory, and one in ten of the records is a tombstone."""
    folder = tmp_path_factory.mktemp("source") / "logs"
    chance, rows = random.Random(1), Expected()
    for number in range(2):
        one = TopicPartition("users", number)
        with PartitionLogWriter(folder / f"users-{number}") as writer:
            for first in range(0, 20_000, 500):
                builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4, base_offset=first)
                for offset in range(first, first + 500):
                    key = b"%06d" % chance.randrange(15_000)
                    value = None if chance.random() < 0.1 else b"%d " % offset * chance.randrange(40)
                    builder.append(1_700_000_000_000 + offset, key, value)
                    rows.pop((one, key), None)
                    if value is not None:
                        rows[one, key] = (offset, value)
                writer.append(builder.build())
    return folder, dict(sorted(rows.items()))


def table_of(folder: Path, source: Path, plan: MemoryPlan, moves: list[str]) -> Table:
    state = TableState(folder / "state", source, topics=None, isolation="read_committed")
    return Table(PartitionReaders(select_logs(source)), state, plan, on_move=moves.append)


@pytest.mark.parametrize("memory", [9 * MIB, 64 * MIB])
@pytest.mark.parametrize("kind", StoreKind)
def test_table_when_its_store_is_of_any_kind_then_rows_are_the_same_within_the_budget(
    source: tuple[Path, Expected], tmp_path: Path, kind: StoreKind, memory: int
) -> None:
    folder, rows = source
    moves: list[str] = []
    with table_of(tmp_path, folder, plan_for(memory, 1, 1, store_kind=kind), moves) as table:
        table.assign(select_logs(folder))
        while (read := table.step()) is not None:
            if read % 3 == 0:
                table.commit()
        table.write(tmp_path / "table.parquet")
        found = {(row.topic_partition, row.key): (row.offset, row.value) for row in table.rows()}
        assert table.budget.peak_bytes <= table.budget.total_bytes
    assert list(found.items()) == list(rows.items())
    is_moved = kind is StoreKind.IN_MEMORY and memory < 64 * MIB
    assert len(moves) == is_moved
    assert all(move.endswith(" bytes of memory: moved into RocksDB") for move in moves)
    is_on_disk = is_moved or kind is not StoreKind.IN_MEMORY
    assert (tmp_path / "state" / "store").exists() == is_on_disk
    assert pq.read_metadata(tmp_path / "table.parquet").num_rows == len(rows)


@pytest.mark.parametrize("memory", [9 * MIB, 64 * MIB])
def test_table_in_memory_when_it_was_interrupted_then_the_next_run_ends_with_the_same(
    source: tuple[Path, Expected], tmp_path: Path, memory: int
) -> None:
    """Without a state on disk, logs are read from their start; a state that was moved continues at its last commit."""
    folder, rows = source
    plan = plan_for(memory, 1, 1, store_kind=StoreKind.IN_MEMORY)
    with table_of(tmp_path, folder, plan, []) as table:
        table.assign(select_logs(folder))
        for _ in range(2):
            table.step()
        table.commit()
        table.step()  # is not committed
        committed = table.records
    continues = (tmp_path / "state" / "store").exists()
    with table_of(tmp_path, folder, plan, []) as table:
        table.assign(select_logs(folder))
        while table.step() is not None:
            pass
        table.commit()
        found = {(row.topic_partition, row.key): (row.offset, row.value) for row in table.rows()}
        records = table.records
    assert found == rows
    assert continues == (memory < 64 * MIB)
    assert 40_000 - committed < records < 40_000 if continues else records == 40_000
