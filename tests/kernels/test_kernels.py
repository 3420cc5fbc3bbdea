"""What the kernels ask of their callers in the package: they trust no index, and bear misuse without a crash."""

from __future__ import annotations

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import INDEX_DTYPE, BatchRun, scan
from _kafkafmt.records.convert import DONE, NEEDS_ROOM, RunConverter
from kafkafmt.convert.options import ConversionOptions
from records.samples import DAY, EVERY_KIND, SAMPLES
from reference import Row


def run_of(data: bytes) -> BatchRun:
    run: BatchRun = scan(data)[0]
    return run


@pytest.mark.parametrize(
    ("field", "value"),
    [("magic", 3), ("magic", -1), ("size", 2**31), ("size", 10), ("position", 2**40), ("position", -1)],
)
def test_run_when_the_index_is_not_that_of_the_buffer_then_refused(field, value):
    run = run_of(SAMPLES["v0"])
    index = run.index.copy()
    index[field][-1] = value
    with pytest.raises(ValueError, match="not a batch in the buffer"):
        BatchRun(run.buffer, index)


def test_run_when_origin_is_negative_then_refused():
    run = run_of(SAMPLES["v0"])
    with pytest.raises(ValueError, match="origin: expected 0 or more"):
        BatchRun(run.buffer, run.index, -1)


def test_run_when_initialised_again_then_refused():
    run = run_of(SAMPLES["v0"])
    with pytest.raises(RuntimeError, match="already initialised"):
        run.__init__(run.buffer, run.index)


def test_run_when_the_buffer_has_other_items_then_batches_are_its_bytes():
    data = SAMPLES["v2 headers"]
    data += bytes(-len(data) % 4)
    run = run_of(np.frombuffer(data, "<i4"))
    assert bytes(run.batch(0)) == SAMPLES["v2 headers"]


def test_index_when_asked_for_then_read_only():
    with pytest.raises(ValueError, match="read-only"):
        run_of(SAMPLES["v2 headers"]).index["size"] = 1


def test_index_when_other_runs_were_scanned_since_then_still_its_own():
    runs = [run_of(data) for data in (EVERY_KIND, SAMPLES["v1"] * 500, SAMPLES["v0"])]
    rows = [run.index.tobytes() for run in runs]
    for _ in range(3):
        run_of(SAMPLES["v0"] * 1000)
    assert [run.index.tobytes() for run in runs] == rows


def test_index_when_small_batches_stand_in_front_of_large_ones_then_whole():
    small = b"".join(ref.batch_of([Row(i, DAY, None, None)]) for i in range(20_000))
    large = ref.batch_of([Row(20_000, DAY, None, bytes(500_000))])
    index = kf.MemoryRecords(small + large * 20).index()
    assert index.dtype == INDEX_DTYPE
    assert index["size"].sum() == len(small) + 20 * len(large)
    assert list(index["base_offset"][:20_000]) == list(range(20_000))


def test_valid_when_small_and_large_batches_take_turns_then_names_the_broken_ones():
    batches = [
        bytearray(ref.batch_of([Row(i, DAY, None, bytes(i * 37 % 9000))]) if i % 3 else SAMPLES["v1"])
        for i in range(60)
    ]
    for broken in (0, 7, 8, 30, 59):
        batches[broken][-1] ^= 1
    run = run_of(b"".join(batches))
    positions = np.cumsum([0] + [len(batch) for batch in batches[:-1]])
    numbers = np.searchsorted(positions, run.index["position"][~run.valid()], "right") - 1
    assert list(numbers) == [0, 7, 8, 30, 59]


def converter(decompress=None, **options) -> RunConverter:
    ways = {kf.Codec.GZIP: (decompress, 0, None)}
    return RunConverter(1, 0, ways, lambda codec: pytest.fail(str(codec)), 100, verify=False, **options)


def test_converter_when_it_has_no_run_or_no_memory_then_says_so():
    kernel = converter()
    with pytest.raises(RuntimeError, match="needs a run"):
        kernel.convert()
    with pytest.raises(RuntimeError, match="needs a run"):
        kernel.skip_to(0)
    kernel.start(run_of(SAMPLES["v1"]), 0, 1)
    with pytest.raises(RuntimeError, match="memory for its output"):
        kernel.convert()


def test_converter_when_used_while_it_converts_then_refused():
    def decompress(payload, limit):
        for action in (
            kernel.convert,
            lambda: kernel.start(run, 0, 1),
            lambda: kernel.use_memory(np.empty(9, np.uint8)),
            lambda: kernel.skip_to(1),
            lambda: kernel.__init__(1, 0, {}, None, 100, verify=False),
        ):
            with pytest.raises(RuntimeError, match="one thing at a time"):
                action()
        return ref.decompress(ref.GZIP, bytes(payload))

    run = run_of(SAMPLES["v2 gzip"])
    kernel = converter(decompress)
    kernel.use_memory(np.empty(1000, np.uint8))
    kernel.start(run, 0, 1)
    assert (kernel.convert(), kernel.next) == (DONE, 1)


def test_converter_when_what_was_compressed_waits_for_room_then_it_is_compressed_once():
    calls = []

    def decompress(payload, limit):
        calls.append(limit)
        return ref.decompress(ref.GZIP, bytes(payload))

    kernel = converter(decompress)
    run = run_of(SAMPLES["v2 gzip"])
    for size in (0, 10):
        kernel.use_memory(np.empty(size, np.uint8))
        kernel.start(run, 0, 1)
        assert kernel.convert() == NEEDS_ROOM
    kernel.use_memory(np.empty(kernel.needed, np.uint8))
    kernel.start(run, 0, 1)
    assert (kernel.convert(), kernel.position, calls) == (DONE, kernel.needed, [100])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"to_magic": 3}, "to_magic: expected 0, 1 or 2, found 3"),
        ({"zstd_fallback": kf.Codec.ZSTD}, "zstd_fallback: expected a codec other than zstd"),
        ({"zstd_fallback": 9}, "zstd_fallback: expected one of none, gzip, snappy, lz4, zstd, found 9"),
        ({"max_decompressed_bytes": -1}, "max_decompressed_bytes: expected 0 or more, found -1"),
    ],
)
def test_conversion_options_when_impossible_then_refused(option, message):
    with pytest.raises(ValueError, match=message):
        ConversionOptions(**{"to_magic": 1, **option})
