"""`kafkafmt.scan` over logs: the same records as Java's consumer and as `Records`, whatever is asked for."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from data.real_logs import LOGS, NAMES, ExpectedRecord, expected
from file_systems import CountingHandler, far
from kafkafmt._util.user_errors import UserError
from kafkafmt.columns.read import COLUMNS
from kafkafmt.log import PartitionLog
from log.samples import DAY, batch, moved, put_segment

ISOLATIONS = ["read_uncommitted", "read_committed"]
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
PARTITIONS = {
    name: kf.TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in NAMES
}
RECORDS = {one: expected(name) for name, one in PARTITIONS.items()}


def row_of(one: kf.TopicPartition, record: ExpectedRecord) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": one.topic,
        "partition": one.partition,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
        "timestampType": record.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }


def offsets_of(scan: kf.Scan) -> list[int]:
    return [offset for rows in scan.to_batches(["offset"]) for offset in rows["offset"].to_pylist()]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_scan_when_of_a_real_log_then_has_the_records_of_java_s_consumer(name: str, isolation: str) -> None:
    one = PARTITIONS[name]
    wanted = [row_of(one, record) for record in RECORDS[one] if record.committed or "un" in isolation]
    scan = kf.scan(LOGS / name, columns=COLUMNS, isolation=isolation, batch_bytes=10_000)
    assert scan.to_arrow().to_pylist() == wanted
    tasks = scan.tasks(split_bytes=20_000)
    assert [row for task in tasks for rows in task.read() for row in rows.to_pylist()] == wanted
    assert all(list(task.ranges) == [one] for task in tasks)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_scan_when_of_a_part_of_a_log_then_is_what_the_partition_log_has(isolation: Any) -> None:
    for name in ("transactions-0", "open-transaction-0", "compacted-0", "upgraded-0", "mixed-codecs-0"):
        log = PartitionLog(LOGS / name)
        middle = [record.offset for record in log.records()][len(RECORDS[PARTITIONS[name]]) // 2]
        for bounds in ((None, middle), (middle, None), (middle, middle + 7), (middle, middle)):
            scan = kf.scan(LOGS / name, offsets=bounds, isolation=isolation)
            records = log.records(*bounds, isolation=isolation)
            found = [(record.offset, record.key, record.value) for record in records]
            assert [(row["offset"], row["key"], row["value"]) for row in scan.to_arrow().to_pylist()] == found


# Transaction markers have timestamps, too, and searches find them, as Kafka's do.
CLOCKS = {
    one: [(record.offset, record.timestamp) for record in PartitionLog(LOGS / name).records(control=True)]
    for name, one in PARTITIONS.items()
}


def following(one: kf.TopicPartition, timestamp: int | None) -> int | None:
    """The slow way to find the first record at or after a time; None for no bound, 2^63 for no record."""
    if timestamp is None:
        return None
    return next((offset for offset, found in CLOCKS[one] if found >= timestamp), 2**63)


TIMES = sorted(
    {record.timestamp for records in RECORDS.values() for record in records if record.timestamp > 0}
)
OFFSETS = st.one_of(st.none(), st.integers(0, 2100))


def pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.tuples(values, values).map(lambda pair: pair if None in pair else (min(pair), max(pair)))


@settings(max_examples=25, deadline=None)
@given(
    offsets=pairs(OFFSETS),
    timestamps=pairs(st.one_of(st.none(), st.sampled_from(TIMES), st.integers(TIMES[0] - 2, TIMES[-1] + 2))),
    columns=st.permutations(COLUMNS).flatmap(
        lambda names: st.integers(1, 8).map(lambda count: names[:count])
    ),
    partitions=st.sets(st.sampled_from(sorted(RECORDS)), min_size=1, max_size=4),
)
def test_scan_when_of_any_offsets_times_partitions_and_columns_then_has_those_records(
    offsets: Any, timestamps: Any, columns: list[str], partitions: set[kf.TopicPartition]
) -> None:
    scan = kf.scan(
        LOGS,
        partitions=partitions,
        offsets=offsets,
        timestamps=timestamps,
        columns=columns,
        batch_bytes=30_000,
    )
    wanted = []
    for one in sorted(partitions):
        starts = [bound for bound in (offsets[0], following(one, timestamps[0])) if bound is not None]
        ends = [bound for bound in (offsets[1], following(one, timestamps[1])) if bound is not None]
        for record in RECORDS[one]:
            if max(starts, default=0) <= record.offset < min(ends, default=2**63):
                row = row_of(one, record)
                wanted.append({name: row[name] for name in columns})
    assert scan.to_arrow().to_pylist() == wanted
    assert scan.schema.names == columns


def test_scan_when_the_log_grows_then_reads_what_was_there_when_its_ranges_were_asked_for(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    scan, later = kf.scan(tmp_path), kf.scan(tmp_path)
    assert scan.ranges() == {("orders", 0): (0, 5)}
    path.write_bytes(path.read_bytes() + batch(5, 5))
    put_segment(tmp_path / "orders-0", 10, [batch(10, 5)])
    copy = pickle.loads(pickle.dumps(scan))
    assert offsets_of(scan) == offsets_of(copy) == list(range(5))
    assert offsets_of(later) == list(range(15))


def test_scan_when_asked_twice_then_reads_twice(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    scan = kf.scan(tmp_path)
    assert scan.to_arrow() == scan.to_arrow() == pa.table(scan)
    assert pa.RecordBatchReader.from_stream(scan).schema == scan.schema


def test_tasks_when_pickled_then_read_the_same() -> None:
    scan = kf.scan(LOGS, topics=["seg*", "gzip"], columns=["topic", "offset", "value"])
    tasks = pickle.loads(pickle.dumps(scan.tasks(50_000)))
    assert len(tasks) > 3
    found = pa.Table.from_batches((rows for task in tasks for rows in task.read()), scan.schema)
    assert found == scan.to_arrow()
    assert sum(task.size_in_bytes for task in tasks) == sum(task.size_in_bytes for task in scan.tasks())


def test_within_when_given_ranges_then_is_clamped_to_those_of_the_scan(tmp_path: Path) -> None:
    for partition in range(3):
        put_segment(tmp_path / f"orders-{partition}", 0, [batch(0, 10)])
    scan = kf.scan(tmp_path, offsets=(2, 8))
    part = scan.within({("orders", 2): (0, 5), ("orders", 0): (7, 100)})
    assert part.ranges() == {("orders", 0): (7, 8), ("orders", 2): (2, 5)}
    assert offsets_of(part) == [7, 2, 3, 4]
    with pytest.raises(kf.ScanError, match="no partition orders-7 in"):
        scan.within({("orders", 7): (0, 5)})


def test_scan_when_a_log_has_no_records_then_has_an_empty_range_and_no_rows(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 7, [])
    put_segment(tmp_path / "orders-1", 0, [batch(0, 3)])
    scan = kf.scan(tmp_path)
    assert scan.ranges() == {("orders", 0): (7, 7), ("orders", 1): (0, 3)}
    assert scan.to_arrow()["partition"].to_pylist() == [1, 1, 1]
    empty = kf.scan(tmp_path, partitions=("orders", 0))
    assert empty.tasks() == []
    assert empty.to_arrow() == empty.schema.empty_table()


def test_scan_when_records_below_the_log_start_are_deleted_then_leaves_them_out(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5), batch(5, 5)])
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 7\n")
    assert offsets_of(kf.scan(tmp_path)) == [7, 8, 9]
    assert kf.scan(tmp_path, offsets=(0, 8)).ranges() == {("orders", 0): (7, 8)}
    assert offsets_of(kf.scan(tmp_path, from_segment_start=True)) == list(range(10))


def test_scan_when_segments_overlap_then_has_each_offset_once(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 10)])
    put_segment(tmp_path / "orders-0", 4, [batch(4, 10)])
    assert offsets_of(kf.scan(tmp_path)) == list(range(14))


def test_scan_when_segments_of_a_store_overlap_then_an_error_names_the_option_that_reads_them(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 10)])
    put_segment(tmp_path / "orders-0", 4, [batch(4, 10)])
    source = far(CountingHandler(), tmp_path)
    with pytest.raises(ValueError, match=r"check_overlaps=True \(--check-overlaps\) looks up the ends"):
        kf.scan(source).to_arrow()
    assert offsets_of(kf.scan(source, check_overlaps=True)) == list(range(14))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log whose second batch of three is damaged, and after whose last one are bytes of no batch."""
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5), batch(5, 5), batch(10, 5)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return tmp_path


def read_until_error(scan: kf.Scan) -> Iterator[int]:
    for rows in scan.to_batches():
        yield from rows["offset"].to_pylist()


def test_scan_when_there_is_damage_then_fails_after_the_rows_before_it_or_skips_it(damaged: Path) -> None:
    found: list[int] = []
    with pytest.raises(kf.CorruptRecordError, match=r"0\.log: CRC mismatch.*offsets 5 to 9"):
        found.extend(read_until_error(kf.scan(damaged)))
    assert found == list(range(5))
    assert offsets_of(kf.scan(damaged, on_corrupt="skip")) == [*range(5), *range(10, 15)]


@pytest.mark.parametrize(
    ("base_offset", "end", "batch_bytes"),
    [
        *itertools.product([3, 25, 42, 1000], [None, 40, 45], [1 << 20]),
        *itertools.product([3, 1000], [40, 45], [100]),  # the next batch is read later
    ],
)
def test_scan_when_a_base_offset_is_damaged_then_that_batch_alone_is_left_out_and_it_is_told(
    tmp_path: Path, base_offset: int, end: int | None, batch_bytes: int
) -> None:
    found = [batch(offset, 10) for offset in range(0, 50, 10)]
    put_segment(tmp_path / "orders-0", 0, [found[0], moved(found[1], base_offset), *found[2:]])
    bounds = {"offsets": (None, end), "batch_bytes": batch_bytes}
    told = rf"0\.log: offsets of a log ascend: .*, offsets {base_offset} to "
    with pytest.raises(kf.InvalidRecordError, match=told):
        kf.scan(tmp_path, **bounds).to_arrow()
    offsets = offsets_of(kf.scan(tmp_path, on_corrupt="skip", **bounds))
    assert offsets == [offset for offset in range(end or 50) if not 10 <= offset < 20]


@pytest.mark.parametrize("base_offset", [3, 1000])
@pytest.mark.parametrize("end", [None, 40, 45])
def test_scan_when_it_reads_one_batch_at_a_time_then_a_damaged_base_offset_hides_no_other_batch(
    tmp_path: Path, base_offset: int, end: int | None
) -> None:
    """The damaged batch may be returned before the next one shows that its offsets are too high."""
    found = [batch(offset, 10, size=120_000) for offset in range(0, 50, 10)]
    put_segment(tmp_path / "orders-0", 0, [found[0], moved(found[1], base_offset), *found[2:]])
    scan = kf.scan(tmp_path, offsets=(None, end), on_corrupt="skip")
    offsets = [offset for offset in offsets_of(scan) if offset < 1000]
    assert offsets == [offset for offset in range(end or 50) if not 10 <= offset < 20]
    with pytest.raises(kf.InvalidRecordError, match=rf"offsets {base_offset} to "):
        kf.scan(tmp_path, offsets=(None, end)).to_arrow()


def test_scan_when_it_begins_with_a_batch_that_a_damaged_base_offset_follows_then_returns_it(
    tmp_path: Path,
) -> None:
    found = [batch(0, 5), batch(10, 3), moved(batch(14, 4), 4)]
    put_segment(tmp_path / "orders-0", 0, found)
    scan = kf.scan(tmp_path, offsets=(10, 13), on_corrupt="skip")
    assert offsets_of(scan) == [10, 11, 12]


@pytest.mark.parametrize("base_offset", [44, 1000])
def test_scan_when_its_end_is_in_a_wrapper_after_one_with_a_damaged_offset_then_that_one_is_told(
    tmp_path: Path, base_offset: int
) -> None:
    found = [batch(offset, 10, magic=1, codec=kf.Codec.GZIP) for offset in range(0, 50, 10)]
    put_segment(tmp_path / "orders-0", 0, [found[0], moved(found[1], base_offset), *found[2:]])
    with pytest.raises(kf.InvalidRecordError, match=f"found {base_offset} "):
        kf.scan(tmp_path, offsets=(None, 25)).to_arrow()
    skipping = kf.scan(tmp_path, offsets=(None, 25), on_corrupt="skip")
    assert offsets_of(skipping) == [*range(10), *range(20, 25)]


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("timestamp", [2**62, -(2**62)])
def test_scan_when_a_timestamp_does_not_fit_into_arrow_then_fails_unless_it_is_not_selected(
    tmp_path: Path, timestamp: int, on_corrupt: Literal["fail", "skip"]
) -> None:
    batches = [
        ref.batch_of([ref.Row(offset, time, None, b"v")]) for offset, time in enumerate((1, timestamp, 3))
    ]
    put_segment(tmp_path / "t-0", 0, batches)
    found: list[int] = []
    scan = kf.scan(tmp_path, on_corrupt=on_corrupt)
    with pytest.raises(kf.InvalidRecordError, match=r"0\.log: timestamp for Arrow.* offsets 1 to 1"):
        found.extend(read_until_error(scan))
    assert found == [0]
    rows = pa.Table.from_batches(scan.to_batches(["offset"]))
    assert rows["offset"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("base_offset", [3, 1000])
def test_scan_when_a_base_offset_after_its_end_is_damaged_then_it_has_what_is_before(
    tmp_path: Path, base_offset: int, on_corrupt: Literal["fail", "skip"]
) -> None:
    found = [batch(offset, 10) for offset in range(0, 60, 10)]
    put_segment(tmp_path / "orders-0", 0, [*found[:3], moved(found[3], base_offset), *found[4:]])
    assert offsets_of(kf.scan(tmp_path, offsets=(None, 20), on_corrupt=on_corrupt)) == [*range(20)]


@pytest.mark.parametrize("rest", [b"\xff" * 100, batch(15, 5)[:100]])
def test_scan_when_the_end_is_damaged_then_has_the_records_before_it(tmp_path: Path, rest: bytes) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5), batch(5, 5)])
    path.write_bytes(path.read_bytes() + rest)
    found: list[int] = []
    scan = kf.scan(tmp_path)
    assert scan.ranges() == {("orders", 0): (0, 10)}
    if rest[0]:
        with pytest.raises(kf.CorruptRecordError):
            found.extend(read_until_error(scan))
    else:  # a broker may be writing the batch
        found.extend(read_until_error(scan))
    assert found == offsets_of(kf.scan(tmp_path, on_corrupt="skip")) == list(range(10))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_scan_when_all_that_it_reads_is_damaged_then_fails_or_skips_it(
    tmp_path: Path, isolation: str
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5), b"\xff" * 100])
    os.utime(path, ns=(0, 0))  # nothing writes it
    put_segment(tmp_path / "users-0", 0, [batch(0, 5)])
    scan = kf.scan(tmp_path, offsets=(5, None), isolation=isolation)
    assert scan.ranges() == {("orders", 0): (5, 5), ("users", 0): (5, 5)}
    with pytest.raises(kf.CorruptRecordError, match=r"0\.log"):
        scan.to_arrow()
    assert offsets_of(scan.of_topic("users")) == []
    assert offsets_of(kf.scan(tmp_path, offsets=(5, None), on_corrupt="skip")) == []


def test_scan_when_a_folder_is_not_named_for_a_partition_then_the_one_partition_is_given(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "copied", 0, [batch(0, 3)])
    with pytest.raises(kf.ScanError, match="expected a folder named TOPIC-PARTITION: rename it, or"):
        kf.scan(tmp_path / "copied").ranges()
    scan = kf.scan(tmp_path / "copied", partitions=("orders", 4), columns=["topic", "partition"])
    assert scan.to_arrow().to_pylist() == [{"topic": "orders", "partition": 4}] * 3


def test_scan_when_there_are_topics_of_kafka_s_own_then_they_are_read_only_if_named(tmp_path: Path) -> None:
    for topic in ("orders-0", "order_items-0", "__consumer_offsets-0"):
        put_segment(tmp_path / topic, 0, [batch(0, 1)])
    topics = {
        None: ["order_items", "orders"],
        "*": ["__consumer_offsets", "order_items", "orders"],
        "order_*": ["order_items"],
        ("orders", "__consumer_offsets"): ["__consumer_offsets", "orders"],
        "orders, __consumer_offsets": ["__consumer_offsets", "orders"],
        ("order_*,orders", "orders"): ["order_items", "orders"],
    }
    for given_topics, found in topics.items():
        scan = kf.scan([tmp_path, tmp_path / "orders-0"], topics=given_topics)
        assert [one.topic for one in scan.ranges()] == found


def test_scan_when_time_is_given_as_datetime_then_is_rounded_up_to_the_milliseconds_of_records(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 10)])  # a record each millisecond
    start = EPOCH + timedelta(milliseconds=DAY + 3)
    between = start + timedelta(microseconds=1)
    zone = timezone(timedelta(hours=5))
    assert offsets_of(kf.scan(tmp_path, timestamps=(start.astimezone(zone), None))) == list(range(3, 10))
    assert offsets_of(kf.scan(tmp_path, timestamps=(between, None))) == list(range(4, 10))
    assert offsets_of(kf.scan(tmp_path, timestamps=(None, between))) == list(range(4))
    assert offsets_of(kf.scan(tmp_path, timestamps=(DAY + 100, None))) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": "ordres"}, "no topic 'ordres' in {path}: found orders"),
        ({"topics": "x*"}, "no topic 'x[*]' in {path}: found orders"),
        ({"topics": []}, r"topics: expected a name, a glob or several of them, found \[\]"),
        ({"topics": "orders,"}, "topics: expected a name, a glob or several of them, found 'orders,'"),
        ({"topics": [1]}, r"topics: expected a name, a glob or several of them, found \[1\]"),
        ({"partitions": [("orders", 3)]}, "no partition orders-3 in {path}: found orders-0, orders-1"),
        (
            {"partitions": "orders-0"},
            "partitions: expected a TopicPartition or several of them, found 'orders-0'",
        ),
        ({"partitions": ()}, r"partitions: expected a TopicPartition or several of them, found \(\)"),
        ({"partitions": [("orders", "0")]}, "partitions: expected a TopicPartition or several of them"),
        ({"columns": ["ofset"]}, "unknown column 'ofset': did you mean 'offset'?"),
        ({"columns": ["key", "key"]}, "columns: expected each once, found key twice"),
        ({"columns": []}, "columns: expected one at least, found none"),
        ({"offsets": (7, 3)}, "offsets: the start 7 is after the end 3"),
        ({"offsets": {("orders", 1): (7, 3)}}, "offsets of orders-1: the start 7 is after the end 3"),
        ({"offsets": 5}, r"offsets: expected \(start, end\) of offsets or None, found 5"),
        (
            {"offsets": {("orders", 0): (0, 1)}},
            "offsets: expected those of every partition, found none of orders-1",
        ),
        ({"offsets": {("x", 0): (0, 1)}}, "offsets: no partition x-0: found orders-0, orders-1"),
        (
            {"offsets": {"orders-0": (0, 1)}},
            r"offsets: expected \(start, end\) by TopicPartition, found the key 'orders-0'",
        ),
        ({"timestamps": (datetime(2026, 1, 1), None)}, "timestamps: expected a datetime with a timezone"),
        ({"timestamps": (5, 3)}, "timestamps: the start 5 is after the end 3"),
        (
            {"timestamps": ("2026", None)},
            "timestamps: expected milliseconds as an int, or a datetime, found str",
        ),
        (
            {"isolation": "committed"},
            "isolation: expected read_uncommitted or read_committed, found 'committed'",
        ),
        ({"on_corrupt": "keep"}, "on_corrupt: expected fail or skip, found 'keep'"),
        ({"batch_bytes": 0}, "batch_bytes: expected a number of bytes, 1 or more, found 0"),
        ({"options": {"regoin": "eu"}}, "unknown option 'regoin': did you mean 'region'?"),
        ({"decode": "jsn"}, "format: expected avro, .*, found 'jsn'"),
        (
            {"decode": "json", "columns": "offset"},
            "value: expected among the columns, as decode has its format",
        ),
    ],
)
def test_scan_when_arguments_are_wrong_then_one_line_says_so(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    for partition in range(2):
        put_segment(tmp_path / f"orders-{partition}", 0, [batch(0, 10)])
    with pytest.raises(UserError) as raised:
        kf.scan(tmp_path, **arguments).ranges()
    raised.match(message.format(path=tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("source", [[], "", 7, b"x"])
def test_scan_when_there_is_no_source_then_one_line_says_so(source: Any) -> None:
    with pytest.raises(kf.ScanError, match=r"^source: expected a path, a URI, or several of them, found"):
        kf.scan(source)


def test_scan_when_the_path_has_no_log_then_one_line_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no segments in this folder"):
        kf.scan(tmp_path).to_arrow()
    with pytest.raises(FileNotFoundError, match="missing"):
        kf.scan(tmp_path / "missing").to_arrow()
