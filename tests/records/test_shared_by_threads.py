"""Iterators and builders that threads share: each record goes to one thread, and what cannot be is refused.

An iterator that another thread is in raises ValueError, as a generator does. A builder raises RuntimeError.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import GeneratorType
from typing import Any

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.records.decode import LocatedRecords, RecordChain
from kafkafmt import codecs
from kafkafmt.streams import PartitionGroup
from records.samples import DAY
from reference import Row

pytestmark = pytest.mark.usefixtures("frequent_switches")

BATCHES, RECORDS_PER_BATCH = 60, 10
RECORDS = BATCHES * RECORDS_PER_BATCH
THREADS = 4
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def batches(codec: int) -> bytes:
    return b"".join(
        ref.batch_of(
            [
                Row(first + number, DAY, b"key", b"%06d" % (first + number))
                for number in range(RECORDS_PER_BATCH)
            ],
            codec=codec,
        )
        for first in range(0, RECORDS, RECORDS_PER_BATCH)
    )


DATA = {"none": batches(ref.NONE), "lz4": batches(ref.LZ4)}


def run_in_threads(work: Callable[[], None], threads: int = THREADS) -> None:
    begin = threading.Barrier(threads)

    def run() -> None:
        begin.wait()
        work()

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def taken_by_threads(shared: Iterator[Any]) -> list[Any]:
    """What threads take of one iterator until its end; fails for any error but the one that says it is in use."""
    if isinstance(shared, GeneratorType) and not HAS_GIL and sys.version_info < (3, 15):
        pytest.skip("generators of CPython 3.14 without the GIL are for one thread")
    taken: list[Any] = []
    errors: list[BaseException] = []

    def drain() -> None:
        while True:
            try:
                taken.append(next(shared))
            except StopIteration:
                return
            except ValueError as error:
                if "already executing" in str(error):
                    continue
                errors.append(error)
                return
            except BaseException as error:
                errors.append(error)
                return

    run_in_threads(drain)
    assert errors == []
    return taken


# Iterators of records


@pytest.mark.parametrize("codec", DATA)
def test_records_when_threads_share_the_iterator_then_each_record_goes_to_one_of_them(codec, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(DATA[codec])
    for _ in range(10):
        with kf.FileRecords(path) as records:
            for shared in (records.records(), kf.MemoryRecords(DATA[codec]).records()):
                offsets = [record.offset for record in taken_by_threads(shared)]
                assert sorted(offsets) == list(range(RECORDS))


@pytest.mark.parametrize("codec", DATA)
def test_records_of_a_batch_when_threads_share_the_iterator_then_each_goes_to_one_of_them(codec):
    (run,) = kf.MemoryRecords(DATA[codec]).runs()
    for number in range(10):
        shared = iter(kf.RecordBatch(run, number))
        offsets = [record.offset for record in taken_by_threads(shared)]
        assert sorted(offsets) == list(range(number * RECORDS_PER_BATCH, (number + 1) * RECORDS_PER_BATCH))


def test_records_taken_from_a_group_when_threads_share_the_iterator_then_each_goes_to_one_of_them():
    partition = kf.TopicPartition("topic", 0)
    for _ in range(5):
        group = PartitionGroup("1m")
        group.add(partition)
        for run in kf.MemoryRecords(DATA["none"]).runs():
            group.feed(partition, run)
        group.finish(partition)
        taken = group.take()
        assert taken is not None
        offsets = [record.offset for record in taken_by_threads(taken.records())]
        assert sorted(offsets) == list(range(taken.stop - taken.first))


def test_records_of_a_log_when_threads_share_the_iterator_then_each_goes_to_one_of_them(tmp_path):
    folder = tmp_path / "topic-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(DATA["lz4"])
    for _ in range(3):
        offsets = [record.offset for record in taken_by_threads(kf.log.PartitionLog(folder).records())]
        assert sorted(offsets) == list(range(RECORDS))


def test_record_chain_when_its_source_asks_it_for_a_record_then_value_error():
    """The same thread may be in it as well: by way of what the source calls."""

    def source() -> Iterator[LocatedRecords]:
        with pytest.raises(ValueError, match="already executing"):
            next(chain)
        (run,) = kf.MemoryRecords(DATA["none"]).runs()
        yield LocatedRecords(run, 0, 1)

    chain = RecordChain(source())
    assert [record.offset for record in chain] == list(range(RECORDS_PER_BATCH))
    assert list(chain) == []


def test_record_chain_when_its_source_fails_then_the_error_and_no_more_records():
    def source() -> Iterator[LocatedRecords]:
        (run,) = kf.MemoryRecords(DATA["none"]).runs()
        yield LocatedRecords(run, 0, 1)
        raise OSError("gone")

    chain = RecordChain(source())
    with pytest.raises(OSError, match="gone"):
        list(chain)
    assert list(chain) == []


@pytest.mark.parametrize("wrong", [None, 5, [None], ["text"]])
def test_record_chain_when_its_source_is_none_then_type_error(wrong):
    with pytest.raises(TypeError):
        next(RecordChain(wrong))


# Other iterators


ITERATORS = {
    "runs": lambda records: records.runs(run_bytes=1000),
    "runs in shared memory": lambda records: records.runs(run_bytes=1000, reuse_memory=True),
    "batches": lambda records: records.batches(),
    "numpy_batches": lambda records: records.numpy_batches(chunk_bytes=1000),
    "arrow_batches": lambda records: records.arrow_batches(chunk_bytes=1000),
    "chunks": lambda records: kf.LazyDownConvertRecords(records, 1, chunk_size=1000).chunks(),
    "ConvertedChunks": lambda records: kf.ConvertedChunks(records, kf.ConversionOptions(1), chunk_size=1000),
    "recompressed chunks": lambda records: kf.ConvertedChunks(
        records, kf.ConversionOptions(None, codec=kf.Codec.GZIP), chunk_size=1000
    ),
}
RECORDS_IN = {
    "runs": lambda run: int(run.index["count"].sum()),
    "runs in shared memory": lambda run: int(run.index["count"].sum()),
    "batches": lambda batch: batch.count,
    "numpy_batches": lambda columns: len(columns["offset"]),
    "arrow_batches": lambda batch: batch.num_rows,
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_iterator_when_threads_share_it_then_each_record_goes_to_one_of_them(kind, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(DATA["none"])
    count = RECORDS_IN.get(kind, lambda chunk: sum(1 for _ in kf.MemoryRecords(chunk).records()))
    for _ in range(3):
        with kf.FileRecords(path) as records:
            assert sum(map(count, taken_by_threads(ITERATORS[kind](records)))) == RECORDS


# Builders


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_builder_when_threads_append_while_it_builds_then_each_batch_has_the_records_it_says(magic):
    """A codec releases the GIL between the records and the header that counts them."""
    for _ in range(5):
        builder = kf.RecordBatchBuilder(magic, kf.Codec.GZIP, level=1)
        for _ in range(200):
            builder.append(DAY, b"key", bytes(500))
        for data in build_beside_appends(builder):
            (batch,) = kf.MemoryRecords(data).batches()
            assert batch.is_valid()
            offsets = [record.offset for record in batch]
            assert offsets == list(range(len(offsets)))
            assert (batch.count, batch.last_offset) == (len(offsets), len(offsets) - 1)


def build_beside_appends(builder: kf.RecordBatchBuilder) -> list[bytes]:
    built: list[bytes] = []
    is_over = threading.Event()

    def append() -> None:
        while not is_over.is_set():
            with suppress(RuntimeError):
                builder.append(DAY, b"key", b"value")

    thread = threading.Thread(target=append)
    thread.start()
    try:
        for _ in range(20):
            with suppress(RuntimeError):
                built.append(builder.build())
    finally:
        is_over.set()
        thread.join()
    return built


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_builder_when_its_codec_runs_then_other_threads_are_refused(magic, monkeypatch):
    builder = kf.RecordBatchBuilder(magic, kf.Codec.LZ4)
    builder.append(DAY, b"k", b"v")
    compress, refused = codecs.compress, []

    def compress_beside_others(*args: Any, **options: Any) -> bytes:
        others = [
            lambda: builder.append(DAY, b"k", b"v"),
            lambda: builder.append_columns(*columns),
            builder.build,
        ]
        for work in others:
            thread = threading.Thread(target=expect_refusal, args=(work, refused))
            thread.start()
            thread.join()
        return compress(*args, **options)

    columns = kf.MemoryRecords(DATA["none"]).to_numpy(["timestamp", "key", "value"]).values()
    with monkeypatch.context() as patched:
        patched.setattr(codecs, "compress", compress_beside_others)
        data = builder.build()
    assert refused == ["a builder takes one record at a time"] * 3
    assert len(list(kf.MemoryRecords(data).records())) == len(builder) == 1
    builder.append(DAY, b"k", b"v")
    assert len(list(kf.MemoryRecords(builder.build()).records())) == 2


def expect_refusal(work: Callable[[], object], refused: list[str]) -> None:
    try:
        work()
    except RuntimeError as error:
        refused.append(str(error))


def test_builder_when_its_codec_fails_then_it_takes_records_again(monkeypatch):
    builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4)
    builder.append(DAY, b"k", b"v")
    with monkeypatch.context() as patched:
        patched.setattr(codecs, "compress", fail)
        with pytest.raises(OSError, match="no memory"):
            builder.build()
    builder.append(DAY, b"k", b"v")
    assert len(list(kf.MemoryRecords(builder.build()).records())) == 2


def fail(*args: object, **options: object) -> bytes:
    raise OSError("no memory")


def test_lazy_records_when_threads_read_them_at_once_then_each_has_all_bytes() -> None:
    lazy = kf.LazyDownConvertRecords(kf.MemoryRecords(DATA["none"]), 1, chunk_size=2000)
    found: list[bytes] = []

    def work() -> None:
        parts = [bytes(lazy.read_at(position, 3)) for position in range(0, lazy.size_in_bytes, 3)]
        found.append(b"".join(parts))

    run_in_threads(work)
    assert found == [bytes(lazy.read_at(0, lazy.size_in_bytes))] * THREADS
