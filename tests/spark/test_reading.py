"""The data source without Spark: what is planned, and the rows that its tasks read."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

import kafkafmt as kf
from _kafkafmt.columns.columns import ColumnBuilder
from cli.logs import FIRST_TIMESTAMP, flip, segments, write_log
from data.real_logs import LOGS, NAMES, expected
from kafkafmt.log import PartitionLog
from kafkafmt.log.end_tracker import EndTracker
from kafkafmt.log.listing import list_segments
from kafkafmt.log.log_snapshot import LogSnapshot
from kafkafmt.log.segment import Segment
from kafkafmt.spark.data_source import KafkafmtDataSource
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.spark.source.reading import ReadTask, plan
from log.samples import batch, marker, moved, put_segment, transactional
from measure import peak_resident_bytes
from spark.reads import batches, offsets, options_of, rows, splits, struct

MIB = 1024 * 1024
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(header["key"], header["value"]) for header in row["headers"] or []]
    timestamp = milliseconds(row["timestamp"])
    return row["offset"], timestamp, row["timestampType"], row["key"], row["value"], headers


@pytest.mark.parametrize("split_bytes", ["1g", "1k"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", NAMES)
def test_real_log_when_read_then_rows_are_those_of_java_s_consumer(
    name: str, isolation: str, split_bytes: str
) -> None:
    found = rows(LOGS / name, isolation=isolation, splitBytes=split_bytes, includeHeaders="true")
    wanted = [one for one in expected(name) if one.committed or isolation == "read_uncommitted"]
    assert [content(row) for row in found] == [tuple(one[:6]) for one in wanted]
    topic, _, partition = name.rpartition("-")
    assert {(row["topic"], row["partition"]) for row in found} <= {(topic, int(partition))}


@pytest.mark.parametrize("split_bytes", ["1g", "1k"])
@pytest.mark.parametrize("name", NAMES)
def test_batches_when_put_end_to_end_then_are_the_segment(name: str, split_bytes: str) -> None:
    found = rows(LOGS / name, unit="batches", splitBytes=split_bytes)
    files: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        files.setdefault(row["file"], []).append(row)
    for path in segments(LOGS / name):
        written = path.read_bytes()
        batches_of = files.pop(str(path), [])
        joined = b"".join(row["batch"] for row in batches_of)
        assert (joined, set(written[len(joined) :])) == (
            written[: len(joined)],
            set(written[len(joined) :]) & {0},
        )
        with kf.FileRecords(path) as records:
            index = records.index()
        assert [row["position"] for row in batches_of] == index["position"].tolist()
        assert [row["lastOffset"] for row in batches_of] == index["last_offset"].tolist()
        assert [row["producerId"] for row in batches_of] == index["producer_id"].tolist()
        assert [row["crc"] for row in batches_of] == index["crc"].tolist()
        assert [row["isControl"] for row in batches_of] == index["is_control"].tolist()
        assert [-1 if row["count"] is None else row["count"] for row in batches_of] == index["count"].tolist()
        assert [row["codec"] for row in batches_of] == [kf.Codec(i).name.lower() for i in index["codec"]]
        horizons = [row["deleteHorizon"] is not None for row in batches_of]
        assert horizons == index["has_delete_horizon"].tolist()
    assert not files


def test_batches_when_read_then_nothing_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "orders-0", codec=kf.Codec.GZIP)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decompressed")

    monkeypatch.setattr("kafkafmt.codecs.decompress", refuse)
    assert len(rows(log, unit="batches")) == 12
    with pytest.raises(AssertionError, match="decompressed"):
        rows(log)


# Which is the only one before Spark 4.2.
TIMEZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


@pytest.mark.parametrize("unit", ["records", "batches"])
def test_arrow_batches_when_read_then_have_the_very_schema_that_spark_compares_with(unit: str) -> None:
    options = {"unit": unit, "includeHeaders": "true"}
    schema = struct(KafkafmtDataSource(options_of(LOGS, **options)).schema())
    for found in batches(LOGS, **options):
        found.validate(full=True)
        assert found.schema.equals(to_arrow_schema(schema, **TIMEZONE))


def test_schema_when_none_is_given_then_is_that_of_spark_s_kafka_source() -> None:
    columns = KafkafmtDataSource(options_of(LOGS)).schema()
    assert columns == (
        "`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, "
        "`timestamp` timestamp, `timestampType` int"
    )
    with_headers = KafkafmtDataSource(options_of(LOGS, includeHeaders="true")).schema()
    assert with_headers == columns + ", `headers` array<struct<key:string,value:binary>>"


def test_columns_when_chosen_then_only_those_are_built_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    original = ColumnBuilder

    def noted(columns: list[str], **options: bool) -> Any:
        built.append(list(columns))
        return original(columns, **options)

    monkeypatch.setattr("kafkafmt.columns.read.ColumnBuilder", noted)
    found = batches(LOGS / "none-0", columns="offset, KEY")
    assert {tuple(one.schema.names) for one in found} == {("offset", "key")}
    schema = StructType(
        [StructField("Partition", struct("`x` int").fields[0].dataType), StructField("OFFSET", LongType())]
    )
    found = batches(LOGS / "none-0", schema)
    assert {tuple(one.schema.names) for one in found} == {("Partition", "OFFSET")}
    assert built == [["offset", "key"], ["partition", "offset"]]
    (row, *_) = rows(LOGS / "none-0", unit="batches", columns="batch,size")
    assert list(row) == ["batch", "size"]
    assert len(row["batch"]) == row["size"]


@pytest.mark.parametrize(
    ("field", "options", "message"),
    [
        (StructField("ofset", LongType()), {}, "unknown column 'ofset': did you mean 'offset'?"),
        (StructField("offset", StringType()), {}, "schema: column offset: expected bigint, found string"),
        (StructField("offset", LongType(), False), {}, "schema: column offset: expected it nullable"),
        (StructField("offset", LongType()), {"columns": "key"}, "columns: the schema has others, offset"),
    ],
)
def test_schema_when_it_cannot_be_then_is_told_in_one_line(
    field: StructField, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match="column") as caught:
        batches(LOGS / "none-0", StructType([field]), **options)
    assert str(caught.value).startswith(message)


def test_schema_when_without_columns_then_is_told_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^schema: expected at least one column"):
        KafkafmtDataSource(options_of(LOGS)).reader(StructType([]))


def test_column_option_when_unknown_then_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"^unknown column 'valeu': did you mean 'value'\?$"):
        KafkafmtDataSource(options_of(LOGS, columns="valeu")).schema()


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("split_bytes", [1, 500, 1000, 2500, 100_000])
def test_splits_when_cut_then_lie_end_to_end_between_batches(
    tmp_path: Path, split_bytes: int, indexed: bool
) -> None:
    log = write_log(tmp_path / "orders-0", 60, segment_bytes=20_000)
    if not indexed:
        for path in [*log.glob("*.index"), *log.glob("*.timeindex")]:
            path.unlink()
    found = splits(log, splitBytes=split_bytes)
    for path in segments(log):
        parts = [split for split in found if split.segment.path == path]
        with kf.FileRecords(path) as records:
            starts = {one.position for one in records.batches()}
        assert {part.start for part in parts} <= starts
        edges = [edge for part in parts for edge in (part.start, part.end)]
        assert edges == [0, *(part.start for part in parts[1:] for _ in range(2)), path.stat().st_size]
        if not indexed and split_bytes == 1:
            assert len(parts) == len(starts)
    assert offsets(log, splitBytes=split_bytes) == list(range(600))
    assert [split.is_log_end for split in found] == [False] * (len(found) - 1) + [True]


def test_tasks_when_segments_are_small_then_hold_several_up_to_the_bytes_of_a_split() -> None:
    (task,) = plan(ReadOptions.parse(options_of(LOGS)))
    assert len(task.splits) == len([path for path in segments(LOGS) if path.stat().st_size])
    tasks = plan(ReadOptions.parse(options_of(LOGS, splitBytes="200k")))
    assert 1 < len(tasks) < len(task.splits)
    assert [split for task in tasks for split in task.splits] == list(task.splits)
    assert pickle.loads(pickle.dumps(tasks[0])).splits == tasks[0].splits


def test_arrow_batches_when_bounded_then_none_is_a_remnant_of_another(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 200, records=50)
    for bound in (5_000, 20_000, 70_000):
        sizes = [batch.nbytes for batch in batches(log, maxBatchBytes=bound)]
        assert len(sizes) > 5
        assert max(sizes) / 2 < min(sizes[:-1])


def test_arrow_batches_when_bounded_then_are_small(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 20, codec=kf.Codec.ZSTD, records=500)
    (largest, *_) = sorted((batch.nbytes for batch in batches(log, maxBatchBytes="10k")), reverse=True)
    assert 5_000 < largest < 12_000
    assert len(rows(log, maxBatchBytes="10k")) == 10_000
    plain = write_log(tmp_path / "plain-0", 100)
    several = [
        batch.nbytes for batch in batches(plain, unit="batches", maxBatchBytes="10k") if len(batch) > 1
    ]
    assert several
    assert max(several) < 12_000
    assert len(rows(plain, unit="batches", maxBatchBytes="1")) == 100


def drain(path: str, *options: str) -> None:
    """Read all, and keep nothing."""
    source = KafkafmtDataSource(options_of(path, splitBytes="1g", **dict(one.split("=") for one in options)))
    reader = source.reader(struct(source.schema()))
    for task in reader.partitions():
        for found in reader.read(task):
            del found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "count", "size", "codec", "option", "most_mebibytes"),
    [
        (10_000, 10, 1000, kf.Codec.NONE, "unit=records", 32),
        (10_000, 10, 1000, kf.Codec.NONE, "unit=batches", 32),
        (1, 1, 50 * MIB, kf.Codec.NONE, "maxBatchBytes=1m", 140),  # two copies of it
        (8, 100_000, 1024, kf.Codec.ZSTD, "maxBatchBytes=1m", 500),  # three of one batch, not all eight
    ],
    ids=["records", "batches", "large value", "batches that decompress to 100 MiB"],
)
def test_memory_when_a_task_reads_much_then_is_that_of_a_batch_and_its_columns_not_of_the_segment(
    tmp_path: Path, number: int, count: int, size: int, codec: kf.Codec, option: str, most_mebibytes: int
) -> None:
    builder = kf.RecordBatchBuilder(codec=codec)
    for _ in range(count):
        builder.append(0, b"", bytes(size))
    data = builder.build()
    path = put_segment(tmp_path / "orders-0", 0, (moved(data, first * count) for first in range(number)))
    before = [str(LOGS / "zstd-0")]
    grown = peak_resident_bytes("spark.test_reading", "drain", before, [str(path), option])
    assert grown < most_mebibytes * MIB


def offsets_json(**partitions: int) -> str:
    return json.dumps({"orders": {number.removeprefix("p"): offset for number, offset in partitions.items()}})


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("split_bytes", [500, 100_000])
def test_offsets_when_given_then_rows_are_those_from_start_to_in_front_of_end(
    tmp_path: Path, codec: kf.Codec, indexed: bool, split_bytes: int
) -> None:
    log = write_log(tmp_path / "orders-0", codec=codec)
    if not indexed:
        for path in log.glob("*index"):
            path.unlink()
    for start, end in [(0, 120), (5, 115), (20, 30), (33, 34), (40, 40), (119, 120), (120, 120), (0, 1)]:
        found = offsets(
            log,
            startingOffsets=offsets_json(p0=start),
            endingOffsets=offsets_json(p0=end),
            splitBytes=split_bytes,
        )
        assert found == list(range(start, end))
    assert offsets(log, startingOffsets=offsets_json(p0=-2), endingOffsets=offsets_json(p0=-1)) == list(
        range(120)
    )


def test_offsets_of_batches_when_given_then_the_batches_that_hold_some_are_read(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    found = rows(log, unit="batches", startingOffsets=offsets_json(p0=15), endingOffsets=offsets_json(p0=31))
    assert [row["baseOffset"] for row in found] == [10, 20, 30]


@pytest.mark.parametrize("name", ["legacy-v0-0", "legacy-v1-0", "compacted-0", "upgraded-0"])
def test_offsets_of_real_logs_when_given_then_bound_the_rows(name: str) -> None:
    wanted = [one.offset for one in expected(name)]
    topic = name.rpartition("-")[0]
    for start in range(0, wanted[-1], 17):
        bounds = {
            "startingOffsets": json.dumps({topic: {"0": start}}),
            "endingOffsets": json.dumps({topic: {"0": min(start + 30, wanted[-1])}}),
        }
        found = offsets(LOGS / name, **bounds)
        assert found == [offset for offset in wanted if start <= offset < min(start + 30, wanted[-1])]


@pytest.mark.parametrize("indexed", [True, False])
def test_timestamps_when_given_then_stand_for_the_offsets_that_kafka_finds(
    tmp_path: Path, indexed: bool
) -> None:
    log = write_log(tmp_path / "orders-0")
    if not indexed:
        for path in log.glob("*index"):
            path.unlink()
    for start, end in [(0, 120), (5, 115), (30, 31), (119, 400), (130, 400), (50, 20), (50, 50)]:
        found = offsets(log, startingTimestamp=FIRST_TIMESTAMP + start, endingTimestamp=FIRST_TIMESTAMP + end)
        assert found == list(range(start, min(end, 120)))
    back = LOGS / "time-travel-0"
    for one in expected("time-travel-0")[::5]:
        first = PartitionLog(back).find_timestamp(one.timestamp)
        assert first is not None
        assert offsets(back, startingTimestamp=one.timestamp)[0] == first.offset


TRANSACTIONS = [
    transactional(0, 1, 3),
    transactional(3, 2, 2),
    batch(5),
    marker(6, 1, commit=False),
    transactional(7, 1),
    marker(8, 2, commit=True),
    batch(9),
]


def test_committed_read_when_a_transaction_is_open_then_stops_in_front_of_it(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, TRANSACTIONS[:4])
    put_segment(tmp_path / "orders-0", 7, TRANSACTIONS[4:])
    assert offsets(tmp_path) == [0, 1, 2, 3, 4, 5, 7, 9]
    assert offsets(tmp_path, isolation="read_committed") == [3, 4, 5]
    committed = rows(tmp_path, isolation="read_committed", unit="batches")
    assert [row["baseOffset"] for row in committed] == [3, 5, 6]
    put_segment(tmp_path / "orders-0", 10, [marker(10, 1, commit=True)])
    assert offsets(tmp_path, isolation="read_committed", splitBytes=1) == [3, 4, 5, 7, 9]


def test_committed_read_when_a_broker_left_snapshots_then_only_the_last_segment_is_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "transactions-0"
    shutil.copytree(LOGS / "transactions-0", log)
    wanted = [one.offset for one in expected("transactions-0") if one.committed]
    tracked = []
    original = EndTracker._advance

    def advance(tracker: EndTracker, files: Any, segment: Segment, *of: int, is_abandoned: bool) -> Any:
        tracked.append(segment.base_offset)
        return original(tracker, files, segment, *of, is_abandoned=is_abandoned)

    monkeypatch.setattr(EndTracker, "_advance", advance)
    assert offsets(log, isolation="read_committed") == wanted
    assert tracked == [301]
    (log / f"{301:020d}.snapshot").unlink()
    assert offsets(log, isolation="read_committed") == wanted
    assert tracked == [301, 0, 151, 301]


def test_logs_when_several_then_are_planned_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        put_segment(tmp_path / f"orders-{number}", 0, [batch(0)])
    meet = threading.Barrier(4, timeout=60)
    original = LogSnapshot.splits
    monkeypatch.setattr(
        LogSnapshot, "splits", lambda log, *bounds: meet.wait() >= 0 and original(log, *bounds)
    )
    assert [split.segment.topic_partition.partition for split in splits(tmp_path)] == [0, 1, 2, 3]


@pytest.fixture
def after_listing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done to the files between their listing and all that is read of them."""

    def do(action: Callable[[], object]) -> None:
        def listed(*of: Any, **how: Any) -> list[Segment]:
            found = list_segments(*of, **how)
            action()
            return found

        monkeypatch.setattr("kafkafmt.scanning.logs.list_segments", listed)

    return do


@pytest.mark.parametrize("left", [None, 0, 34])
def test_transaction_index_when_not_as_it_was_listed_then_the_log_itself_is_asked(
    tmp_path: Path, after_listing: Callable[[Callable[[], object]], None], left: int | None
) -> None:
    log = tmp_path / "transactions-0"
    shutil.copytree(LOGS / "transactions-0", log)
    path = log / f"{0:020d}.txnindex"
    data = path.read_bytes()
    assert len(data) > 34
    after_listing(path.unlink if left is None else lambda: path.write_bytes(data[:left]))
    wanted = [one.offset for one in expected("transactions-0") if one.committed]
    assert offsets(log, isolation="read_committed") == wanted


def test_path_when_relative_then_tasks_have_absolute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0)])
    monkeypatch.chdir(tmp_path)
    assert [split.segment.path for given in ("orders-0", "orders-*", "**") for split in splits(given)] == [
        path
    ] * 3


def test_index_when_it_cannot_be_read_then_is_as_if_missing(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(offset) for offset in range(10)])
    (tmp_path / "orders-0" / f"{0:020d}.index").mkdir()
    bounds = {"startingOffsets": '{"orders":{"0":4}}', "endingOffsets": '{"orders":{"0":7}}'}
    assert offsets(tmp_path, splitBytes=100, **bounds) == [4, 5, 6]


@pytest.mark.parametrize("unit", ["records", "batches"])
def test_file_when_shorter_than_it_was_listed_then_is_an_error_and_no_end(tmp_path: Path, unit: str) -> None:
    log = write_log(tmp_path / "orders-0", segment_bytes=100_000)
    (path,) = segments(log)
    *_, last = kf.FileRecords(path).batches()
    source = KafkafmtDataSource(options_of(log, unit=unit))
    reader = source.reader(struct(source.schema()))
    (task,) = reader.partitions()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: last.position])
    with pytest.raises(
        EOFError, match=rf"^{path}: file truncated: expected {size} bytes.*, found {last.position}$"
    ):
        list(reader.read(task))
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        list(reader.read(task))
    assert str(caught.value) == f"{path}: No such file or directory"


def damaged_log(folder: Path) -> tuple[Path, Path, kf.RecordBatch]:
    log = write_log(folder / "orders-0")
    path = segments(log)[0]
    second = list(kf.FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    return log, path, second


@pytest.mark.parametrize("split_bytes", [1, 100_000])
def test_damage_when_met_then_is_one_line_with_file_position_and_offsets(
    tmp_path: Path, split_bytes: int
) -> None:
    log, path, second = damaged_log(tmp_path)
    for unit in ("records", "batches"):
        with pytest.raises(kf.CorruptRecordError) as caught:
            rows(log, unit=unit, splitBytes=split_bytes)
        line = str(caught.value)
        assert line.startswith(f"{path}: CRC mismatch")
        assert line.endswith(f"(batch at position {second.position}, offsets 10 to 19)")
    assert len(rows(log, unit="batches", verify="false")) == 12


def test_damage_when_passed_over_then_all_else_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, path, second = damaged_log(tmp_path)
    assert offsets(log, onCorrupt="skip") == [*range(10), *range(20, 120)]
    assert f"passed over {second.size_in_bytes} bytes: {path}" in caplog.text
    assert [row["baseOffset"] for row in rows(log, unit="batches", onCorrupt="skip")] == [
        0,
        *range(20, 120, 10),
    ]


def test_damage_when_kept_then_a_row_tells_it_in_its_place(tmp_path: Path) -> None:
    log, path, second = damaged_log(tmp_path)
    good, bad, *others = rows(log, unit="batches", onCorrupt="keep")
    assert (good["damage"], [row["damage"] for row in others]) == (None, [None] * 10)
    told = {name: value for name, value in bad.items() if value is not None}
    assert told.pop("damage").startswith("CRC mismatch")
    assert told == {
        "topic": "orders",
        "partition": 0,
        "baseOffset": 10,
        "lastOffset": 19,
        "file": str(path),
        "position": second.position,
        "size": second.size_in_bytes,
    }


@pytest.mark.parametrize("split_bytes", [1, 100_000])
def test_batch_length_when_it_lies_then_reading_goes_on_at_the_next_valid_batch(
    tmp_path: Path, split_bytes: int
) -> None:
    log = write_log(tmp_path / "orders-0", segment_bytes=100_000)
    (path,) = segments(log)
    second = list(kf.FileRecords(path).batches())[1]
    flip(path, second.position + 9)  # of its length: it reaches past the end
    with pytest.raises(kf.CorruptRecordError, match=f"{path}: .*position {second.position}"):
        offsets(log, splitBytes=split_bytes)
    assert offsets(log, splitBytes=split_bytes, onCorrupt="skip") == [*range(10), *range(20, 120)]


def test_batch_length_when_it_lies_then_bounds_are_not_looked_up_in_front_of_it_alone(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", segment_bytes=100_000)
    (path,) = segments(log)
    second = list(kf.FileRecords(path).batches())[1]
    flip(path, second.position + 9)
    for sidecar in log.glob("*index"):
        sidecar.unlink()
    end = offsets_json(p0=100)
    with pytest.raises(kf.CorruptRecordError, match=f"{path}: .*position {second.position}"):
        offsets(log, endingOffsets=end)
    assert offsets(log, endingOffsets=end, onCorrupt="skip") == [*range(10), *range(20, 100)]
    late = {"startingTimestamp": FIRST_TIMESTAMP + 55}
    with pytest.raises(kf.CorruptRecordError, match=f"{path}: .*position {second.position}"):
        offsets(log, **late)
    assert offsets(log, onCorrupt="skip", **late) == [*range(55, 120)]


@pytest.mark.parametrize("indexed", [True, False])
def test_timestamp_when_damage_is_in_the_way_then_the_search_goes_on_behind_it(
    tmp_path: Path, indexed: bool
) -> None:
    log, path, second = damaged_log(tmp_path)
    if not indexed:
        for sidecar in log.glob("*index"):
            sidecar.unlink()
    for start, wanted in [
        (5, [*range(5, 10), *range(20, 120)]),
        (15, [*range(20, 120)]),
        (25, [*range(25, 120)]),
    ]:
        assert offsets(log, onCorrupt="skip", startingTimestamp=FIRST_TIMESTAMP + start) == wanted
    with pytest.raises(kf.CorruptRecordError, match=f"{path}: CRC mismatch.*position {second.position}"):
        offsets(log, startingTimestamp=FIRST_TIMESTAMP + 15)


def test_committed_read_when_a_length_lies_then_what_follows_is_not_taken_for_missing(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, TRANSACTIONS)
    (path,) = segments(tmp_path)
    (plain,) = [one for one in kf.FileRecords(path).batches() if one.base_offset == 5]
    flip(path, plain.position + 9)
    with pytest.raises(kf.CorruptRecordError, match=f"{path}: .*position {plain.position}"):
        offsets(tmp_path, isolation="read_committed")
    put_segment(tmp_path / "orders-0", 10, [marker(10, 1, commit=True)])
    assert offsets(tmp_path, isolation="read_committed", onCorrupt="skip") == [3, 4, 7, 9]


def test_last_batch_when_cut_off_then_is_damage_but_at_the_log_s_end(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    first, *_, last = segments(log)
    last.write_bytes(last.read_bytes()[:-1])
    assert offsets(log) == list(range(110))
    whole = first.stat().st_size
    first.write_bytes(first.read_bytes() + bytes(30))
    with pytest.raises(
        kf.CorruptRecordError, match=rf"{first}: .*found 30 zeros \(batch at position {whole}"
    ):
        offsets(log)


def test_decompression_when_it_passes_its_bound_then_is_an_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", codec=kf.Codec.GZIP)
    with pytest.raises(
        kf.DecompressionLimitError, match=f"{segments(log)[0]}: .*option maxDecompressedBytes is 100"
    ):
        rows(log, maxDecompressedBytes="100")


def test_folder_when_not_a_partition_s_then_options_name_it(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "none-0", tmp_path / "saved")
    path = tmp_path / "saved"
    (first, *_) = rows(path)
    assert (first["topic"], first["partition"]) == (None, None)
    (first, *_) = rows(path, topic="orders", partition=3)
    assert (first["topic"], first["partition"]) == ("orders", 3)


def test_paths_when_topics_are_chosen_then_only_their_partitions_are_read() -> None:
    found = rows(LOGS, topics="partitions", columns="topic,partition")
    assert {tuple(row.values()) for row in found} == {("partitions", number) for number in range(3)}
    found = rows(f"{LOGS}/l*-0", subscribePattern="l.4|.*v0", columns="topic")
    assert {row["topic"] for row in found} == {"lz4", "legacy-v0"}


def test_s3_when_read_then_rows_are_those_of_local_files(s3_logs: str, s3_options: Mapping[str, str]) -> None:
    for options in ({"splitBytes": "2k"}, {"isolation": "read_committed"}, {"topics": "transactions"}):
        assert rows(s3_logs, **options, **s3_options) == rows(LOGS, **options)
    (first, *_) = rows(f"{s3_logs}/none-0", unit="batches", **s3_options)
    assert first["file"].startswith(f"{s3_logs}/none-0/")


def test_topic_when_not_in_a_uri_then_the_error_tells_no_secret(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    uri = f"{s3_logs}?{urlencode(s3_options)}"
    with pytest.raises(ValueError, match="no topic 'nine' in") as caught:
        rows(uri, topics="nine")
    assert s3_options["secret_key"] not in str(caught.value)


def bad_inputs(folder: Path) -> list[tuple[Path | str, dict[str, object], type[Exception], str]]:
    log = write_log(folder / "logs" / "orders-0")
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("no log")
    (folder / "text-0").mkdir()
    (folder / "text-0" / f"{0:020d}.log").write_text("no log at all " * 20)
    shutil.copytree(log, folder / "copy" / "orders-0")
    two = folder / "*" / "orders-0"
    return [
        (folder / "missing", {}, FileNotFoundError, "missing"),
        (folder / "missing-*", {}, FileNotFoundError, "missing-*"),
        (folder / "empty", {}, FileNotFoundError, "no segments"),
        (folder / "notes.txt", {}, ValueError, "notes.txt: expected a name of 20 digits"),
        (folder / "text-0", {}, kf.KafkaFormatError, "position 0"),
        (log, {"topics": "order"}, ValueError, "no topic 'order' in"),
        (two, {}, ValueError, "its records would be read twice"),
        (log, {"startingOffsets": offsets_json(p0=121)}, ValueError, "outside the log: the log has 0 to 120"),
        (log, {"endingOffsets": offsets_json(p0=121)}, ValueError, "endingOffsets 121 is outside the log"),
        (log, {"startingOffsets": offsets_json(p1=0)}, ValueError, "found none for orders-0"),
        (log, {"endingOffsets": offsets_json(p0=1, p1=0)}, ValueError, "orders-1: no such partition here"),
        (
            log,
            {"startingOffsets": offsets_json(p0=9), "endingOffsets": offsets_json(p0=8)},
            ValueError,
            "startingOffsets 9 is after endingOffsets 8",
        ),
        (
            segments(log)[1],
            {"startingOffsets": offsets_json(p0=1)},
            ValueError,
            "startingOffsets 1 is outside the log",
        ),
    ]


@pytest.mark.parametrize("number", range(13))
def test_bad_input_when_read_then_is_told_in_one_line(tmp_path: Path, number: int) -> None:
    path, options, kind, words = bad_inputs(tmp_path)[number]
    with pytest.raises(kind) as caught:
        rows(path, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_task_when_it_has_nothing_to_read_then_is_empty(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    at_end = offsets_json(p0=120)
    assert [task.splits for task in plan(ReadOptions.parse(options_of(log, startingOffsets=at_end)))] == [()]
    source = KafkafmtDataSource(options_of(log))
    assert list(source.reader(struct(source.schema())).read(ReadTask([]))) == []


def test_batch_rows_when_out_of_one_run_with_gaps_then_keep_their_bytes(tmp_path: Path) -> None:
    put_segment(
        tmp_path / "orders-0",
        0,
        [transactional(0, 1), batch(1), transactional(2, 1), marker(3, 1, commit=False)],
    )
    found = rows(tmp_path, unit="batches", isolation="read_committed")
    data = next(iter(segments(tmp_path))).read_bytes()
    assert [row["baseOffset"] for row in found] == [1, 3]
    for row in found:
        assert row["batch"] == data[row["position"] : row["position"] + row["size"]]


WITHOUT_PANDAS = """
import sys
from spark.reads import batches
for unit in ("records", "batches"):
    for options in ({}, {"startingOffsets": '{"headers": {"0": 15}}'}):
        assert batches(sys.argv[1], unit=unit, includeHeaders="true", **options)
assert "pandas" not in sys.modules
"""


def test_rows_when_read_then_pandas_is_not_imported() -> None:
    """It would cost each Python worker half a second."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(LOGS / "headers-0")]
    subprocess.run(command, env=environment, check=True)


def test_closed_segment_when_read_alone_and_cut_off_then_is_damaged(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0), batch(10)[:50]])
    put_segment(tmp_path / "orders-0", 20, [batch(20)])
    with pytest.raises(kf.CorruptRecordError):
        offsets(tmp_path / "orders-0" / f"{0:020d}.log")


def test_topics_when_they_differ_in_case_alone_then_are_two(tmp_path: Path) -> None:
    for topic in ("a", "A"):
        put_segment(tmp_path / f"{topic}-0", 0, [batch(0)])
    assert len(offsets(tmp_path, subscribe="a,A")) == 2 * len(offsets(tmp_path, subscribe="A"))


def test_batch_when_damage_makes_it_look_like_a_control_batch_then_damage_and_not_left_out(
    tmp_path: Path,
) -> None:
    """The bit that says so is under the CRC: leaving the batch out unchecked would lose its records."""
    hurt = bytearray(batch(3, 3))
    hurt[22] ^= 0x20
    put_segment(tmp_path / "t-0", 0, [batch(0, 3), bytes(hurt), batch(6)])
    with pytest.raises(kf.CorruptRecordError, match="CRC"):
        offsets(tmp_path / "t-0")
    assert offsets(tmp_path / "t-0", onCorrupt="skip") == [0, 1, 2, 6]
