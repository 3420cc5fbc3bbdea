"""The driver's side of a stream, without Spark: offsets, limits and tasks of logs that grow."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from data.real_logs import LOGS, NAMES, expected
from kafkafmt.log import PartitionLogWriter
from kafkafmt.records.file import FileRecords
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.scanning.splits import read_split
from kafkafmt.spark.source.log_stream import LogStream
from kafkafmt.spark.source.options import StreamOptions
from kafkafmt.spark.source.reading import ReadTask
from kafkafmt.spark.source.schema import OutputColumns, spark_schema
from kafkafmt.spark.source.streaming import LogSource
from kafkafmt.spark.stream_offsets import from_json, to_json
from kafkafmt.spark.stream_reader import StreamReader
from kafkafmt.spark.streaming import stream_reader
from kafkafmt.types import TopicPartition
from log.samples import batch, marker, transactional
from spark.growing import GrowingLog
from spark.reads import options_of, struct

ORDERS = TopicPartition("orders", 0)

Offsets = Mapping[TopicPartition, int]


class Query:
    """What Spark does with a stream: micro-batch after micro-batch, from what the one before came to."""

    def __init__(self, path: Path | str, reached: Offsets | None = None, **options: object) -> None:
        self.options = StreamOptions.parse(options_of(path, columns="topic,partition,offset", **options))
        schema = struct(spark_schema(self.options.read))
        self.output = OutputColumns.of(self.options.read, schema)
        self.stream = LogStream(self.options)
        self.reached = self.stream.initial_offsets() if reached is None else reached

    def trigger(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of the rows of the next micro-batch."""
        end = self.stream.latest_offsets(self.reached, self.options.limit)
        start, self.reached = self.reached, from_json(json.loads(json.dumps(to_json(end))))
        rows = self.rows(start, self.reached)
        self.stream.forget(self.reached)
        return rows

    def rows(self, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
        splits = [split for task in self.stream.tasks(start, end) for split in task.splits]
        batches = [rows for split in splits for rows in read_split(split, self.options.read, self.output)]
        return [tuple(row.values()) for rows in batches for row in rows.to_pylist()]

    def offsets(self) -> list[int]:
        return [offset for _, _, offset in self.trigger()]

    def triggers(self) -> Iterator[list[tuple[str, int, int]]]:
        """Micro-batches until one has nothing new."""
        before = None
        while before != self.reached:
            before = self.reached
            yield self.trigger()


def test_offsets_when_written_as_json_then_are_those_of_spark_s_kafka_source() -> None:
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 2): 7, TopicPartition("a", 0): 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 3}, "b": {"2": 7, "10": 1}}'
    assert from_json(to_json(offsets)) == offsets
    with pytest.raises(ValueError, match=r'^checkpoint: expected offsets as .*, found \{"?\'?index'):
        from_json({"index": 3})


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_log_when_it_grows_and_rolls_then_each_record_comes_once(
    tmp_path: Path, isolation: str, indexed: bool
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    query = Query(tmp_path, isolation=isolation)
    assert query.offsets() == []
    log.append_batches(3)
    if not indexed:
        for path in tmp_path.rglob("*index"):
            path.unlink()
    assert query.offsets() == list(range(30))
    assert query.offsets() == []
    log.append_batches()
    log.roll()
    log.append_batches(2)
    log.roll()
    assert query.offsets() == list(range(30, 60))
    log.append_batches()
    assert query.offsets() == list(range(60, 70))
    assert query.reached == {ORDERS: 70}


def test_batch_when_written_in_pieces_then_comes_once_it_is_whole(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches()
    query = Query(tmp_path)
    assert query.offsets() == list(range(10))
    data = batch(10, 10)
    for first, stop in pairwise([0, 1, 8, 12, 16, 17, 60, 61, 200, len(data) - 1]):
        log.append(data[first:stop])
        assert query.offsets() == []
        assert Query(tmp_path, {ORDERS: 0}).offsets() == list(range(10))
    log.append(data[-1:] + batch(20, 10)[:70])
    assert query.offsets() == list(range(10, 20))


def test_tail_of_zeros_when_preallocated_then_is_filled_later(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append(bytes(100_000))
    query = Query(tmp_path)
    now = time.time_ns() + 60 * 1_000_000_000  # a loaded machine is within the tick, too
    assert query.offsets() == []
    data = b"".join(batch(offset, 10) for offset in (0, 10, 20))
    for stop in (len(data) // 3, len(data)):
        with log.path.open("r+b") as file:
            file.write(data[:stop])
        os.utime(log.path, ns=(now, now))  # as if all were written within a tick of the clock
        assert query.offsets()
    assert query.reached == {ORDERS: 30}


def test_query_when_it_begins_again_then_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    found: list[int] = []
    reached: Offsets | None = None
    for number in range(6):
        log.append_batches(number % 3)
        log.append(batch(log.next_offset, 10)[: number * 30])
        query = Query(tmp_path, reached, maxRowsPerTrigger=15)
        found += query.offsets()
        reached = query.reached
        size = log.path.stat().st_size - number * 30
        os.truncate(log.path, size)
        if number == 3:
            log.roll()
    for rows in Query(tmp_path, reached).triggers():
        found += [offset for *_, offset in rows]
    assert found == list(range(60))


def test_micro_batch_when_planned_again_then_is_the_same_whatever_came_meanwhile(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(3)
    query = Query(tmp_path, maxRowsPerTrigger=20)
    start = query.reached
    rows = query.trigger()
    log.append_batches(3)
    again = Query(tmp_path, start)
    assert again.rows(start, query.reached) == rows == [("orders", 0, offset) for offset in range(20)]
    assert query.rows(start, query.reached) == rows


def test_partitions_and_topics_when_new_then_are_read_from_their_beginning(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    query = Query(tmp_path, topics="orders,visit*", startingOffsets="latest")
    assert (query.reached, query.trigger()) == ({}, [])
    shutil.rmtree(tmp_path / "orders-0")
    for name, base_offset in (("orders-0", 0), ("orders-1", 50), ("visits-0", 0), ("clicks-0", 0)):
        GrowingLog(tmp_path / name, base_offset).append_batches()
    found = query.trigger()
    assert {row[:2] for row in found} == {("orders", 0), ("orders", 1), ("visits", 0)}
    assert [offset for *_, offset in found] == [*range(10), *range(50, 60), *range(10)]


def test_path_when_it_holds_no_log_yet_then_is_waited_for_but_not_a_missing_one(tmp_path: Path) -> None:
    query = Query(tmp_path)
    assert query.trigger() == []
    assert Query(tmp_path / "*-0").trigger() == []
    GrowingLog(tmp_path / "orders-0").append_batches()
    assert len(query.trigger()) == 10
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        Query(tmp_path / "missing")
    GrowingLog(tmp_path / "saved" / "orders").append_batches()
    with pytest.raises(
        ValueError,
        match="orders: expected a folder named <topic>-<partition>, or the options topic and partition",
    ):
        Query(tmp_path / "saved" / "orders")
    assert len(Query(tmp_path / "saved" / "orders", topic="orders", partition=3).trigger()) == 10


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 0),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "Latest"}, 30),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, 30),
        ({"startingOffsets": '{"orders": {"0": -2}}'}, 0),
        ({"startingOffsets": '{"orders": {"0": 15}}'}, 15),
        ({"startingTimestamp": 1_700_000_000_012}, 12),
        ({"startingTimestamp": 1_800_000_000_000}, 30),
    ],
)
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 10}])
def test_beginning_when_given_then_is_that_of_the_first_micro_batch(
    tmp_path: Path, options: dict[str, object], first: int, limit: dict[str, object]
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(3)
    query = Query(tmp_path, **options, **limit)
    assert query.reached == {ORDERS: first}
    log.append_batches()
    assert [offset for rows in query.triggers() for *_, offset in rows] == list(range(first, 40))


def test_offsets_of_the_beginning_when_outside_the_log_then_are_an_error(tmp_path: Path) -> None:
    GrowingLog(tmp_path / "orders-0").append_batches()
    with pytest.raises(ValueError, match="startingOffsets 11 is outside the log: the log has 0 to 10"):
        Query(tmp_path, startingOffsets='{"orders": {"0": 11}}')
    with pytest.raises(ValueError, match="found none for orders-0"):
        Query(tmp_path, startingOffsets='{"orders": {"1": 1}}')


def lose(log: GrowingLog, how: str) -> str:
    """Take from a log of 60 records what a stream at offset 25 is to read; what it is told."""
    if how == "deleted":
        log.delete_first()
        return f"partition orders-0: expected offset 25, found the log to begin at 30 ({log.folder})"
    if how == "gone":
        shutil.rmtree(log.folder)
        return "partition orders-0: expected offset 25, found no such partition"
    log.delete_first()
    log.path.rename(log.folder / f"{0:020d}.log").write_bytes(batch(0, 20))
    return f"partition orders-0: expected offset 25, found the log to end at 20 ({log.folder})"


@pytest.mark.parametrize("how", ["deleted", "gone", "cut off"])
def test_data_when_lost_then_is_an_error_or_the_stream_goes_on(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(3)
    log.roll()
    log.append_batches(3)
    strict = Query(tmp_path, {ORDERS: 25})
    lenient = Query(tmp_path, {ORDERS: 25}, failOnDataLoss="false")
    told = lose(log, how)
    for plan in (
        lambda: strict.stream.latest_offsets({ORDERS: 25}),
        lambda: strict.rows({ORDERS: 25}, {ORDERS: 60}),
    ):
        with pytest.raises(DataLossError) as caught:
            plan()
        assert str(caught.value) == f"{told}; failOnDataLoss=false continues with the remaining records"
    expected_offsets = {"deleted": list(range(30, 60)), "gone": [], "cut off": []}[how]
    assert lenient.offsets() == expected_offsets
    assert lenient.offsets() == []
    assert [record.message for record in caplog.records] == [f"{told}: continuing with the remaining records"]
    assert lenient.reached == {ORDERS: {"deleted": 60, "gone": 25, "cut off": 20}[how]}
    if how == "cut off":
        with (log.folder / f"{0:020d}.log").open("ab") as file:
            file.write(batch(20, 10))
        assert lenient.offsets() == list(range(20, 30))


def test_new_partition_when_gone_at_a_restart_of_its_batch_then_is_lost(tmp_path: Path) -> None:
    GrowingLog(tmp_path / "orders-0").append_batches()
    query = Query(tmp_path, {ORDERS: 10})
    with pytest.raises(
        DataLossError, match=r"^partition orders-1: expected offset 10, found no such partition"
    ):
        query.rows({ORDERS: 10}, {ORDERS: 10, TopicPartition("orders", 1): 10})


def test_segment_when_written_anew_by_compaction_then_reading_goes_on_behind_what_was_read(
    tmp_path: Path,
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(6)
    query = Query(tmp_path, maxRowsPerTrigger=30)
    assert query.offsets() == list(range(30))
    first = log.path
    log.roll()
    log.append_batches()
    first.write_bytes(b"".join(batch(offset, 5, size=300) for offset in (0, 20, 40, 50)))
    assert [offset for rows in query.triggers() for *_, offset in rows] == [
        *range(40, 45),
        *range(50, 55),
        *range(60, 70),
    ]


def test_committed_stream_when_a_transaction_is_open_then_waits_in_front_of_it(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append(batch(0) + transactional(1, 1, 2) + batch(3))
    query = Query(tmp_path, isolation="read_committed")
    assert query.offsets() == [0]
    log.append(transactional(4, 2) + marker(5, 1, commit=False))
    assert query.offsets() == [3]
    log.next_offset = 6
    log.roll()
    log.append(batch(6) + marker(7, 2, commit=True)[:-1])
    assert query.offsets() == []
    log.append(marker(7, 2, commit=True)[-1:] + batch(8))
    assert query.offsets() == [4, 6, 8]
    again = Query(tmp_path, isolation="read_committed", maxRowsPerTrigger=2)
    assert [offset for rows in again.triggers() for *_, offset in rows] == [0, 3, 4, 6, 8]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_real_log_when_read_in_limited_micro_batches_then_rows_are_those_of_java_s_consumer(
    name: str, isolation: str
) -> None:
    wanted = [one.offset for one in expected(name) if one.committed or isolation == "read_uncommitted"]
    for limit in ({"maxRowsPerTrigger": 40}, {"maxBytesPerTrigger": "5k"}, {"maxFilesPerTrigger": 1}):
        query = Query(LOGS / name, isolation=isolation, **limit)
        found = [[offset for *_, offset in rows] for rows in query.triggers()]
        assert [offset for offsets in found for offset in offsets] == wanted


def fill(folder: Path, partitions: Mapping[int, int]) -> None:
    """Partitions with so many batches each, of 10 records and a bit more than 1 KB, ten in a segment."""
    for number, batches in partitions.items():
        log = GrowingLog(folder / f"orders-{number}")
        for first in range(0, batches, 10):
            if first:
                log.roll()
            log.append_batches(min(10, batches - first))


SIZE = len(batch(0, 10))


@pytest.mark.parametrize(
    ("limit", "measure", "most"),
    [
        ({"maxRowsPerTrigger": 100}, 1, 100),
        ({"maxOffsetsPerTrigger": 95}, 1, 95),
        ({"maxBytesPerTrigger": SIZE * 12 + 5}, SIZE // 10, SIZE * 12 + 5),
        ({"maxRowsPerTrigger": 1000, "maxBytesPerTrigger": SIZE * 5}, SIZE // 10, SIZE * 5),
    ],
)
def test_limit_when_set_then_is_kept_and_shared(
    tmp_path: Path, limit: dict[str, object], measure: int, most: int
) -> None:
    fill(tmp_path, {0: 40, 1: 20, 2: 0, 3: 1})
    query = Query(tmp_path, **limit)
    micro_batches = list(query.triggers())
    assert sorted(row for rows in micro_batches for row in rows) == [
        ("orders", number, offset)
        for number, count in ((0, 400), (1, 200), (3, 10))
        for offset in range(count)
    ]
    taken = [len(rows) * measure for rows in micro_batches[:-1]]
    assert max(taken) <= most
    assert min(taken[:-2]) > most // 2
    first = [number for _, number, _ in micro_batches[0]]
    assert 1 < first.count(0) / first.count(1) <= 4
    assert micro_batches[-1] == []


def test_limit_when_smaller_than_any_batch_then_one_is_read_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path, {0: 3, 1: 2})
    micro_batches = list(Query(tmp_path, maxBytesPerTrigger=1).triggers())
    assert [len(rows) for rows in micro_batches] == [10] * 5 + [0]
    # They take turns, so that none starves.
    assert {row[1] for rows in micro_batches[:3] for row in rows} == {0, 1}


def test_limit_of_files_when_set_then_segments_are_taken_whole(tmp_path: Path) -> None:
    fill(tmp_path, {0: 40, 1: 20})
    micro_batches = list(Query(tmp_path, maxFilesPerTrigger=3).triggers())
    assert [len(rows) for rows in micro_batches] == [300, 300, 0]
    assert [len(rows) for rows in Query(tmp_path, maxFilesPerTrigger=1).triggers()] == [100] * 6 + [0]


def test_limit_when_within_a_large_segment_then_the_index_leads_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PartitionLogWriter(tmp_path / "orders-0") as writer:
        for number in range(400):
            writer.append(batch(number * 10, 10, size=1000))
    read = noted_reads(monkeypatch)
    monkeypatch.setattr("kafkafmt.spark.source.limits._SCANNED_BYTES", 64 * 1024)
    for limit in ({"maxRowsPerTrigger": 3005}, {"maxBytesPerTrigger": "3m"}):
        query = Query(tmp_path, **limit)
        read.clear()
        reached = query.stream.latest_offsets(query.reached, query.options.limit)[ORDERS]
        assert sum(read) < 600_000
        assert reached == {"maxRowsPerTrigger": 3000}.get(
            next(iter(limit)), (3 << 20) // len(batch(0, 10, size=1000)) * 10
        )
        assert len(query.trigger()) == reached


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of segments from here on."""
    sizes: list[int] = []
    original = FileRecords.read_at

    def noted(records: FileRecords, position: int, size: int, memory: bytearray | None = None) -> Any:
        data = original(records, position, size, memory)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(FileRecords, "read_at", noted)
    return sizes


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 10}])
def test_trigger_when_little_is_new_then_the_driver_reads_little(
    tmp_path: Path, isolation: str, limit: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(400, size=1000)
    os.utime(log.path, (1, 1))  # what was written this instant is looked at once more
    query = Query(tmp_path, startingOffsets="latest", isolation=isolation, **limit)
    read = noted_reads(monkeypatch)
    for number in range(3):
        assert query.stream.latest_offsets(query.reached, query.options.limit) == query.reached
        assert sum(read) == 0
        log.append_batches()
        os.utime(log.path, (2 + number, 2 + number))
        start, end = query.reached, query.stream.latest_offsets(query.reached, query.options.limit)
        (task,) = query.stream.tasks(start, end)
        assert sum(read) < 40_000
        (split,) = task.splits
        assert split.end - split.start < 2000
        query.reached = end
        read.clear()


def test_end_when_fixed_then_what_comes_later_is_left(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(5)
    query = Query(tmp_path, maxRowsPerTrigger=20)
    query.stream.fix_end()
    log.append_batches(5)
    GrowingLog(tmp_path / "visits-0").append_batches()
    assert [len(rows) for rows in query.triggers()] == [20, 20, 10, 0]
    assert query.stream.end_offsets() == {ORDERS: 100, TopicPartition("visits", 0): 10}


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 20}])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(("place", "value"), [(16, 9), (9, 255)], ids=["magic", "length"])
def test_damage_when_met_then_ends_the_stream_or_is_passed_over(
    tmp_path: Path, limit: dict[str, object], isolation: str, place: int, value: int
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches(2)
    damaged = bytearray(batch(20, 10))
    damaged[place] = value
    limit = {**limit, "isolation": isolation}
    early = Query(tmp_path, onCorrupt="skip", **limit)
    assert early.offsets() == list(range(20))
    log.append(bytes(damaged))
    log.next_offset = 30
    log.append_batches(2)
    with pytest.raises(kf.KafkaFormatError, match=str(log.path)):
        list(Query(tmp_path, **limit).triggers())
    query = Query(tmp_path, onCorrupt="skip", **limit)
    found = [offset for rows in query.triggers() for *_, offset in rows]
    assert found == [*range(20), *range(30, 50)]
    log.append_batches()
    assert [offset for rows in query.triggers() for *_, offset in rows] == list(range(50, 60))
    assert [offset for rows in early.triggers() for *_, offset in rows] == list(range(30, 60))


def test_stream_of_batches_when_read_then_has_a_row_a_batch(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    options = StreamOptions.parse(options_of(tmp_path, unit="batches", columns="baseOffset,size"))
    output = OutputColumns.of(options.read, struct(spark_schema(options.read)))
    stream = LogStream(options)
    start = stream.initial_offsets()
    log.append_batches(3)
    (task,) = stream.tasks(start, stream.latest_offsets(start))
    (rows,) = [rows for split in task.splits for rows in read_split(split, options.read, output)]
    assert rows.column("baseOffset").to_pylist() == [0, 10, 20]


def test_limit_when_set_then_spark_is_told_of_one_and_all_hold(tmp_path: Path) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 knows no limits")
    GrowingLog(tmp_path / "orders-0").append_batches(5)
    for options, limit in [
        ({}, limits.ReadAllAvailable()),
        ({"maxRowsPerTrigger": 25}, limits.ReadMaxRows(25)),
        ({"maxFilesPerTrigger": 2, "maxRowsPerTrigger": 25}, limits.ReadMaxRows(25)),
        ({"maxFilesPerTrigger": 2}, limits.ReadMaxFiles(2)),
        ({"maxBytesPerTrigger": "1g", "maxRowsPerTrigger": 25}, limits.ReadMaxBytes(1 << 30)),
    ]:
        given = options_of(tmp_path, columns="offset", **options)
        reader = stream_reader(LogSource(given, struct("`offset` bigint")))
        assert reader.getDefaultReadLimit() == limit
        start = reader.initialOffset()
        reached = 20 if "maxRowsPerTrigger" in options else 50
        assert reader.latestOffset(start, limit) == {"orders": {"0": reached}}
        assert reader.latestOffset(start, limits.ReadAllAvailable()) == {"orders": {"0": 50}}
        assert reader.reportLatestOffset() == {"orders": {"0": 50}}


def test_reader_when_pyspark_has_no_limits_then_reads_to_the_end_and_refuses_them(tmp_path: Path) -> None:
    GrowingLog(tmp_path / "orders-0").append_batches(5)
    reader = StreamReader(LogSource(options_of(tmp_path, columns="offset"), struct("`offset` bigint")))
    start, end = reader.initialOffset(), reader.latestOffset()
    assert (start, end) == ({"orders": {"0": 0}}, {"orders": {"0": 50}})
    (task,) = reader.partitions(start, end)
    assert [row["offset"] for rows in reader.read(task) for row in rows.to_pylist()] == list(range(50))
    limited = StreamReader(LogSource(options_of(tmp_path, maxRowsPerTrigger=5), struct("`offset` bigint")))
    with pytest.raises(ValueError, match=r"^limits of a trigger: expected PySpark 4.2 or later"):
        limited.initialOffset()


@pytest.mark.parametrize("fails", [True, False])
def test_segment_when_deleted_between_plan_and_task_then_is_lost_data(
    tmp_path: Path, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches()
    first = log.path
    log.roll()
    log.append_batches()
    given = options_of(tmp_path, columns="offset", failOnDataLoss=fails)
    reader = StreamReader(LogSource(given, struct("`offset` bigint")))
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    log.delete_first()
    if fails:
        with pytest.raises(
            DataLossError, match=f"^{first}: the segment was deleted before it was read; failOn"
        ):
            list(reader.read(task))
    else:
        assert [rows.num_rows for rows in reader.read(task)] == [10]
        assert caplog.messages == [
            f"{first}: the segment was deleted before it was read: continuing without it"
        ]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("orders-0", "no such segment, and no other one in its folder"),
        ("orders-0/*", "no such segment, and no other one in its folder"),
        (f"orders-0/{10:020}.*", f"no such segment, but {0:020}.log may have its records"),
    ],
)
def test_segment_when_missing_without_retention_then_it_is_an_error(
    tmp_path: Path, gone: str, message: str, fails: bool
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    log.append_batches()
    second = log.roll()
    log.append_batches()
    log.roll()
    log.append_batches()
    given = options_of(tmp_path, columns="offset", failOnDataLoss=fails)
    reader = StreamReader(LogSource(given, struct("`offset` bigint")))
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    assert isinstance(task, ReadTask)
    for path in tmp_path.glob(gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=f"^{second}: {message}"):
        list(reader.read(ReadTask(task.splits[1:2])))


def test_s3_when_streamed_then_rows_are_those_of_local_files(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    options = {"topics": "transactions,segments", "isolation": "read_committed", "maxBytesPerTrigger": "20k"}
    there, here = Query(s3_logs, **options, **s3_options), Query(LOGS, **options)
    assert list(there.triggers()) == list(here.triggers())
    assert there.reached == here.reached


def test_limit_when_others_leave_too_little_for_a_large_batch_then_it_comes_all_the_same(
    tmp_path: Path,
) -> None:
    small, large = GrowingLog(tmp_path / "a-0"), GrowingLog(tmp_path / "b-0")
    large.append_batches(3, records=1000)
    query = Query(tmp_path, maxRowsPerTrigger=1000)
    found = []
    for _ in range(6):
        small.append_batches(1)
        found += query.trigger()
    assert sum(topic == "b" for topic, _, _ in found) == 3000
    assert sum(topic == "a" for topic, _, _ in found) >= 30


def test_offsets_without_batches_when_limited_then_are_passed(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "a-0")
    log.append_batches(2)
    log.next_offset = 500
    log.roll()
    query = Query(tmp_path, maxRowsPerTrigger=10)
    assert [len(query.trigger()) for _ in range(3)] == [10, 10, 0]
    assert query.reached == {TopicPartition("a", 0): 500}
