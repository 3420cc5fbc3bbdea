"""Lazy down-conversion (KIP-283): committed size, chunks, padding, resuming, and what is eager beside it."""

from __future__ import annotations

import os
import random
import socket
import struct
import tracemalloc
from collections import deque
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.convert.chunks import ChunkMemory
from kafkafmt.log import Segment
from kafkafmt.records.range import RecordsRange
from records.samples import (
    DAY,
    EVERY_KIND,
    GAPS,
    ROWS,
    SAMPLES,
    WITH_HEADERS,
    Sink,
    as_rows,
    converted_rows,
    empty_batch,
    end_marker,
    rows_of,
    sent,
)
from reference import Row

PADDING_HEADER = struct.Struct(">qi")


def batches_of(count: int, *, size: int = 100, codec: int = ref.NONE, start: int = 0) -> bytes:
    rows = [Row(start + i, DAY + i, b"key", b"%05d" % (start + i) + bytes(size - 5)) for i in range(count)]
    return b"".join(ref.batch_of([row], codec=codec) for row in rows)


def lazy(data: bytes, to_magic: int = 1, first_offset: int = 0, **options) -> kf.LazyDownConvertRecords:
    return kf.LazyDownConvertRecords(kf.MemoryRecords(data), to_magic, first_offset, **options)


def eager(data: bytes, to_magic: int = 1, first_offset: int = 0) -> bytes:
    return bytes(kf.MemoryRecords(data).down_convert(to_magic, first_offset).records.buffer)


def assert_padded(data: bytes, converted: bytes) -> None:
    """`data` is what was converted, then padding as a consumer takes it for a message cut short."""
    assert data[: len(converted)] == converted[: len(data)]
    remaining = len(data) - len(converted)
    if remaining > 0:
        header = PADDING_HEADER.pack(-1, max(remaining + 1, 61))
        assert data[len(converted) :][:12] == header[:remaining]
    assert list(kf.MemoryRecords(data).batches()) or not converted


# Cases 1 to 5: what is sent


NOTHINGS = {
    "a marker": end_marker(0, commit=True),
    "an empty batch": empty_batch(0, 4),
    "a batch below the fetch offset": ref.batch_of([Row(0, DAY, b"k", b"old"), Row(1, DAY, b"k", b"old")]),
    "a gapped batch below it": ref.batch_of([Row(1, DAY, b"k", b"old")], base_offset=0, last_offset_delta=9),
}


@pytest.mark.parametrize("chunk_size", [1, 100, 131072])
@pytest.mark.parametrize("nothing", NOTHINGS)
@pytest.mark.parametrize("times", [1, 2, 50])
def test_send_when_the_first_batches_convert_to_nothing_then_each_remaining_batch_is_sent_once(
    nothing, times, chunk_size
):
    """Case 1: Java skips one source batch instead of all it looked at, and sends the first survivor twice."""
    data = NOTHINGS[nothing] * times + batches_of(30, start=10)
    expected = eager(data, first_offset=10)
    assert [row.offset for row in rows_of(expected)] == list(range(10, 40))
    records = lazy(data, first_offset=10, chunk_size=chunk_size)
    assert b"".join(bytes(chunk) for chunk in records.chunks()) == expected
    assert records.size_in_bytes == len(data)
    assert_padded(sent(records), expected)


@pytest.mark.parametrize("chunk_size", [1, 500, 131072])
def test_send_when_nothings_stand_between_batches_then_left_out(chunk_size):
    data = b"".join(batches_of(1, start=i) + NOTHINGS["a marker"] for i in range(50))
    records = lazy(data, chunk_size=chunk_size)
    got = sent(records)
    assert_padded(got, eager(data))
    assert [row.offset for row in rows_of(got)] == list(range(50))


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("behind", [0, 1, 40])
@pytest.mark.parametrize("chunk_size", [1, 1000, 131072])
def test_send_when_zstd_stands_behind_the_first_chunk_then_padding_in_its_place(chunk_size, behind, to_magic):
    """Case 2: what came before is sent, then padding; Java fails where more than one chunk remains."""
    head, zstd = batches_of(20), ref.batch_of([Row(20, DAY, b"k", b"v")], codec=ref.ZSTD)
    data = head + zstd + batches_of(behind, start=21)
    records = lazy(data, to_magic, chunk_size=chunk_size)
    send, sink = records.to_send(), Sink()
    while not send.completed:
        send.write_to(sink)
    assert len(sink.taken) == records.size_in_bytes == len(data)
    assert_padded(bytes(sink.taken), eager(head, to_magic))
    assert isinstance(send.error, kf.UnsupportedCompressionTypeError)
    assert (send.error.position, send.error.base_offset) == (len(head), 20)
    with pytest.raises(kf.UnsupportedCompressionTypeError):  # the next fetch starts there
        lazy(data[len(head) :], to_magic)


def test_construction_when_zstd_comes_first_then_unsupported_compression_type():
    """Case 2: a zstd batch first is an error at construction."""
    data = SAMPLES["v2 zstd"] + SAMPLES["v2 none"]
    with pytest.raises(kf.UnsupportedCompressionTypeError) as raised:
        lazy(data)
    assert raised.value.position == 0
    with pytest.raises(kf.UnsupportedCompressionTypeError):
        lazy(NOTHINGS["a marker"] + data)


def test_construction_when_zstd_comes_first_and_has_a_fallback_then_converted():
    """Beyond Kafka: zstd for consumers that cannot have it."""
    data = SAMPLES["v2 zstd"] + SAMPLES["v2 none"]
    for codec in (kf.Codec.LZ4, kf.Codec.GZIP, kf.Codec.SNAPPY, kf.Codec.NONE):
        chunks = b"".join(bytes(chunk) for chunk in lazy(data, zstd_fallback=codec).chunks())
        first = next(kf.MemoryRecords(chunks).batches())
        assert (first.magic, first.codec) == (1, codec)
        assert rows_of(chunks) == converted_rows(data, 1)
    with pytest.raises(ValueError, match="zstd"):
        lazy(data, zstd_fallback=kf.Codec.ZSTD)


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("nothing", NOTHINGS)
def test_send_when_all_batches_are_dropped_then_12_bytes(nothing, to_magic):
    """Case 3: offset -1, length max(remaining + 1, 61)."""
    records = lazy(NOTHINGS[nothing] * 3, to_magic, first_offset=10)
    assert records.size_in_bytes == 12
    assert sent(records) == PADDING_HEADER.pack(-1, 61)
    assert sent(records, 1, 0) == PADDING_HEADER.pack(-1, 61)


@pytest.mark.parametrize("data", [b"", SAMPLES["v2 none"][:30], bytes(100)])
def test_send_when_no_batch_at_all_then_0_bytes(data):
    """Case 3: empty input is 0 bytes."""
    records = lazy(data)
    send = records.to_send()
    assert (records.size_in_bytes, send.remaining, send.completed) == (0, 0, True)
    assert send.write_to(Sink()) == 0
    assert list(records.chunks()) == []


@pytest.mark.parametrize("tail", range(75))
def test_send_when_a_remainder_of_any_size_then_padding_cut_to_it(tail):
    """Case 4: int64 -1, int32 max(remaining + 1, 61), filler; less than 12 bytes left is that header cut short."""
    data = SAMPLES["v1"] + SAMPLES["v2 none"][:tail]  # a partial batch behind: it is part of the size
    records = lazy(data)
    assert records.size_in_bytes == len(data)
    got = sent(records)
    assert got[: len(SAMPLES["v1"])] == SAMPLES["v1"]
    assert_padded(got, SAMPLES["v1"])


@pytest.mark.slow
def test_send_when_the_remainder_is_large_then_padding_from_a_small_buffer():
    """Case 4: a small buffer, whatever the remainder."""
    dropped = b"".join(end_marker(i, commit=True) for i in range(1, 200_000))
    data = SAMPLES["v2 none"] + dropped
    records = lazy(data)
    send, size = records.to_send(), 0
    tracemalloc.start()
    while not send.completed:
        size += send.write_to(Sink())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == len(data) > 15_000_000
    assert peak < 2_000_000


@pytest.mark.parametrize("to_magic", [0, 1])
def test_size_when_the_first_batch_converts_to_more_than_the_source_then_that(to_magic):
    """Case 5: S_pre is the size of the first converted batch where that is larger than the whole source."""
    rows = [Row(i, DAY, None, b"") for i in range(100)]
    data = ref.batch_of(rows)
    converted = eager(data, to_magic)
    assert len(converted) > len(data)
    records = lazy(data, to_magic)
    assert records.size_in_bytes == len(converted)
    assert sent(records) == converted


def test_send_when_the_whole_converts_to_more_than_the_source_then_the_last_message_is_cut():
    """Case 5: the last message sent may be cut; the consumer fetches on from there."""
    rows = [Row(i, DAY, None, b"") for i in range(20)]
    data = ref.batch_of(rows[:1]) + ref.batch_of(rows[1:])
    converted = eager(data)
    records = lazy(data)
    assert len(converted) > len(data) == records.size_in_bytes
    got = sent(records)
    assert got == converted[: len(data)]
    offsets = [row.offset for row in rows_of(got)]
    assert offsets == list(range(len(offsets)))
    assert 0 < len(offsets) < 20


# Cases 6 to 9: what is converted


@pytest.mark.parametrize("to_magic", [0, 1])
def test_uncompressed_v2_when_fetched_from_its_middle_then_records_below_are_dropped(to_magic):
    """Case 6: librdkafka relies on it."""
    data = SAMPLES["v2 gaps"]
    for first_offset in range(12):
        expected = [row.offset for row in GAPS if row.offset >= first_offset]
        assert [row.offset for row in rows_of(eager(data, to_magic, first_offset))] == expected
        chunks = b"".join(bytes(chunk) for chunk in lazy(data, to_magic, first_offset).chunks())
        assert [row.offset for row in rows_of(chunks)] == expected


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_compressed_v2_when_fetched_from_its_middle_then_all_records_are_kept(codec):
    """Case 6: a compressed batch is kept whole."""
    data = ref.batch_of(GAPS, codec=codec)
    for first_offset in (0, 5, 100):
        assert [row.offset for row in rows_of(eager(data, 1, first_offset))] == [3, 5, 7, 8]


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("old", ["v0", "v1", "v0 gzip", "v1 lz4", "v1 log append"])
def test_batch_when_at_or_below_the_target_then_copied_unchanged(old, to_magic):
    """Case 7: v2, v1, v2 may alternate in one log."""
    if to_magic == 0 and old.startswith("v1"):
        pytest.skip("above the target")
    data = SAMPLES["v2 none"] + SAMPLES[old] + SAMPLES["v2 gzip"] + SAMPLES[old]
    converted = eager(data, to_magic)
    assert converted.count(SAMPLES[old]) >= 2  # what v2 converts to may be the same bytes
    assert rows_of(converted) == converted_rows(data, to_magic)
    chunks = b"".join(bytes(chunk) for chunk in lazy(data, to_magic, chunk_size=1).chunks())
    assert chunks == converted
    same = kf.MemoryRecords(SAMPLES[old]).down_convert(to_magic)
    assert (bytes(same.records.buffer), same.stats.records_converted) == (SAMPLES[old], 0)


@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP, ref.LZ4])
def test_statistics_when_batches_hold_many_records_then_records_are_counted(codec):
    """Case 8: statistics count records, not batches."""
    data = ref.batch_of(ROWS, codec=codec) + SAMPLES["v1"] + ref.batch_of(GAPS, codec=codec)
    assert kf.MemoryRecords(data).down_convert(1).stats.records_converted == 7
    assert kf.MemoryRecords(data).down_convert(0).stats.records_converted == 10
    records = lazy(data, 1, chunk_size=1)
    for _ in range(2):  # each send counts its own
        send = records.to_send()
        while not send.completed:
            send.write_to(Sink())
        assert send.stats.records_converted <= 7
        stats = kf.ConversionStats()
        list(records.chunks(stats=stats))
        assert stats.records_converted == 7
        assert stats.temporary_memory_bytes > 0
        assert stats.seconds > 0


@pytest.mark.parametrize("codec", [ref.NONE, ref.LZ4])
@pytest.mark.parametrize("released", [False, True])
def test_statistics_when_chunks_are_converted_again_then_each_record_counts_once(codec, released):
    """A batch without room waits for the next chunk of shared memory; a released chunk is converted again."""
    random_ = random.Random(1)
    rows = [[Row(at, DAY, None, random_.randbytes(400)) for at in range(n, n + 5)] for n in range(0, 500, 5)]
    data = b"".join(ref.batch_of(some, codec=codec) for some in rows)
    chunk_size = 8192
    expected = kf.ConversionStats()
    list(lazy(data, chunk_size=chunk_size).chunks(stats=expected))
    send, channel = lazy(data, chunk_size=chunk_size).to_send(ChunkMemory(chunk_size)), Sink(1000)
    while not send.completed:
        send.write_to(channel)
        if released:
            send.release_chunk()
    sent_rows = len(rows_of(bytes(channel.taken)))
    assert 450 <= sent_rows <= send.stats.records_converted <= expected.records_converted == 500
    assert send.stats.temporary_memory_bytes <= expected.temporary_memory_bytes


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_headers_and_markers_when_below_v2_then_dropped(codec, to_magic):
    """Case 9: headers are dropped below v2, and so are control batches."""
    data = ref.batch_of(WITH_HEADERS, codec=codec) + end_marker(2, commit=True) + end_marker(3, commit=False)
    rows = rows_of(eager(data, to_magic))
    assert [(row.key, row.value, row.headers) for row in rows] == [(b"k", b"v", ()), (None, None, ())]


def test_markers_and_headers_when_to_v2_then_kept():
    data = ref.batch_of(WITH_HEADERS) + end_marker(2, commit=True)
    assert eager(data, 2) == data


@pytest.mark.parametrize("to_magic", [0, 1, 2])
@pytest.mark.parametrize("first_offset", [0, 11])
def test_conversion_when_every_kind_in_one_log_then_as_decoding_and_converting_row_by_row(
    to_magic, first_offset
):
    data = b"".join(sample for kind, sample in SAMPLES.items() if kind != "v2 zstd")
    converted = kf.MemoryRecords(data).down_convert(to_magic, first_offset)
    assert as_rows(converted.records.records(control=True)) == converted_rows(data, to_magic, first_offset)
    assert all(batch.is_valid() for batch in converted.records.batches())
    assert all(batch.magic <= to_magic for batch in converted.records.batches())


def test_up_conversion_when_messages_stand_alone_then_gathered_into_batches_of_one_kind():
    data = SAMPLES["v0"] + ref.messages(1, [Row(20, DAY, b"a", b"1"), Row(21, DAY, b"b", b"2")])
    converted = kf.MemoryRecords(data).down_convert(2).records
    batches = list(converted.batches())
    assert all(batch.magic == 2 and batch.is_valid() for batch in batches)
    assert as_rows(converted.records(control=True)) == converted_rows(data, 2)
    assert batches[-1].last_offset == 21


@pytest.mark.parametrize("magic", [0, 1])
def test_up_conversion_when_inner_offsets_do_not_ascend_then_invalid_record(magic):
    messages = b"".join(ref.message(magic, 5, DAY, None, b"v") for _ in range(2))
    data = ref.wrapper(magic, ref.GZIP, ROWS, inner=messages)
    with pytest.raises(kf.InvalidRecordError, match="ascend"):
        kf.MemoryRecords(data).down_convert(2)


# Case 10: channels


def mixed() -> bytes:
    return batches_of(40) + SAMPLES["v1 gzip"] + NOTHINGS["a marker"] * 30 + batches_of(3, codec=ref.LZ4)


@pytest.mark.parametrize("limits", [(1,), (0, 1), (0, 0, 7), (13, 0), (1 << 20,), (4096, 0, 1)])
def test_send_when_the_channel_takes_little_or_nothing_then_nothing_lost_and_nothing_twice(limits):
    """Case 10: the channel takes 0 bytes, or 1."""
    records = lazy(mixed(), chunk_size=300)
    assert_padded(sent(records, *limits), eager(mixed()))
    assert sent(records, *limits) == sent(records)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=20).filter(any), st.integers(1, 5000))
def test_send_when_the_channel_takes_anything_then_the_same_bytes(limits, chunk_size):
    """Case 10, for any limits and chunk sizes."""
    assert sent(lazy(mixed(), chunk_size=chunk_size), *limits) == sent(lazy(mixed()))


def test_send_when_remaining_is_watched_then_falls_by_what_is_taken():
    records = lazy(mixed())
    send, sink = records.to_send(), Sink(100, 0, 3)
    left = records.size_in_bytes
    while not send.completed:
        taken = send.write_to(sink)
        left -= taken
        assert send.remaining == left
        assert len(sink.taken) == records.size_in_bytes - left
    assert send.write_to(sink) == 0


def test_send_when_the_channel_lies_about_what_it_took_then_value_error():
    class Liar:
        def write(self, data):
            return len(data) + 1

    with pytest.raises(ValueError, match="took"):
        lazy(mixed()).to_send().write_to(Liar())


def test_send_when_the_channel_fails_once_then_goes_on_where_it_stopped():
    class Flaky(Sink):
        def write(self, data):
            if self.calls % 3 == 1:
                self.calls += 1
                raise (BlockingIOError if self.calls % 2 else ConnectionError)
            return super().write(data)

    records = lazy(mixed())
    send, sink = records.to_send(), Flaky(50)
    for _ in range(10_000):
        if send.completed:
            break
        try:
            send.write_to(sink)
        except ConnectionError:
            continue
    assert bytes(sink.taken) == sent(records)


@pytest.mark.parametrize("in_file", [False, True])
def test_send_when_to_a_non_blocking_socket_then_the_same_bytes(in_file, tmp_path):
    """Case 10, with a real socket whose buffer fills."""
    data = batches_of(3000, size=300)
    (tmp_path / "log").write_bytes(data)
    source = kf.FileRecords(tmp_path / "log") if in_file else kf.MemoryRecords(data)
    records = kf.LazyDownConvertRecords(source, 1, chunk_size=20_000)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    send, got, refused = records.to_send(), bytearray(), 0
    with ours, theirs:
        while not send.completed:
            if not send.write_to(ours):
                refused += 1
                got += theirs.recv(10_000)
        while len(got) < records.size_in_bytes:
            got += theirs.recv(1 << 20)
    assert refused
    assert_padded(bytes(got), eager(data))


# Chunks


@pytest.mark.parametrize("chunk_size", [1, 50, 161, 162, 1000, 4096, 10**7])
def test_chunks_when_of_any_size_then_whole_batches_that_make_up_the_eager_conversion(chunk_size):
    data = mixed()
    records = lazy(data, chunk_size=chunk_size)
    chunks = []
    for chunk in records.chunks():
        assert chunk.readonly
        assert len(chunk)
        assert sum(batch.size_in_bytes for batch in kf.MemoryRecords(chunk).batches()) == len(chunk)
        chunks.append(bytes(chunk))
    assert b"".join(chunks) == eager(data)
    if chunk_size == 1:
        assert len(chunks) == 40 + 3 + 1


def test_chunks_when_a_batch_is_larger_than_the_chunk_size_then_alone_and_whole():
    data = batches_of(2) + batches_of(1, size=100_000, start=2) + batches_of(2, start=3)
    chunks = [bytes(chunk) for chunk in lazy(data, chunk_size=400).chunks()]
    assert b"".join(chunks) == eager(data)
    assert max(map(len, chunks)) < 100_100


@pytest.mark.parametrize("in_file", [False, True])
def test_chunk_size_when_larger_than_the_source_then_no_memory_of_that_size(in_file, tmp_path):
    (tmp_path / "log").write_bytes(mixed())
    source = kf.FileRecords(tmp_path / "log") if in_file else kf.MemoryRecords(mixed())
    tracemalloc.start()
    sent(kf.LazyDownConvertRecords(source, 1, chunk_size=50_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_chunk_size_when_below_1_then_value_error():
    with pytest.raises(ValueError, match="chunk_size"):
        lazy(mixed(), chunk_size=0)


@pytest.mark.parametrize("to_magic", [-1, 3, "1", None])
def test_to_magic_when_not_0_to_2_then_value_error(to_magic):
    with pytest.raises((ValueError, TypeError)):
        lazy(mixed(), to_magic)
    with pytest.raises((ValueError, TypeError)):
        kf.MemoryRecords(mixed()).down_convert(to_magic)


def test_send_when_damage_comes_later_then_padding_from_there_and_the_error_is_told():
    data = bytearray(batches_of(30))
    hurt = 20 * (len(data) // 30)
    data[hurt + 70] ^= 1
    for chunk_size in (1, 1000, 131072):
        records = lazy(bytes(data), chunk_size=chunk_size)
        send, sink = records.to_send(), Sink(777)
        while not send.completed:
            send.write_to(sink)
        assert_padded(bytes(sink.taken), eager(bytes(data[:hurt])))
        assert (send.error.position, send.error.base_offset) == (hurt, 20)
        with pytest.raises(kf.CorruptRecordError):
            list(records.chunks())


def test_construction_when_a_header_under_the_crc_was_changed_to_be_dropped_then_corrupt():
    """Damage that looks like a marker, an empty batch or an old one is damage still."""
    for position, mask in ((22, ref.CONTROL), (60, 3), (26, 0x40)):
        data = bytearray(ref.batch_of(ROWS[:3]) + batches_of(2, start=13))
        data[position] ^= mask
        with pytest.raises(kf.CorruptRecordError):
            lazy(bytes(data), first_offset=10)


def open_active(path):
    return Segment(path, is_active=True).open()


@contextmanager
def range_of_active(path):
    with open_active(path) as records:
        yield RecordsRange(records, 0, records.end_position)


@pytest.mark.parametrize("shares_memory", [False, True])
@pytest.mark.parametrize("open_records", [kf.FileRecords, open_active, range_of_active])
def test_lazy_when_the_file_shrinks_while_sending_then_an_error_and_no_padding(
    open_records, shares_memory, tmp_path
):
    path = tmp_path / f"{0:020}.log"
    data = batches_of(2000)
    path.write_bytes(data)
    with open_records(path) as source:
        records = kf.LazyDownConvertRecords(source, 1, chunk_size=10_000)
        send, sink = records.to_send(ChunkMemory(10_000) if shares_memory else None), Sink(5000)
        send.write_to(sink)
        os.truncate(path, len(data) // 2)
        with pytest.raises(EOFError, match="file truncated"):
            deque(iter(lambda: send.write_to(sink), 0), maxlen=0)
        assert send.error is None
        assert not send.completed
    rows = rows_of(bytes(sink.taken))
    assert rows == converted_rows(data, 1)[: len(rows)]


def test_lazy_when_an_active_segment_ends_within_a_batch_then_padding_and_no_error(tmp_path):
    path = tmp_path / f"{0:020}.log"
    data = batches_of(2000)
    path.write_bytes(data[:-10])
    with open_active(path) as source:
        sink = Sink(5000)
        send = kf.LazyDownConvertRecords(source, 1, chunk_size=10_000).to_send()
        deque(iter(lambda: send.write_to(sink), 0), maxlen=0)
        assert send.completed


def test_lazy_when_the_file_is_large_then_memory_follows_the_chunk(tmp_path):
    path = tmp_path / "log"
    one = batches_of(2000, size=500)
    path.write_bytes(one * 20)
    with kf.FileRecords(path) as source:
        records = kf.LazyDownConvertRecords(source, 1)
        tracemalloc.start()
        send, size = records.to_send(), 0
        while not send.completed:
            size += send.write_to(Sink(1 << 16))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert size == 20 * len(one) > 20_000_000
    assert peak < 1_500_000


# Properties

rows_strategy = st.lists(
    st.builds(
        Row,
        st.integers(1, 5),  # the gap in front of it
        st.integers(-1, 2**62),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=60),
        st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


@st.composite
def logs(draw) -> bytes:
    """A log of batches of any kind, offsets ascending."""
    offset, data = draw(st.integers(0, 2**40)), b""
    for _ in range(draw(st.integers(0, 6))):
        rows = []
        for row in draw(rows_strategy):
            offset += row.offset
            rows.append(row._replace(offset=offset))
        magic = draw(st.sampled_from([0, 1, 2, 2]))
        codec = draw(st.sampled_from([0, 0, 1, 2, 3]))
        attributes = draw(st.sampled_from([0, 0, ref.TIMESTAMP_TYPE])) if magic else 0
        if magic == 2:
            data += ref.batch_of(rows, codec=codec, attributes=attributes)
        elif codec:
            data += ref.wrapper(magic, codec, rows, attributes=attributes)
        else:
            data += ref.messages(magic, rows, attributes=attributes)
        if draw(st.booleans()):
            offset += 1
            data += draw(st.sampled_from([end_marker(offset, commit=True), empty_batch(offset, 0)]))
    return data


@settings(max_examples=150, deadline=None)
@given(logs(), st.sampled_from([0, 1, 2]), st.integers(1, 2000), st.integers(0, 30))
def test_conversion_when_any_log_then_eager_is_row_by_row_and_lazy_is_a_prefix_of_eager(
    data, to_magic, chunk_size, skipped
):
    offsets = [row.offset for row in ref.read_rows(data)]
    first_offset = offsets[min(skipped, len(offsets) - 1)] if offsets else 0
    converted = kf.MemoryRecords(data).down_convert(to_magic, first_offset).records
    rows = as_rows(converted.records(control=True))
    assert rows == converted_rows(data, to_magic, first_offset)
    assert ref.read_rows(bytes(converted.buffer)) == rows
    if to_magic < 2:
        records = lazy(data, to_magic, first_offset, chunk_size=chunk_size)
        got = sent(records)
        assert len(got) == records.size_in_bytes
        part = rows_of(got)
        assert part == rows[: len(part)]
        assert part or not rows
        chunks = b"".join(bytes(chunk) for chunk in records.chunks())
        assert rows_of(chunks) == rows


@settings(max_examples=50, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_send_when_any_log_and_channel_then_eager_bytes_and_padding(data, rng: random.Random):
    if any(batch.codec for batch in ref.read(data)):
        return  # a compressor need not give the same bytes twice
    records = lazy(data, 1, chunk_size=rng.choice([1, 64, 1000]))
    if records.size_in_bytes:
        assert_padded(sent(records, 0, *(rng.randint(1, 99) for _ in range(5))), eager(data))


def test_conversion_when_unverified_then_damage_of_values_is_carried_on():
    data = bytearray(SAMPLES["v2 none"])
    data[data.index(b"first")] ^= 0x20
    with pytest.raises(kf.CorruptRecordError):
        kf.MemoryRecords(data).down_convert(1)
    converted = kf.MemoryRecords(data).down_convert(1, verify=False).records
    assert len(list(converted.records())) == 3


def test_every_kind_when_lazy_then_sent_up_to_the_zstd_batch():
    rows = rows_of(sent(lazy(EVERY_KIND)))
    kinds = list(SAMPLES)
    before = b"".join(SAMPLES[kind] for kind in kinds[: kinds.index("v2 zstd")])
    assert rows == converted_rows(before, 1)


# Output that outgrows its source


@pytest.mark.parametrize("fallback", [kf.Codec.NONE, kf.Codec.LZ4, kf.Codec.SNAPPY, kf.Codec.GZIP])
@pytest.mark.parametrize("chunk_size", [1, 4096, 128 * 1024])
def test_lazy_when_batches_compress_much_better_in_the_source_then_equals_eager(fallback, chunk_size):
    pattern = random.Random(3).randbytes(60_000)  # repeats beyond the window of all but zstd
    source = b""
    for start in range(0, 12, 3):
        rows = [Row(start + i, DAY, None, pattern) for i in range(3)]
        source += ref.batch_of(rows, codec=ref.ZSTD)
    records = kf.MemoryRecords(source)
    lazy = kf.LazyDownConvertRecords(records, 1, chunk_size=chunk_size, zstd_fallback=fallback)
    eager = records.down_convert(1, zstd_fallback=fallback).records
    assert b"".join(bytes(chunk) for chunk in lazy.chunks()) == bytes(eager.buffer)


# A source that cannot be read


class _FailingRecords(kf.FileRecords):
    """Reading fails from the third read on: what a bad disk does."""

    reads = 0

    def read_at(self, position, size, memory=None):
        self.reads += 1
        if self.reads > 2:
            raise OSError(5, "Input/output error")
        return super().read_at(position, size, memory)


def test_send_when_reading_fails_then_fails_again_and_never_pads(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(batches_of(3000))
    with _FailingRecords(path) as records:
        send = kf.LazyDownConvertRecords(records, 1, chunk_size=4096).to_send()
        sink = Sink()
        with pytest.raises(OSError, match="Input/output error"):  # noqa: PT012
            while not send.completed:
                send.write_to(sink)
        with pytest.raises(OSError, match="Input/output error"):
            send.write_to(sink)
    assert not send.completed
