"""Who owns the bytes: records, views and columns outlive what they came from; errors and sources are let go.

Whatever buffer records are read from is not copied, so that nothing here may read memory that is gone, nor
trust bytes twice that their owner may change in between.
"""

from __future__ import annotations

import array
import contextlib
import gc
import mmap
import pickle
import random
import sys
import threading

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import INDEX_DTYPE, scan
from _kafkafmt.records.build import RecordEncoder
from _kafkafmt.records.decode import LocatedRecords, compressed_batches
from _kafkafmt.records.encode import encode_messages, encode_records, seal_batch, wrap_messages
from _kafkafmt.records.record_ranges import RecordRanges
from records.samples import DAY, EVERY_KIND, SAMPLES, as_rows, rows_of
from reference import Row

ROWS = as_rows(kf.MemoryRecords(EVERY_KIND).records())
ROWS_WITH_CONTROL = rows_of(EVERY_KIND)
COLUMNS = ["key", "value"]


@pytest.fixture(autouse=True, scope="module")
def own_objects():
    """Let the collector visit the objects of these tests alone, not those that all tests before them have left."""
    gc.collect()
    gc.freeze()


# Every kind of buffer


BUFFERS = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "slice of a memoryview": lambda data: memoryview(b"___" + data + b"_")[3:-1],
    "read-only view": lambda data: memoryview(bytearray(data)).toreadonly(),
    "numpy": lambda data: np.frombuffer(data, np.uint8),
    "numpy of int8": lambda data: np.frombuffer(data, np.int8),
    "slice of numpy": lambda data: np.concatenate([np.zeros(5, np.uint8), np.frombuffer(data, np.uint8)])[5:],
    "array": lambda data: array.array("B", data),
    "array of 64-bit items": lambda data: array.array("q", data + bytes(-len(data) % 8)),
    "two dimensions": lambda data: np.frombuffer(data + bytes(-len(data) % 4), np.uint8).reshape(4, -1),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_memory_records_when_any_kind_of_buffer_then_the_same_records(kind):
    records = kf.MemoryRecords(BUFFERS[kind](EVERY_KIND))
    gc.collect()
    assert as_rows(records.records()) == ROWS
    assert bytes(records.buffer)[: len(EVERY_KIND)] == EVERY_KIND
    assert records.buffer.readonly
    assert records.to_arrow(COLUMNS, views=True)["value"].to_pylist() == [row.value for row in ROWS]


@pytest.mark.parametrize("kind", BUFFERS)
def test_memory_records_when_a_buffer_is_empty_then_nothing(kind):
    assert list(kf.MemoryRecords(BUFFERS[kind](b"")).batches()) == []


def test_memory_records_when_a_file_is_mapped_then_read_without_copy(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        records = kf.MemoryRecords(mapped)
        assert as_rows(records.records()) == ROWS
        with pytest.raises(BufferError):
            mapped.close()
        del records
        gc.collect()


@pytest.mark.parametrize(
    "data",
    [memoryview(EVERY_KIND)[::2], memoryview(EVERY_KIND)[::-1], np.zeros((8, 8), np.uint8)[:, 2]],
)
def test_memory_records_when_the_buffer_is_not_contiguous_then_an_error_of_arguments(data):
    with pytest.raises((BufferError, TypeError, ValueError)):
        kf.MemoryRecords(data)


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], object()])
def test_memory_records_when_no_buffer_then_type_error(data):
    with pytest.raises(TypeError):
        kf.MemoryRecords(data)


def test_memory_records_when_read_then_the_source_is_not_copied():
    data = bytearray(SAMPLES["v2 none"])
    records = kf.MemoryRecords(data)
    (batch,) = records.batches()
    data[15] = 5
    assert batch.buffer[15] == 5
    assert np.shares_memory(np.frombuffer(records.buffer, np.uint8), np.frombuffer(data, np.uint8))


# What outlives what


def test_records_when_all_they_came_from_is_gone_then_still_whole(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND)
    for _ in range(50):
        sources = [kf.MemoryRecords(bytearray(EVERY_KIND)), kf.FileRecords(path)]
        kept = []
        for source in sources:
            kept.append(list(source.records(control=True)))
            kept.append([record for batch in source.batches() for record in batch])
        sources[1].close()
        del source, sources
        junk = [bytearray(b"\xdd" * len(EVERY_KIND)) for _ in range(20)]
        gc.collect()
        for records in kept:
            assert as_rows(records) == ROWS_WITH_CONTROL
        del junk


def test_a_single_record_when_all_others_are_gone_then_still_whole():
    kept = [
        next(iter(kf.MemoryRecords(bytearray(data)).records()), None) for data in list(SAMPLES.values()) * 50
    ]
    random.Random(3).shuffle(kept)
    del kept[::2]
    gc.collect()
    first_rows = {rows_of(data)[0] for data in SAMPLES.values() if rows_of(data)}
    assert {row for record in kept if record for row in as_rows([record])} <= first_rows


def test_batches_and_buffers_when_the_records_are_gone_then_still_whole():
    batches = list(kf.MemoryRecords(bytearray(EVERY_KIND)).batches())
    buffers = [batch.buffer for batch in batches]
    gc.collect()
    assert b"".join(buffers) == EVERY_KIND
    iterators = [iter(batch) for batch in batches]
    del batches
    gc.collect()
    assert [row for iterator in iterators for row in as_rows(iterator)] == ROWS_WITH_CONTROL
    assert b"".join(buffers) == EVERY_KIND


@pytest.mark.parametrize("views", [False, True])
def test_arrow_when_the_source_is_gone_then_still_whole(views, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND * 10)
    tables = [kf.MemoryRecords(bytearray(EVERY_KIND * 10)).to_arrow(views=views)]
    with kf.FileRecords(path) as records:
        tables.append(records.to_arrow(views=views))
    path.unlink()
    for _ in range(3):
        junk = [bytearray(b"\xdd" * len(EVERY_KIND) * 10) for _ in range(20)]
        gc.collect()
        for table in tables:
            table.validate(full=True)
            assert table["key"].to_pylist() == [row.key for row in ROWS] * 10
            assert table["value"].slice(5, 9).to_pylist() == [row.value for row in ROWS][5:14]
        del junk


def test_numpy_columns_when_the_source_changes_then_they_do_not():
    data = bytearray(EVERY_KIND)
    columns = kf.MemoryRecords(data).to_numpy()
    data[:] = bytes(len(data))
    assert list(columns["value"]) == [row.value for row in ROWS]
    data.clear()


def test_index_when_the_records_are_gone_or_it_is_changed_then_nothing_else_is():
    records = kf.MemoryRecords(EVERY_KIND)
    index = records.index()
    if index.flags.writeable:
        index["size"] = 2**32 - 1
        index["position"] = -5
    assert as_rows(records.records()) == ROWS


def test_iteration_when_left_in_the_middle_then_the_source_is_free():
    data = bytearray(EVERY_KIND)
    records = kf.MemoryRecords(data)
    iterator = records.records()
    next(iterator)
    with pytest.raises(BufferError):
        data.clear()
    del iterator, records
    data.clear()


def test_chunks_when_kept_past_the_next_one_then_no_crash():
    """A chunk is valid until the next one: what it says afterwards is open, that it can be read is not."""
    data = b"".join(ref.batch_of([Row(i, DAY, b"k", bytes(i * 10))]) for i in range(200))
    chunks = list(kf.LazyDownConvertRecords(kf.MemoryRecords(data), 1, chunk_size=3000).chunks())
    gc.collect()
    assert sum(map(len, map(bytes, chunks))) > len(data) // 2


# Errors let go


@pytest.mark.parametrize("kind", SAMPLES)
def test_source_when_a_read_fails_then_it_is_free_once_the_error_is_without_the_collector(kind):
    """No cycle of error, traceback and frame holds a buffer until the garbage collector comes."""
    reads = [
        lambda records: list(records.records()),
        lambda records: [list(batch) for batch in records.batches()],
        lambda records: records.to_numpy(),
        lambda records: records.to_arrow(COLUMNS, views=True),
        lambda records: records.down_convert(1),
        lambda records: kf.LazyDownConvertRecords(records, 1),
        lambda records: [batch.is_valid() for batch in records.batches()],
        lambda records: records.index(),
    ]
    gc.collect()
    gc.disable()
    try:
        for position in (16, 22, len(SAMPLES[kind]) - 1):
            for number, read in enumerate(reads):
                data = bytearray(SAMPLES[kind])
                data[position] ^= 0xFF
                with contextlib.suppress(kf.KafkaFormatError):
                    read(kf.MemoryRecords(data))
                try:
                    data.append(0)
                except BufferError:
                    pytest.fail(f"way {number} holds the buffer after an error at byte {position}")
    finally:
        gc.enable()


def test_errors_when_kept_in_cycles_then_the_collector_frees_them_without_a_crash():
    for _ in range(20):
        for data in SAMPLES.values():
            for position in (17, 22, len(data) - 1):
                flipped = bytearray(data)
                flipped[position] ^= 1
                keep_in_a_cycle(memoryview(flipped))
        gc.collect()


def keep_in_a_cycle(data: memoryview) -> None:
    part = data[:]
    records = kf.MemoryRecords(part)
    cycle = [records, part, iter(records.records())]
    try:
        cycle += list(records.records())
        cycle += list(records.batches())
        cycle += [records.to_arrow(COLUMNS, views=True)]
    except kf.KafkaFormatError as error:
        cycle.append(error)
    cycle.append(cycle)


def test_reading_when_repeated_then_no_memory_is_lost():
    def read_all() -> None:
        records = kf.MemoryRecords(EVERY_KIND)
        as_rows(records.records())
        records.to_numpy()
        records.to_arrow(views=True)
        records.down_convert(1, zstd_fallback=kf.Codec.LZ4)

    for _ in range(5):
        read_all()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(50):
        read_all()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


# Sources that change


def test_record_when_its_source_changes_then_other_values_but_no_memory_beyond_it():
    """A receive buffer that is used again: what the records say then is open, that nothing crashes is not."""
    rng = random.Random(7)
    originals = [SAMPLES["v2 headers"], SAMPLES["v2 none"], SAMPLES["v1"], SAMPLES["v0"]]
    for _ in range(3000):
        data = bytearray(rng.choice(originals))
        source = kf.MemoryRecords(data)
        records = list(source.records())
        batches = list(source.batches())
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        for record in records:
            _ = record.key, record.value, record.offset, record.timestamp, record.sequence
            with contextlib.suppress(BufferError):  # which says that the memory was changed
                for name, value in record.headers:
                    assert len(name) + len(value or b"") <= len(data)
        for batch in batches:
            for verify in (True, False):
                with contextlib.suppress(kf.KafkaFormatError):
                    as_rows(batch.records(verify=verify))


@pytest.mark.slow
def test_reading_when_another_thread_changes_the_source_then_values_or_errors_and_no_crash():
    data = bytearray(b"".join(SAMPLES[kind] for kind in ("v2 headers", "v2 none", "v1", "v0")) * 200)
    original, stop, rng = bytes(data), threading.Event(), random.Random(5)

    def scribble() -> None:
        while not stop.is_set():
            position = rng.randrange(len(data))
            data[position] ^= 1 << rng.randrange(8)
            if rng.random() < 0.01:
                data[:] = original

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(300):
            records = kf.MemoryRecords(data)
            for read in (
                lambda records=records: records.to_numpy(verify=False),
                lambda records=records: records.to_arrow(verify=False),
                lambda records=records: as_rows(records.records(verify=False)),
                lambda records=records: records.down_convert(1, verify=False),
            ):
                with contextlib.suppress(kf.KafkaFormatError, BufferError):
                    read()
    finally:
        stop.set()
        thread.join()


# Objects made in ways that nobody should


def test_record_when_made_out_of_nothing_then_says_so_and_reads_no_memory():
    nothing = kf.Record.__new__(kf.Record)
    for name in (
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "value",
        "headers",
        "sequence",
        "size_in_bytes",
    ):
        with pytest.raises(TypeError):
            getattr(nothing, name)
    batch = next(kf.MemoryRecords(EVERY_KIND).batches())
    iterator = type(iter(batch))
    with pytest.raises(TypeError):
        next(iterator.__new__(iterator))


def test_index_of_a_run_when_written_to_then_refuses():
    (batch, *_) = kf.MemoryRecords(SAMPLES["v2 none"]).batches()
    with pytest.raises(ValueError, match="read-only"):
        batch.run.index["size"][0] = 1 << 31
    kf.MemoryRecords(SAMPLES["v2 none"]).index()["size"][0] = 1  # that is the caller's own


def test_kernels_when_given_none_or_what_was_never_made_then_an_error_and_no_memory_is_read():
    header = np.zeros(0, INDEX_DTYPE)
    nothing = LocatedRecords.__new__(LocatedRecords)
    for call in (
        lambda: compressed_batches(None, 0, 0),
        lambda: RecordRanges(None, 0, 0, None),
        lambda: LocatedRecords(None),
        lambda: encode_records(None, 0, 0, 0, 0),
        lambda: encode_messages(None, 0, 0, 1, 0),
        lambda: encode_records(nothing, 0, 1, 0, 0),
        lambda: encode_messages(nothing, 0, 1, 1, 0),
        lambda: next(iter(nothing)),
        lambda: seal_batch(bytearray(61), None),
        lambda: seal_batch(bytearray(61), header),
        lambda: seal_batch(None, np.zeros(1, INDEX_DTYPE)),
        lambda: wrap_messages(b"payload", None),
        lambda: wrap_messages(b"payload", header),
        lambda: wrap_messages(None, np.zeros(1, INDEX_DTYPE)),
    ):
        with pytest.raises((TypeError, ValueError, IndexError, StopIteration)):
            call()
    assert len(nothing.offsets()) == len(nothing.timestamps()) == nothing.first_at_or_above(0) == 0


def test_encoder_when_never_made_then_an_empty_one_of_v0():
    encoder = RecordEncoder.__new__(RecordEncoder)
    assert encoder._build(None) == encoder._build(bytes) == b""
    encoder.append(DAY, b"k", b"v")
    assert len(encoder._build(None)) == encoder.size_in_bytes
    with pytest.raises(TypeError, match="payload"):
        encoder._build(lambda records: None)
    encoder.append(DAY, b"k", b"v")  # what failed to build has not locked it


def test_located_records_when_made_again_then_refused():
    run, *_ = scan(SAMPLES["v2 none"])
    located = LocatedRecords(run)
    with pytest.raises(RuntimeError):
        located.__init__(run, 0, 0)
    assert len(located) == len(located.offsets())


def test_memory_records_and_batches_when_pickled_then_the_same_bytes_at_the_same_place():
    source = kf.MemoryRecords(EVERY_KIND, topic_partition=kf.TopicPartition("topic", 1))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.buffer == source.buffer
    assert copy.topic_partition == source.topic_partition
    for batch in source.batches():
        restored = pickle.loads(pickle.dumps(batch))
        assert bytes(restored) == bytes(batch)
        assert (restored.position, restored.last_offset) == (batch.position, batch.last_offset)
