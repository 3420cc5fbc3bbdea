"""KIP-283, "Determining Total Response Size": the promise is the exact size where a walk over the records is cheap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.records.converted_size import converted_size
from kafkafmt.convert import exact_size
from kafkafmt.records.range import RecordsRange
from kafkafmt.records.runs import slice_run
from records.samples import DAY, SAMPLES, WITH_HEADERS, empty_batch, end_marker, sent
from reference import Row

NO_LIMIT = 1 << 40
FORMATS = [0, 1]


def rows(start: int, count: int, size: int) -> list[Row]:
    return [Row(offset, DAY + offset, b"key", bytes(size)) for offset in range(start, start + count)]


def single(count: int, *, size: int = 100, codec: int = ref.NONE, start: int = 0) -> bytes:
    """Batches of one record, which shrink."""
    return b"".join(ref.batch_of([row], codec=codec) for row in rows(start, count, size))


def many(batches: int, *, size: int = 50, count: int = 50, start: int = 0) -> bytes:
    """Batches of many small records, which grow."""
    firsts = range(start, start + batches * count, count)
    return b"".join(ref.batch_of(rows(first, count, size)) for first in firsts)


HEADERS = b"".join(
    ref.batch_of([row._replace(offset=2 * number + at) for at, row in enumerate(WITH_HEADERS)])
    for number in range(20)
)
APPEND_TIME = b"".join(
    ref.batch_of([row], attributes=ref.TIMESTAMP_TYPE, max_timestamp=DAY + 99) for row in rows(0, 30, 40)
)
LOGS = {
    "one record in a batch": single(100),
    "many small records in a batch": many(20),
    "headers, which are dropped": HEADERS,
    "log append time": APPEND_TIME,
    "markers and empty batches between": single(5)
    + end_marker(5, commit=True)
    + empty_batch(6, 4)
    + many(4, start=11),
    "older formats behind": single(5) + ref.messages(1, rows(5, 9, 30)) + ref.messages(0, rows(14, 9, 30)),
    "an older wrapper behind": single(5) + ref.wrapper(0, ref.GZIP, rows(5, 9, 30)) + single(5, start=14),
}


def lazy(
    data: bytes | kf.Records, to_magic: int = 1, first_offset: int = 0, limit: int | None = NO_LIMIT
) -> kf.LazyDownConvertRecords:
    records = data if isinstance(data, kf.Records) else kf.MemoryRecords(data)
    return kf.LazyDownConvertRecords(records, to_magic, first_offset, limit_bytes=limit)


def eager(data: bytes, to_magic: int = 1, first_offset: int = 0) -> bytes:
    return bytes(kf.MemoryRecords(data).down_convert(to_magic, first_offset).records.buffer)


@pytest.mark.parametrize("first_offset", [0, 3])
@pytest.mark.parametrize("to_magic", FORMATS)
@pytest.mark.parametrize("name", LOGS)
def test_kip_283_determining_total_response_size_when_uncompressed_then_is_exact(
    name: str, to_magic: int, first_offset: int
) -> None:
    expected = eager(LOGS[name], to_magic, first_offset)
    records = lazy(LOGS[name], to_magic, first_offset)
    assert records.size_in_bytes == len(expected)
    assert sent(records) == expected
    assert b"".join(records.chunks()) == expected


def even_offsets(runs: Iterator[BatchRun]) -> Iterator[BatchRun]:
    for run in runs:
        for number in range(len(run)):
            if run.index["base_offset"][number] % 2 == 0:
                yield slice_run(run, number, number + 1)


def test_records_before_the_limit_when_the_source_has_a_run_filter_then_are_those_that_it_passes() -> None:
    source = kf.MemoryRecords(single(21))
    passed = RecordsRange(source, 0, source.end_position, even_offsets)
    expected = eager(b"".join(ref.batch_of([row]) for row in rows(0, 13, 100)[::2]))
    records = lazy(passed, limit=len(expected) + 20)
    assert sent(records) == b"".join(records.chunks()) == expected


@pytest.mark.parametrize("data", [single(60), many(20)], ids=["shrinks", "grows"])
@pytest.mark.parametrize("to_magic", FORMATS)
def test_size_when_more_than_the_limit_then_is_of_the_whole_batches_that_fit(
    to_magic: int, data: bytes
) -> None:
    ends = [0]
    for batch in kf.MemoryRecords(data).batches():
        ends.append(ends[-1] + len(eager(bytes(batch.buffer), to_magic)))
    for limit in (ends[5], ends[5] + 1, ends[6] - 1, ends[-1] - 1, ends[-1]):
        records = lazy(data, to_magic, limit=limit)
        assert records.size_in_bytes == max(end for end in ends if end <= limit)
        assert sent(records) == eager(data, to_magic)[: records.size_in_bytes]
    assert lazy(data, to_magic, limit=0).size_in_bytes == ends[1]  # one batch at least (KIP-74)


def test_size_when_a_partial_batch_is_at_the_end_then_has_no_padding_for_it() -> None:
    whole, partial = single(20), single(1, start=20)[:-1]
    assert sent(lazy(whole + partial)) == eager(whole)


@pytest.mark.parametrize("limit", [NO_LIMIT, 20_000])
def test_size_when_compressed_batches_follow_then_is_exact_for_what_is_before_and_estimated_for_them(
    limit: int,
) -> None:
    plain, packed = single(100), single(100, size=1000, codec=ref.GZIP, start=100)
    records = lazy(plain + packed, limit=limit)
    assert records.size_in_bytes == min(len(eager(plain)) + len(packed), limit)
    got, expected = sent(records), eager(plain + packed)
    assert len(got) == records.size_in_bytes
    assert got[: len(eager(plain))] == eager(plain)
    both = min(len(got), len(expected))
    assert got[:both] == expected[:both]


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_size_when_compressed_then_is_the_estimate(codec: int) -> None:
    data = single(20, codec=codec)
    assert lazy(data).size_in_bytes == lazy(data, limit=None).size_in_bytes == len(data)


def test_size_when_it_hardly_changes_then_is_the_estimate_and_nothing_is_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = single(20, size=2000)
    monkeypatch.setattr("kafkafmt.convert.lazy.walk", pytest.fail)
    assert abs(len(eager(data)) - len(data)) < exact_size.LEAST_CHANGE * len(data)
    assert lazy(data).size_in_bytes == len(data)
    # From the middle of a batch on, its size tells nothing: half of its records are left out.
    assert lazy(many(3, size=1000), first_offset=25).size_in_bytes == len(many(3, size=1000))


def test_size_when_the_source_is_remote_then_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    records = kf.MemoryRecords(single(20))
    records.is_remote = True
    monkeypatch.setattr("kafkafmt.convert.lazy.walk", pytest.fail)
    assert lazy(records).size_in_bytes == records.size_in_bytes


@pytest.mark.parametrize("in_file", [False, True])
def test_size_when_the_source_is_larger_than_is_walked_then_is_estimated_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool
) -> None:
    monkeypatch.setattr(exact_size, "MOST_WALKED_BYTES", 1000)
    monkeypatch.setattr(exact_size, "_RUN_BYTES", 500)
    data = single(30)
    if in_file:
        path = tmp_path / "log"
        path.write_bytes(data)
        with kf.FileRecords(path) as records:
            found = lazy(records)
            got = sent(found)
    else:
        found = lazy(data)
        got = sent(found)
    assert len(eager(data)) < found.size_in_bytes < len(data)
    assert got[: len(eager(data))] == eager(data)


def test_size_when_a_damaged_batch_follows_then_the_rest_is_estimated_and_padded() -> None:
    data = bytearray(single(10))
    size = len(data) // 10
    data[5 * size + 61] ^= 0x40  # the length of the record
    records = lazy(bytes(data))
    assert records.size_in_bytes == len(eager(bytes(data[: 5 * size]))) + 5 * size
    assert sent(records)[: len(eager(single(5)))] == eager(single(5))


@pytest.mark.parametrize("to_magic", FORMATS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_walk_over_any_kind_when_it_tells_a_size_then_that_is_the_size_of_the_conversion(
    kind: str, to_magic: int
) -> None:
    data = SAMPLES[kind]
    run = scan(data)[0]
    stop, size, is_full = converted_size(run, to_magic, 0, NO_LIMIT)
    assert not is_full
    if stop < len(run):
        assert run.index["codec"][stop]
        assert run.index["magic"][stop] > to_magic
    else:
        assert size == len(eager(data, to_magic))


def test_walk_over_damaged_records_then_tells_no_size_that_the_conversion_has_not() -> None:
    """Every bit of a batch is flipped: the walk stays within it, and agrees with a conversion that checks no CRC."""
    data = ref.batch_of([*rows(0, 2, 3), *(row._replace(offset=row.offset + 2) for row in WITH_HEADERS)])
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        run, consumed, *_ = scan(bytes(damaged))
        if consumed != len(data):
            continue
        stop, size, _ = converted_size(run, 1, 0, NO_LIMIT)
        if stop == len(run):
            options = kf.ConversionOptions(1, verify=False)
            chunks = kf.ConvertedChunks(kf.MemoryRecords(bytes(damaged)), options)
            assert size == sum(map(len, chunks))
