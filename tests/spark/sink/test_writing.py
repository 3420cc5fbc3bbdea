"""What is written, read back: formats, codecs, offsets, and rows that cannot be written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafkafmt as kf
from kafkafmt.log import LogDirectory, find_damage
from kafkafmt.spark.sink import writing
from log.samples import entries
from spark.reads import batches, rows
from spark.writes import arrow, content, job, staged, write

DAY = datetime(2023, 11, 14, tzinfo=timezone.utc)
NO_TIMESTAMP = datetime(1970, 1, 1, tzinfo=timezone.utc) - timedelta(milliseconds=1)
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def record(offset: int, topic: str = "orders", partition: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": None if offset % 11 == 0 else DAY + timedelta(milliseconds=offset * 37 % 500),
        "key": None if offset % 3 == 0 else b"key-%d" % offset,
        "value": None if offset % 7 == 0 else b"value " * (offset % 20),
        "headers": [("h", b"1"), ("h", None), ("", b"")] if offset % 5 == 0 else [],
        **fields,
    }


def as_dicts(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they are read: without headers is with none of them, and no timestamp is one of -1."""
    return [
        {
            **row,
            "timestamp": row["timestamp"] or NO_TIMESTAMP,
            "headers": [{"key": key, "value": value} for key, value in row.get("headers") or []],
        }
        for row in found
    ]


def read(folder: Path) -> list[dict[str, Any]]:
    found = rows(folder, columns=",".join(COLUMNS))
    for row in found:
        row["headers"] = row["headers"] or []
    return found


def without(found: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in found]


def ensure_sound(folder: Path) -> None:
    for where in (directory := LogDirectory(folder)).partitions():
        for segment in directory.partition(where).segments():
            with segment.open() as records:
                assert list(find_damage(records)) == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_records_when_written_and_read_then_are_the_same(tmp_path: Path, magic: int, codec: str) -> None:
    if magic < 2 and codec == "zstd":
        pytest.skip("zstd came with format v2")
    wanted = [record(offset * offset + 5) for offset in range(60)]
    if magic < 2:
        wanted = without(wanted, "headers")
    if magic < 1:
        wanted = [{**row, "timestamp": None} for row in wanted]
    write(tmp_path, wanted, codec=codec, magic=magic, batchSize=300)
    found = read(tmp_path)
    assert found == as_dicts(wanted)
    headers = batches(tmp_path, unit="batches")[0].to_pylist()
    assert {(row["magic"], row["codec"]) for row in headers} == {(magic, codec)}
    assert (headers[0]["baseOffset"] or 5) == 5
    ensure_sound(tmp_path)


@pytest.mark.parametrize("offsets", ["keep", "dense"])
@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (1, "lz4"), (2, "none"), (2, "zstd")])
def test_timestamp_type_when_in_the_rows_then_is_that_of_the_records(
    tmp_path: Path, magic: int, codec: str, offsets: str
) -> None:
    """Runs of records with one log append time, of others with another, and of records with times of their own."""

    def row(offset: int) -> dict[str, Any]:
        number, types = offset // 6, (0, 1, 1, None, 1, -1)
        time = DAY + timedelta(milliseconds=number if types[number % 6] == 1 else offset)
        fields = {"timestamp": None if types[number % 6] == -1 else time, "timestampType": types[number % 6]}
        return without([record(offset, **fields)], "headers")[0]

    everything = [row(offset) for offset in range(100)]
    write(
        tmp_path, everything[:50], everything[50:], magic=magic, codec=codec, offsets=offsets, batchSize=300
    )
    found = rows(tmp_path, columns="offset,timestamp,timestampType,value")
    wanted = [max(one["timestampType"] or 0, 0) for one in everything]
    assert [one["timestampType"] for one in found] == wanted
    assert [one["timestamp"] for one in found] == [one["timestamp"] or NO_TIMESTAMP for one in everything]
    assert [one["value"] for one in found] == [one["value"] for one in everything]
    ensure_sound(tmp_path)
    again = tmp_path / "again"
    write(again, [{"topic": "t", "partition": 0, **one} for one in found], magic=magic, codec=codec)
    assert rows(again, columns="offset,timestamp,timestampType,value") == found


def test_timestamp_type_when_format_v0_has_none_or_unknown_then_is_left_out_or_refused(
    tmp_path: Path,
) -> None:
    everything = without([record(offset, timestampType=1) for offset in range(5)], "headers")
    write(tmp_path / "v0", everything, magic=0)
    assert {one["timestampType"] for one in rows(tmp_path / "v0", columns="timestampType")} == {-1}
    expected = "expected -1 (NO_TIMESTAMP), 0 (CREATE_TIME), 1 (LOG_APPEND_TIME), found 7"
    with pytest.raises(ValueError, match=re.escape(expected)):
        write(tmp_path / "seven", [{**everything[0], "timestampType": 7}])
    assert content(tmp_path / "seven") == []


@pytest.mark.parametrize("offsets", ["keep", "dense"])
def test_partitions_when_mixed_in_every_task_then_each_is_whole_and_in_order(
    tmp_path: Path, offsets: str
) -> None:
    everything = [record(offset, f"t{offset % 3}", offset % 4) for offset in range(400)]
    tasks = [everything[:150], [], everything[150:155], everything[155:]]
    write(tmp_path, *tasks, offsets=offsets, batchSize=200)
    wanted = sorted(as_dicts(everything), key=lambda row: (row["topic"], row["partition"], row["offset"]))
    found = read(tmp_path)
    if offsets == "keep":
        assert found == wanted
    else:
        assert without(found, "offset") == without(wanted, "offset")
        for where in LogDirectory(tmp_path).partitions():
            log = LogDirectory(tmp_path).partition(where)
            assert [one.offset for one in log.records()] == list(range(log.end_offset))
    ensure_sound(tmp_path)


def test_memory_when_bounded_then_the_same_records_in_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [record(offset, partition=offset % 50) for offset in range(1000)]
    write(tmp_path / "a", everything)
    monkeypatch.setattr(writing, "_OPEN_FILES", 2)
    write(tmp_path / "b", everything, maxBufferBytes=100_000, segmentBytes=400)
    assert read(tmp_path / "b") == read(tmp_path / "a")
    assert len(list(tmp_path.glob("b/*/*.log"))) > len(list(tmp_path.glob("a/*/*.log"))) == 50
    assert all(path.stat().st_size <= 400 for path in tmp_path.glob("b/*/*.log"))
    ensure_sound(tmp_path / "b")


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("batch_size", [150, 5000])
def test_dense_when_appended_then_offsets_and_indexes_go_on(
    tmp_path: Path, magic: int, codec: str, batch_size: int
) -> None:
    rows = [{"value": b"%d" % number * 40} for number in range(300)]
    options = {"magic": magic, "codec": codec, "batchSize": batch_size, "topic": "t", "partition": 3}
    if magic == 0 and codec != "none":
        with pytest.raises(ValueError, match="option offsets: dense needs magic 1 or 2, or no codec"):
            write(tmp_path, rows, **options)
        return
    for _ in range(2):
        write(tmp_path, rows[:100], rows[100:], segmentBytes=3000, **options)
    log = LogDirectory(tmp_path).partition(("t", 3))
    assert [(one.offset, one.value) for one in log.records()] == [
        (number, rows[number % 300]["value"]) for number in range(600)
    ]
    for segment in log.segments():
        assert segment.base_offset == next(segment.open().records()).offset
        for relative, position in entries(segment.path, ".index"):
            with segment.open(position) as found:
                assert next(found.batches()).last_offset == segment.base_offset + relative
    ensure_sound(tmp_path)


def test_timestamp_when_there_is_no_column_then_is_now_and_one_for_a_task(tmp_path: Path) -> None:
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    write(tmp_path, [{"value": b"a"}] * 20, topic="t", partition=0)
    (found,) = {row["timestamp"] for row in read(tmp_path)}
    assert before <= found <= datetime.now(timezone.utc)


def test_options_topic_and_partition_when_given_then_win_over_columns(tmp_path: Path) -> None:
    write(tmp_path, [record(1), record(2, "other", 9)], topic="mine", partition=5)
    assert {(row["topic"], row["partition"]) for row in read(tmp_path)} == {("mine", 5)}


# Batches


def source_log(folder: Path, **options: Any) -> bytes:
    write(folder, [record(offset * 3) for offset in range(200)], batchSize=500, **options)
    (path,) = folder.rglob("*.log")
    return path.read_bytes()


def batch_rows(folder: Path) -> list[dict[str, Any]]:
    return rows(folder, unit="batches", columns="topic,partition,batch")


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_when_written_then_are_the_bytes_that_were_read(tmp_path: Path, codec: str) -> None:
    data = source_log(tmp_path / "a", codec=codec)
    found = batch_rows(tmp_path / "a")
    joined = [{**found[0], "batch": found[0]["batch"] + found[1]["batch"]}, *found[2:]]
    write(tmp_path / "b", joined, unit="batches")
    (path,) = (tmp_path / "b").rglob("*.log")
    assert (path.read_bytes(), path.name) == (data, f"{0:020d}.log")


def test_batches_when_dense_then_offsets_alone_change(tmp_path: Path) -> None:
    source_log(tmp_path / "a", codec="zstd")
    found = batch_rows(tmp_path / "a")
    write(tmp_path / "b", found[5:], found[2:4], unit="batches", offsets="dense")
    log = LogDirectory(tmp_path / "b").partition(("orders", 0))
    written = [bytes(one.buffer) for one in log.batches()]
    assert [one[8:] for one in written] == [row["batch"][8:] for row in found[5:] + found[2:4]]
    ends = [0]
    for one in log.batches():
        assert one.base_offset == ends[-1]
        ends.append(one.next_offset)
    assert [one.value for one in log.records()][-1] == record(
        next(iter(kf.MemoryRecords(found[3]["batch"]).batches())).last_offset
    )["value"]


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        (lambda data: data[:-1], ValueError, "partition orders-0: expected whole batches"),
        (
            lambda data: data[:80] + b"X" + data[81:],
            kf.CorruptRecordError,
            "partition orders-0: CRC mismatch",
        ),
        (lambda data: b"", ValueError, None),
        (lambda data: None, ValueError, "column batch: expected a value in each row, found 1 nulls"),
        (lambda data: b"nonsense" * 9, kf.KafkaFormatError, "partition orders-0: "),
    ],
)
def test_batch_when_it_is_none_then_one_line_and_nothing_is_written(
    tmp_path: Path, change: Any, error: type[Exception], line: str | None
) -> None:
    source_log(tmp_path / "a")
    found = batch_rows(tmp_path / "a")
    found[3]["batch"] = change(found[3]["batch"])
    if line is None:  # a row of no batches is one of no bytes
        write(tmp_path / "b", found, unit="batches")
        return
    with pytest.raises(error, match=line) as caught:
        write(tmp_path / "b", found, unit="batches")
    assert "\n" not in str(caught.value)
    assert content(tmp_path / "b") == []


def test_compressed_batches_of_old_formats_when_dense_then_refused_and_kept_else(tmp_path: Path) -> None:
    wanted = [record(offset, headers=[]) for offset in range(50)]
    write(tmp_path / "a", without(wanted, "headers"), magic=1, codec="gzip", batchSize=400)
    found = batch_rows(tmp_path / "a")
    with pytest.raises(
        kf.InvalidRecordError, match="offsets=dense: expected batches of format v2, or no codec"
    ):
        write(tmp_path / "b", found, unit="batches", offsets="dense")
    write(tmp_path / "b", found, unit="batches")
    assert read(tmp_path / "b") == as_dicts(wanted)


# Kafka's own reading of it


@pytest.mark.broker
@pytest.mark.xdist_group("broker")
def test_segments_when_kafka_dumps_them_then_are_sound(tmp_path: Path) -> None:
    """Written in several tasks and moved behind what is there, so that headers were written over."""
    from broker.broker import Broker  # needs Kafka's jars

    plain = [{**record(offset, headers=[]), "topic": "all"} for offset in range(120)]
    written = without(plain, "offset", "headers")
    for partition, (magic, codec) in enumerate(
        [(0, "none"), (1, "none"), (1, "lz4"), (2, "none"), (2, "zstd")]
    ):
        for _ in range(2):
            options = {"magic": magic, "codec": codec, "partition": partition, "batchSize": 500}
            write(tmp_path / "logs", written[:50], written[50:], **options)
    paths = sorted((tmp_path / "logs").rglob("*.log"))
    assert len(paths) == 5 * 4
    dumped = Broker(tmp_path).dump_log(paths, "--deep-iteration")
    found = re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)
    assert [int(offset) for offset in found] == list(range(240)) * 5
    indexes = [path.with_suffix(suffix) for path in paths for suffix in (".index", ".timeindex")]
    checked = Broker(tmp_path).dump_log(indexes, "--verify-index-only")
    assert not re.search(r"mismatch|corrupt|not found|isvalid: false", dumped + checked, re.IGNORECASE)


# What cannot be written


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (record(49), "partition orders-0: column offset: expected 50 or more, found 49: offsets have to ascend"),
        ({**record(60, "other"), "offset": -1}, "partition other-0: column offset: expected 0 or more, found -1"),
        (record(60, "no/topic"), "column topic: expected up to 249 letters, .* found 'no/topic'"),
        (record(60, None), "column topic: expected a value in each row, found 1 nulls"),
        (record(60, partition=-2), "column partition: expected 0 to 2147483647, found -2"),
        (record(60, partition=None), "column partition: expected a value in each row, found 1 nulls"),
        (record(60, timestamp=DAY.replace(year=1950)), "partition orders-0: timestamps, entry .: expected -1"),
        (record(60, headers=[(None, b"")]), "partition orders-0: headers' keys, entry .: expected a key, found null"),
    ],
)  # fmt: skip
def test_row_when_it_cannot_be_written_then_one_line_and_nothing_is_there(
    tmp_path: Path, row: dict[str, Any], line: str
) -> None:
    good = [record(offset) for offset in range(50)]
    before = job(tmp_path, *COLUMNS)
    with pytest.raises(ValueError, match=line) as caught:
        staged(before, good, [*good[:48], *([row] if row["offset"] != 49 else [record(49), row])])
    assert "\n" not in str(caught.value)
    before.abort([])
    assert content(tmp_path) == []


def test_headers_when_the_format_has_none_then_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="partition orders-0: headers, entry 0: headers need message format v2"
    ):
        write(tmp_path, [record(5)], magic=1)


def test_task_when_it_fails_then_leaves_no_file_open(tmp_path: Path) -> None:
    rows = [{"value": bytes(700_000), "topic": "t", "partition": number % 5} for number in range(10)]
    one = job(tmp_path, *rows[0])
    opened: list[set[str]] = []

    def given() -> Iterator[pa.RecordBatch]:
        yield from arrow(rows)
        opened.append(open_files(tmp_path))
        yield from arrow([{**rows[0], "partition": -1}])

    with pytest.raises(ValueError, match="partition"):
        one.write(given())
    assert opened != [set()]
    assert open_files(tmp_path) == set()


def open_files(folder: Path) -> set[str]:
    """Those under a folder that this process has open. Other threads open and close files elsewhere meanwhile."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {path for path in found if path.startswith(f"{folder}/")}
