"""Records in files: the same as in memory, whatever is read at a time, by however many, and in bounded memory."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.columns.read import arrow_batches
from kafkafmt.log import SegmentRecords
from measure import peak_bytes
from records.samples import DAY, EVERY_KIND, SAMPLES, Sink, as_rows, rows_of
from reference import Row

STARTS = [batch["position"] for batch in kf.MemoryRecords(EVERY_KIND).index()] + [len(EVERY_KIND)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND)
    return path


def test_file_records_when_every_kind_then_as_in_memory(path):
    memory = kf.MemoryRecords(EVERY_KIND)
    with kf.FileRecords(path) as records:
        assert records.size_in_bytes == len(EVERY_KIND)
        assert (records.index() == memory.index()).all()
        assert as_rows(records.records(control=True)) == rows_of(EVERY_KIND)
        assert [bytes(batch.buffer) for batch in records.batches()] == [
            bytes(batch.buffer) for batch in memory.batches()
        ]
        assert records.to_arrow().equals(memory.to_arrow())
        for to_magic in (1, 2):
            options = {"zstd_fallback": kf.Codec.LZ4}
            converted = records.down_convert(to_magic, **options).records
            expected = memory.down_convert(to_magic, **options).records
            assert as_rows(converted.records()) == as_rows(expected.records())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(STARTS), st.integers(0, len(EVERY_KIND) + 50), st.integers(1, 3000))
def test_file_records_when_any_range_and_run_size_then_as_in_memory(tmp_path_factory, start, end, run_bytes):
    path = tmp_path_factory.getbasetemp() / "every-kind"
    if not path.exists():
        path.write_bytes(EVERY_KIND)
    end = max(start, end)
    memory = kf.MemoryRecords(EVERY_KIND[start:end])
    with kf.FileRecords(path, start, end) as records:
        assert records.size_in_bytes == memory.size_in_bytes
        assert as_rows(records.records()) == as_rows(memory.records())
        index, expected = records.index(), memory.index()
        expected["position"] += start
        assert (index == expected).all()
        for reuse_memory in (False, True):
            runs = records.runs(run_bytes=run_bytes, reuse_memory=reuse_memory)
            rows = [run.index.copy() for run in runs if len(run) == 1 or run.index["size"].sum() <= run_bytes]
            assert (np.concatenate([*rows, expected[:0]]) == expected).all()
        runs = list(memory.runs(run_bytes=run_bytes))
        assert sum(map(len, runs)) == len(expected)


@pytest.mark.parametrize("start", STARTS[:-1])
def test_runs_when_from_a_position_then_the_batches_from_there(path, start):
    with kf.FileRecords(path) as records:
        (first, *_) = records.runs(start)
        assert first.index["position"][0] == start


def test_batches_when_a_run_is_smaller_than_a_batch_then_the_batch_is_whole(path):
    with kf.FileRecords(path) as records:
        runs = list(records.runs(run_bytes=1))
        assert len(runs) == len(STARTS) - 1
        assert [bytes(run.batch(0)) for run in runs] == [
            EVERY_KIND[start:end] for start, end in pairwise(STARTS)
        ]


# Memory


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """60 MB of batches of 10 kB, then a gigabyte of zeros that takes no disk: a preallocated segment."""
    path = tmp_path_factory.mktemp("large") / "segment"
    batches = b"".join(
        ref.batch_of([Row(10 * i + j, DAY, b"k", bytes(1000)) for j in range(10)]) for i in range(100)
    )
    with path.open("wb") as file:
        for _ in range(60):
            file.write(batches)
        file.truncate(2**30)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        lambda records: records.index(),
        lambda records: sum(1 for _ in records.batches()),
        lambda records: sum(1 for _ in records.records()),
        lambda records: [run for run in records.runs(reuse_memory=True) if run.ensure_valid()],
        lambda records: records.to_numpy(["offset"]),
    ],
)
def test_file_records_when_the_file_is_large_then_memory_is_bounded(large, read):
    """Case 30: the tail of zeros is read through, not into memory."""
    with kf.FileRecords(large) as records:
        assert peak_bytes(lambda: read(records)) < 16 * 2**20


# Files that are not as they should be


def test_file_records_when_empty_then_nothing(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    with kf.FileRecords(tmp_path / "empty") as records:
        assert (records.size_in_bytes, list(records.batches()), len(records.index())) == (0, [], 0)
        assert records.write_to(Sink()) == 0


def test_file_records_when_there_is_no_file_then_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        kf.FileRecords(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        kf.FileRecords(tmp_path)


def test_file_records_when_opening_fails_then_no_descriptor_is_left(tmp_path, path):
    gc.collect()  # or it closes others' meanwhile
    before = {each.name for each in Path("/dev/fd").iterdir()}
    for arguments in ((tmp_path,), (path, -1), (path, 10, 5)):
        with pytest.raises((OSError, ValueError)):
            kf.FileRecords(*arguments)
    assert {each.name for each in Path("/dev/fd").iterdir()} <= before


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 4), (0, -1)])
def test_file_records_when_the_range_is_impossible_then_value_error(path, start, end):
    with pytest.raises(ValueError, match="start"):
        kf.FileRecords(path, start, end)


def test_file_records_when_the_range_is_past_the_end_then_cut_to_the_file(path):
    with kf.FileRecords(path, 0, 10**9) as records:
        assert records.size_in_bytes == len(EVERY_KIND)
    with kf.FileRecords(path, 10**9) as records:
        assert (records.size_in_bytes, list(records.batches())) == (0, [])


def test_file_records_when_closed_then_value_error_and_again_harmless(path):
    records = kf.FileRecords(path)
    batches = records.batches()
    next(batches)
    records.close()
    records.close()
    for read in (
        records.index,
        lambda: list(records.records()),
        lambda: records.write_to(Sink()),
        records.fileno,
    ):
        with pytest.raises(ValueError, match="closed"):
            read()


def test_file_records_when_dropped_without_close_then_it_warns_and_the_descriptor_is_closed(path):
    with pytest.warns(ResourceWarning, match="unclosed FileRecords"):
        descriptor = kf.FileRecords(path).fileno()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_file_records_when_the_file_shrinks_while_read_then_an_error_after_the_whole_batches_that_are_left(
    tmp_path,
):
    path = tmp_path / "log"
    one = ref.batch_of([Row(0, DAY, b"k", bytes(1000))])
    path.write_bytes(one * 100)
    with kf.FileRecords(path) as records:
        runs = records.runs(run_bytes=len(one) * 10)
        assert len(next(runs)) == 10
        os.truncate(path, len(one) * 25 + 7)
        assert [len(next(runs)), len(next(runs))] == [10, 5]
        with pytest.raises(
            EOFError, match=f"{path}: file truncated: expected \\d+ bytes, found \\d+"
        ) as error:
            next(runs)
    assert isinstance(error.value, OSError)


def test_file_records_when_an_incomplete_batch_is_at_the_end_then_is_no_error(tmp_path):
    path = tmp_path / "log"
    one = ref.batch_of([Row(0, DAY, b"k", bytes(1000))])
    path.write_bytes(one * 3 + one[:50])
    with kf.FileRecords(path) as records:
        assert len(list(records.batches())) == 3
        os.truncate(path, len(one) * 3)
        records.extend()
        assert len(list(records.batches())) == 3


@pytest.mark.thread_unsafe
def test_file_records_when_the_file_grows_then_its_size_stays(path):
    with kf.FileRecords(path) as records:
        with path.open("ab") as file:
            file.write(SAMPLES["v1"])
        assert records.size_in_bytes == len(EVERY_KIND)
        assert as_rows(records.records(control=True)) == rows_of(EVERY_KIND)


@pytest.mark.parametrize("open_records", [kf.FileRecords, partial(SegmentRecords, is_active=True)])
def test_valid_bytes_when_the_end_is_extended_then_are_counted_again(tmp_path, open_records):
    one = ref.batch_of([Row(0, DAY, b"k", b"v")])
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(one)
    with open_records(path) as records:
        assert records.valid_bytes == len(one)
        path.write_bytes(one * 2)
        records.extend()
        assert records.valid_bytes == records.size_in_bytes == len(one) * 2


def test_size_at_when_the_position_is_past_the_end_then_none(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(ref.batch_of([Row(0, DAY, b"k", b"v")]))
    size = path.stat().st_size
    with kf.FileRecords(path) as records:
        assert records.size_at(0) == size
        assert records.size_at(size) is records.size_at(size + 1) is None


def test_file_records_when_named_as_a_segment_then_the_topic_is_known(tmp_path):
    folder = tmp_path / "page-views-12"
    folder.mkdir()
    for name, expected in (("00000000000000000000.log", ("page-views", 12)), ("other", None)):
        (folder / name).write_bytes(SAMPLES["v1"])
        with kf.FileRecords(folder / name) as records:
            assert records.topic_partition == expected
    given = kf.TopicPartition("given", 1)
    with kf.FileRecords(folder / "other", topic_partition=given) as records:
        assert records.topic_partition == given


def test_file_records_when_read_from_many_threads_then_each_reads_all(path):
    expected = rows_of(EVERY_KIND)
    with kf.FileRecords(path) as records, ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)

        def read(_: int) -> bool:
            barrier.wait()
            return all(
                as_rows(records.records(control=True)) == expected and len(records.index()) == len(STARTS) - 1
                for _ in range(10)
            )

        assert all(pool.map(read, range(8)))


# write_to


@pytest.mark.parametrize("limits", [(1,), (7, 0), (10**6,)])
def test_write_to_when_a_channel_takes_parts_then_all_bytes_in_order(path, limits):
    for records in (kf.FileRecords(path), kf.MemoryRecords(EVERY_KIND)):
        sink, position = Sink(*limits), 0
        while position < len(EVERY_KIND):
            position += records.write_to(sink, position, len(EVERY_KIND) - position)
        assert bytes(sink.taken) == EVERY_KIND
        assert records.write_to(sink, position) == 0


@pytest.mark.parametrize(("position", "length"), [(0, 10), (5, 0), (100, 10**9), (30, None)])
def test_write_to_when_a_range_is_asked_for_then_that_and_no_more(path, position, length):
    end = None if length is None else position + length
    for records in (kf.FileRecords(path), kf.MemoryRecords(EVERY_KIND)):
        sink = Sink()
        assert records.write_to(sink, position, length) == len(EVERY_KIND[position:end])
        assert bytes(sink.taken) == EVERY_KIND[position:end]


@pytest.mark.parametrize(("position", "length"), [(-1, None), (-3, 2), (0, -1), (10**9, 5)])
def test_write_to_when_the_range_is_out_of_range_then_value_error(path, position, length):
    for records in (kf.FileRecords(path), kf.MemoryRecords(EVERY_KIND)):
        with pytest.raises(ValueError, match="position"):
            records.write_to(Sink(), position, length)


def test_write_to_when_to_a_non_blocking_socket_then_sendfile_goes_on_where_it_stopped(tmp_path):
    data = os.urandom(2_000_000)
    path = tmp_path / "segment"
    path.write_bytes(data)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    got, position, refused = bytearray(), 0, 0
    with ours, theirs, kf.FileRecords(path, 1000) as records:
        position = 1000
        while position < len(data):
            taken = records.write_to(ours, position)
            position += taken
            if not taken:
                refused += 1
                got += theirs.recv(100_000)
        while len(got) < len(data) - 1000:
            got += theirs.recv(1 << 20)
    assert refused
    assert bytes(got) == data[1000:]


def test_write_to_when_the_file_was_truncated_then_an_error_not_an_endless_0(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND)
    ours, theirs = socket.socketpair()
    with ours, theirs, kf.FileRecords(path) as records:
        os.truncate(path, 100)
        for channel in (Sink(), ours):
            assert records.write_to(channel, 0, 100) == 100
            with pytest.raises((OSError, EOFError, kf.KafkaFormatError)):
                records.write_to(channel, 100, 10)


def test_file_records_when_pickled_then_the_copy_opens_the_file_anew(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(EVERY_KIND)
    with kf.FileRecords(path, 0, None, topic_partition=kf.TopicPartition("orders", 3)) as records:
        with pickle.loads(pickle.dumps(records)) as copy:
            assert copy.fileno() != records.fileno()
            assert copy.topic_partition == records.topic_partition
            assert [batch.crc for batch in copy.batches()] == [batch.crc for batch in records.batches()]
        assert records.size_in_bytes == len(EVERY_KIND)


def test_arrow_batches_when_a_batch_is_damaged_then_the_error_names_the_file(tmp_path):
    path = tmp_path / "log"
    damaged = bytearray(SAMPLES["v2 none"])
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with kf.FileRecords(path) as records, pytest.raises(kf.CorruptRecordError, match=str(path)):
        list(arrow_batches(records))
