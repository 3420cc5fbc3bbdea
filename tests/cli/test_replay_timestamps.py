"""`kafkafmt replay --by-time --timestamp`: timestamps out of the data decide on the order.

Memory Management in Kafka Streams, "Deserialized Objects Buffering": a custom timestamp extractor.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kafkafmt as kf
from cli.logs import is_one_line, json_lines, run
from kafkafmt.log import PartitionLogWriter

NOW = 1_700_000_000_000
LATEST = 2**63 - 1
DAY = "2023-11-14T22:13:2"  # of NOW
EXTRACTOR = """
def reversed_offset(record, partition_time):
    return 1000 - record.offset if partition_time < 0 else partition_time

def broken(record, partition_time):
    raise KeyError("created_at")

text = "no callable"
"""


def put(source: Path, partition: int, values: list[bytes | None], keys: list[bytes] | None = None) -> None:
    """A log whose own timestamps are in the order of its offsets, and of its partitions."""
    builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4)
    for offset, value in enumerate(values):
        builder.append(NOW + 100 * partition + offset, keys[offset] if keys else None, value)
    with PartitionLogWriter(source / f"orders-{partition}") as writer:
        writer.append(builder.build())


def replayed(source: Path, *options: str) -> list[tuple[int, int]]:
    """The partitions and offsets, in the order of the replay."""
    result = run("replay", source, "--by-time", *options)
    assert result.exit_code == 0, result.stderr
    return [(row["partition"], row["offset"]) for row in json_lines(result.stdout)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two partitions whose values have times the other way round than the records."""
    source = tmp_path / "logs"
    put(source, 0, [json.dumps({"at": {"ms": NOW + 5000 + n}}).encode() for n in range(3)])
    put(source, 1, [json.dumps({"at": {"ms": NOW + 4999 + 2 * n}}).encode() for n in range(3)])
    return source


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "times_of_this_test.py").write_text(EXTRACTOR)
    monkeypatch.syspath_prepend(tmp_path)
    return "times_of_this_test"


def test_streams_custom_timestamp_extractor_by_json_path_decides_on_the_order(source: Path) -> None:
    assert replayed(source) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    by_value = replayed(source, "--timestamp", "value:$.at.ms")
    assert by_value == [(1, 0), (0, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_records_keep_their_own_timestamps(source: Path) -> None:
    result = run("replay", source, "--by-time", "--timestamp", "value:$.at.ms")
    assert {row["timestamp"] - NOW for row in json_lines(result.stdout)} == {0, 1, 2, 100, 101, 102}


def test_timestamps_of_keys_may_be_numbers_and_dates_and_times(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    times = [NOW, f"{DAY}0.500", f"{DAY}0.750Z", f"{DAY}1+00:00", NOW + 1000.9]
    for partition, time in enumerate(reversed(times)):
        put(source, partition, [b"value"], [json.dumps({"t": [time]}).encode()])
    assert replayed(source, "--timestamp", "key:$.t[0]") == [(4, 0), (3, 0), (2, 0), (0, 0), (1, 0)]


def test_date_with_milliseconds_when_it_is_a_timestamp_then_it_is_exact(tmp_path: Path) -> None:
    """As a float, the first time is a little below its millisecond."""
    source = tmp_path / "logs"
    put(source, 0, [b'{"t": "2004-01-13T13:20:00.001Z"}'])
    put(source, 1, [b'{"t": "2004-01-13T13:20:00.000999+00:00"}'])
    assert replayed(source, "--timestamp", "value:$.t") == [(1, 0), (0, 0)]


def test_streams_custom_timestamp_extractor_may_be_a_function(source: Path, module: str) -> None:
    found = replayed(source, "--timestamp", f"{module}:reversed_offset")
    assert found == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]  # all have one time: ordered by partition


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "expected JSON as the value, found none"),
        (b"not JSON", "expected JSON as the value, found b'not JSON'"),
        (b"{}", "expected one value at $.at.ms of the value, found 0"),
        (b'{"at": {"ms": null}}', "expected milliseconds, or a date and time of ISO 8601, found None"),
        (b'{"at": {"ms": true}}', "expected milliseconds, or a date and time of ISO 8601, found True"),
        (b'{"at": {"ms": "noon"}}', "expected milliseconds, or a date and time of ISO 8601, found 'noon'"),
        (b'{"at": {"ms": 1e400}}', "OverflowError: cannot convert float infinity to integer"),
        (b'{"at": {"ms": -7}}', f"expected a timestamp from 0 to {LATEST}, found -7"),
        (
            b'{"at": {"ms": 9223372036854775808}}',
            f"expected a timestamp from 0 to {LATEST}, found {LATEST + 1}",
        ),
        (
            b'{"at": {"ms": 1e30}}',
            f"expected a timestamp from 0 to {LATEST}, found 1000000000000000019884624838656",
        ),
    ],
)
def test_record_without_a_timestamp_fails_or_is_left_out(
    source: Path, value: bytes | None, expected: str
) -> None:
    put(source, 2, [json.dumps({"at": {"ms": NOW}}).encode(), value, value, b'{"at": {"ms": 1}}'])
    options = (source, "--by-time", "--timestamp", "value:$.at.ms")
    failed = run("replay", *options)
    assert failed.exit_code == 2
    where = f"orders-2: timestamp extractor: the record at offset 1: {expected}"
    assert is_one_line(failed.stderr, [where])
    skipped = run("replay", *options, "--on-invalid-timestamp", "skip", "--json")
    assert skipped.exit_code == 0, skipped.stderr
    first, last = skipped.stderr.splitlines()
    assert first.startswith(f"left out: {where}")
    assert json.loads(last)["invalid_timestamps"] == 2
    rows = [(row["partition"], row["offset"]) for row in json_lines(skipped.stdout)]
    assert len(rows) == 8
    assert [offset for partition, offset in rows if partition == 2] == [0, 3]


def test_function_that_raises_is_an_error_in_one_line(source: Path, module: str) -> None:
    failed = run("replay", source, "--by-time", "--timestamp", f"{module}:broken")
    assert failed.exit_code == 2
    expected = "orders-0: timestamp extractor: the record at offset 0: KeyError: 'created_at'"
    assert is_one_line(failed.stderr, [expected])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--timestamp", "value:$.t"], "--timestamp is for --by-time"),
        (["--by-time", "--on-invalid-timestamp", "skip"], "--on-invalid-timestamp is for --timestamp"),
        (
            ["--by-time", "--timestamp", "value:$.t["],
            "--timestamp: '$.t[': expected a JSONPath, as $.created_at",
        ),
        (["--by-time", "--timestamp", "value"], "--timestamp: 'value': expected MODULE:CALLABLE"),
        (["--by-time", "--timestamp", ".x:f"], "--timestamp: '.x:f': expected MODULE:CALLABLE"),
        (
            ["--by-time", "--timestamp", "no_such_module:f"],
            "--timestamp: 'no_such_module:f': No module named",
        ),
        (["--by-time", "--timestamp", "json:__name__"], "expected a callable, found str"),
    ],
)
def test_options_that_are_wrong_are_refused(source: Path, options: list[str], expected: str) -> None:
    failed = run("replay", source, *options)
    assert failed.exit_code == 2
    assert expected in failed.stderr


def test_streams_custom_timestamp_extractor_keeps_raw_bytes_in_buffers_within_the_memory(
    tmp_path: Path,
) -> None:
    """The deserialised record is dropped after its timestamp was read: buffers hold compressed batches."""
    source, count, batch_records = tmp_path / "logs", 8000, 2000
    for partition in range(2):
        with PartitionLogWriter(source / f"orders-{partition}") as writer:
            for first in range(0, count, batch_records):
                builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4, base_offset=first)
                for offset in range(first, first + batch_records):
                    value = {"created_at": NOW + 2 * offset + 1 - partition, "note": "express " * 100}
                    builder.append(NOW, None, json.dumps(value).encode())
                writer.append(builder.build())
    options = ["--by-time", "--timestamp", "value:$.created_at", "--memory", "6m", "--json"]
    result = run("replay", source, *options)
    assert result.exit_code == 0, result.stderr
    rows = json_lines(result.stdout)
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (1 - n % 2, n // 2) for n in range(2 * count)
    ]
    summary = json.loads(result.stderr.splitlines()[-1])
    decoded = 2 * count * 800
    assert summary["peak_bytes"] <= 6 * 1024**2 < decoded // 2
