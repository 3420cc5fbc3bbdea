"""A fetch response over parts of every kind: its size to the byte beforehand, one chunk in memory, any channel."""

from __future__ import annotations

import gc
import os
import random
import socket
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.convert.chunks import ChunkMemory
from kafkafmt.convert.fetch_response import FetchResponse, FetchSend, ResponsePart
from kafkafmt.records.base import Records
from kafkafmt.records.range import RecordsRange
from records.samples import SAMPLES, Sink, empty_batch, end_marker, rows_of
from reference import Row

DAY = 1_700_000_000_000
KIB, MIB = 1024, 1024 * 1024
CHUNK = 2000


def log_of(count: int, *, start: int = 0, size: int = 100, codec: int = ref.NONE) -> bytes:
    """Batches of a record each; values differ, so that bytes of one log never pass for those of another."""
    rows = [
        Row(start + i, DAY + i, b"%d" % start, random.Random(start + i).randbytes(size)) for i in range(count)
    ]
    return b"".join(ref.batch_of([row], codec=codec) for row in rows)


def broken(data: bytes, number: int, count: int) -> bytes:
    """Batches of one size, one of which is damaged."""
    damaged = bytearray(data)
    damaged[number * len(data) // count + 70] ^= 1
    return bytes(damaged)


LOGS = {
    "plain": log_of(60),
    "gzip": log_of(20, start=1000, codec=ref.GZIP),
    "with markers": log_of(5, start=2000) + b"".join(end_marker(i, commit=True) for i in range(2005, 2100)),
    "mixed": log_of(3, start=3000) + SAMPLES["v1"] + SAMPLES["v0 gzip"] + log_of(30, start=3100, size=300),
    "large batch": log_of(1, start=4000, size=9000) + log_of(20, start=4001),
    "grows": b"".join(ref.batch_of([Row(5000 + i, DAY, None, b"")] * 1) for i in range(40)),
    "damaged": broken(log_of(40, start=6000), 25, 40),
    "zstd behind": log_of(20, start=7000) + log_of(5, start=7020, codec=ref.ZSTD),
    "v0": ref.messages(0, [Row(8000 + i, -1, b"old", b"%d" % i) for i in range(50)]),
}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[[bytes], kf.FileRecords]]:
    """Makes records in files of bytes."""
    with ExitStack() as stack:

        def make(data: bytes) -> kf.FileRecords:
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.log"
            path.write_bytes(data)
            return stack.enter_context(kf.FileRecords(path))

        yield make


def lazy(records: Records | bytes, to_magic: int = 1, chunk_size: int = CHUNK) -> kf.LazyDownConvertRecords:
    records = kf.MemoryRecords(records) if isinstance(records, bytes) else records
    return kf.LazyDownConvertRecords(records, to_magic, chunk_size=chunk_size)


def alone(part: ResponsePart) -> bytes:
    """What a part is on its own."""
    sink = Sink()
    if isinstance(part, bytes):
        return part
    if isinstance(part, Records):
        while len(sink.taken) < part.size_in_bytes:
            part.write_to(sink, part.start_position + len(sink.taken))
    else:
        send = part.to_send()
        while not send.completed:
            send.write_to(sink)
    return bytes(sink.taken)


def parts_of(files: Callable[[bytes], kf.FileRecords], to_magic: int = 1) -> list[ResponsePart]:
    """As a response has them: bytes, and between them records of all kinds."""
    parts: list[ResponsePart] = [b"header"]
    for number, data in enumerate(LOGS.values()):
        file = files(data)
        stored = RecordsRange(file, len(data) // 3, len(data) - 5)
        parts += [lazy(file, to_magic), b"meta%d" % number, stored, b"", kf.MemoryRecords(data[:100]), b"."]
    return [*parts, b"end"]


def finish(send: FetchSend, channel: object, most_calls: int = 1_000_000) -> None:
    for _ in range(most_calls):
        if send.completed:
            return
        send.write_to(channel)  # type: ignore[arg-type]
    raise AssertionError(f"{send.remaining} bytes are never sent")


# Channels


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("limits", [(), (1,), (0, 7), (999,), (4096, 0, 1)])
@pytest.mark.parametrize("shared", [False, True], ids=["own memory", "shared memory"])
def test_send_to_any_channel_is_the_parts_one_after_another(
    files: Callable[[bytes], kf.FileRecords], limits: tuple[int, ...], to_magic: int, shared: bool
) -> None:
    parts = parts_of(files, to_magic)
    expected = b"".join(map(alone, parts))
    response = FetchResponse(parts)
    assert response.size_in_bytes == len(expected)
    assert response.converts
    sink = Sink(*limits)
    send = response.to_send(ChunkMemory(CHUNK) if shared else None)
    finish(send, sink)
    assert bytes(sink.taken) == expected
    assert (send.write_to(sink), send.remaining, send.held_bytes, send.needed_bytes) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["plain", "damaged", "large batch"])
def test_send_to_a_socket_with_a_small_buffer_is_the_same_bytes(
    files: Callable[[bytes], kf.FileRecords], kind: str
) -> None:
    file = files(LOGS[kind] * 3)
    response = FetchResponse([b"h", lazy(file), b"m", RecordsRange(file, 0, len(LOGS[kind])), b"e"])
    expected = b"".join(map(alone, response.parts))
    send, got, refused = response.to_send(ChunkMemory(CHUNK)), bytearray(), 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        while not send.completed:
            if not send.write_to(ours):
                refused += 1
                got += theirs.recv(1500)
        ours.close()
        while data := theirs.recv(1 << 16):
            got += data
    assert refused > 3
    assert bytes(got) == expected


@pytest.mark.parametrize("limits", [(), (1,), (0, 7), (999,)])
def test_stored_parts_that_are_written_at_once_are_the_same_bytes(
    files: Callable[[bytes], kf.FileRecords], limits: tuple[int, ...]
) -> None:
    data = LOGS["gzip"]
    file = files(data)
    parts: list[ResponsePart] = [b"header", file, kf.MemoryRecords(data)]
    for number in range(300):
        parts += [b"m%d" % number, RecordsRange(file, number, number + 2)]
    response = FetchResponse(parts)
    send, sink = response.to_send(), Sink(*limits)
    for _ in range(response.size_in_bytes + 1):
        before = len(sink.taken)
        is_written = send.write_stored(sink)
        assert send.remaining == response.size_in_bytes - len(sink.taken)
        if is_written:
            break
        assert limits or len(sink.taken) > before
    assert (send.completed, send.held_bytes) == (True, 0)
    assert bytes(sink.taken) == b"".join(map(alone, parts))
    assert send.stats.unconverted_bytes == 2 * len(data) + 600


def test_remaining_falls_by_what_is_taken_and_stats_tell_what_was_sent(
    files: Callable[[bytes], kf.FileRecords],
) -> None:
    stored, converted = files(LOGS["gzip"]), lazy(files(LOGS["plain"]))
    response = FetchResponse([b"header", stored, b"meta", converted])
    send, sink = response.to_send(), Sink(100, 0, 3)
    while not send.completed:
        before = send.remaining
        assert send.write_to(sink) == before - send.remaining
        assert len(sink.taken) == response.size_in_bytes - send.remaining
    stats = send.stats
    assert (stats.unconverted_bytes, stats.converted_bytes) == (stored.size_in_bytes, converted.size_in_bytes)
    assert stats.conversion.records_converted == 60
    assert stats.errors == []


def test_response_without_records_converts_nothing() -> None:
    response = FetchResponse([b"all", lazy(b""), kf.MemoryRecords(b"")])
    sink = Sink()
    finish(response.to_send(), sink)
    assert (response.converts, response.size_in_bytes, bytes(sink.taken)) == (False, 3, b"all")


# Sends that share their memory


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(LOGS)), st.sampled_from([0, 1]), st.booleans()),
        min_size=2,
        max_size=4,
    ),
    st.sampled_from([1, 150, CHUNK, 10**6]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 700)), min_size=5, max_size=60),
)
def test_sends_that_share_memory_are_what_each_is_alone(
    wanted: list[tuple[str, int, bool]], chunk_size: int, turns: list[tuple[int, int]]
) -> None:
    """In any order, with any part of a chunk taken: the source is read into memory that all have in common."""
    memory = ChunkMemory(chunk_size)
    sends, sinks, expected = [], [], []
    for kind, to_magic, forgets in wanted:
        part = lazy(LOGS[kind], to_magic, chunk_size)
        expected.append(b"<" + alone(part) + b">")
        if forgets:
            part.forget_first()
        sends.append(FetchResponse([b"<", part, b">"]).to_send(memory))
        sinks.append(Sink())
    while not all(send.completed for send in sends):
        for number, limit in turns:
            if number < len(sends):
                sinks[number].limits = (limit,)
                sends[number].write_to(sinks[number])
        for send, sink in zip(sends, sinks, strict=True):
            sink.limits = (50,)
            send.write_to(sink)
    assert [bytes(sink.taken) for sink in sinks] == expected


def test_sends_from_files_that_share_memory_are_the_same_byte_by_byte(
    files: Callable[[bytes], kf.FileRecords],
) -> None:
    memory = ChunkMemory(500)
    parts = [lazy(files(LOGS[kind]), 1, 500) for kind in ("plain", "mixed", "gzip", "plain")]
    sends = [FetchResponse([part]).to_send(memory) for part in parts]
    sinks = [Sink(1, 0) for _ in sends]
    while not all(send.completed for send in sends):
        for send, sink in zip(sends, sinks, strict=True):
            send.write_to(sink)
    assert [bytes(sink.taken) for sink in sinks] == [alone(part) for part in parts]


def test_chunk_size_that_shrinks_meanwhile_changes_no_byte(files: Callable[[bytes], kf.FileRecords]) -> None:
    parts = [lazy(files(LOGS["plain"]), chunk_size=5000) for _ in range(3)]
    memory, taken = ChunkMemory(5000), []
    for part, chunk_size in zip(parts, (5000, 700, 1), strict=True):
        memory.chunk_size = chunk_size
        send, sink = FetchResponse([part]).to_send(memory), Sink(300)
        finish(send, sink)
        taken.append(bytes(sink.taken))
    assert set(taken) == {alone(parts[0])}


# What is held


class Ignoring:
    """Takes all, and keeps nothing."""

    def write(self, data: memoryview) -> int:
        return len(data)


class Watched(ChunkMemory):
    """Tells how many of the buffers that were taken still are."""

    def __init__(self, chunk_size: int) -> None:
        super().__init__(chunk_size, most_spare_bytes=0)
        self.taken: list[weakref.ref[np.ndarray]] = []

    def take(self, size: int) -> np.ndarray:
        buffer = super().take(size)
        self.taken.append(weakref.ref(buffer))
        return buffer

    @property
    def alive(self) -> int:
        return sum(buffer() is not None for buffer in self.taken)


def test_between_chunks_no_buffer_is_held_and_within_one_a_single_one() -> None:
    memory = Watched(CHUNK)
    sends = [FetchResponse([b"h", lazy(LOGS["plain"])]).to_send(memory) for _ in range(5)]
    gc.disable()  # nothing may need it
    try:
        for send in sends:
            while not send.completed:
                send.write_to(Sink(700))
                assert memory.alive <= 1
                if send.needed_bytes:
                    assert memory.alive == 0
        assert memory.alive == 0
        assert len(memory.taken) > 20
    finally:
        gc.enable()


def test_needed_bytes_is_what_the_next_chunk_takes_and_held_bytes_what_it_took() -> None:
    memory = Watched(CHUNK)
    part = lazy(LOGS["plain"])
    part.forget_first()
    send, needed = FetchResponse([b"h", part, b"e"]).to_send(memory), 0
    while not send.completed:
        if now := send.needed_bytes:
            assert send.held_bytes == 0
            needed = now
        send.write_to(Sink(500))
        if send.held_bytes:
            assert send.needed_bytes == 0
            assert 0 < send.held_bytes <= needed
    assert needed == 1.5 * CHUNK


def test_held_bytes_of_a_batch_that_is_larger_than_the_chunk_are_all_of_it() -> None:
    memory = Watched(CHUNK)
    part = lazy(log_of(1) + log_of(2, start=1, size=100_000))
    send = FetchResponse([part]).to_send(memory)
    held = []
    while not send.completed:
        send.write_to(Sink(10_000))
        held.append(send.held_bytes)
        assert not send.held_bytes or memory.alive == 0  # the buffer that was too small is given back
    assert max(held) >= 100_000
    assert held[-1] == 0


def test_held_bytes_count_what_was_converted_beforehand_until_it_is_taken() -> None:
    first, second = lazy(LOGS["plain"]), lazy(LOGS["mixed"])
    second.forget_first()
    assert (first.first_bytes > 100, second.first_bytes) == (True, 0)
    send = FetchResponse([b"header", first, second]).to_send(ChunkMemory(CHUNK))
    sink = Sink(3)
    held = []
    while len(sink.taken) < len(b"header") + first.first_bytes:
        held.append(send.held_bytes)
        send.write_to(sink)
    assert set(held) == {first.first_bytes}


def test_send_holds_no_part_that_was_sent(files: Callable[[bytes], kf.FileRecords]) -> None:
    part = lazy(LOGS["plain"])
    first = weakref.ref(part)
    response = FetchResponse([part, b"end"])
    send = response.to_send(ChunkMemory(CHUNK))
    send.write_to(Sink())
    del part, response
    assert first() is None
    finish(send, Sink())


@pytest.mark.parametrize("is_large", [False, True], ids=["within a chunk", "larger than a chunk"])
def test_sends_of_compressed_batches_when_they_are_between_chunks_then_hold_neither_source_nor_scratch(
    files: Callable[[bytes], kf.FileRecords], *, is_large: bool
) -> None:
    """A batch decompresses to a megabyte: each send that is in its midst would hold that."""
    builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4, batch_size=2 * MIB)
    for offset in range(16):
        builder.append(DAY + offset, None, random.Random(offset).randbytes(8 * KIB) * 8)
    batch = bytes(builder.build())
    source, chunk_size = files(batch * 3), 1 if is_large else len(batch)
    memory, sends = ChunkMemory(chunk_size, most_spare_bytes=0), []
    tracemalloc.start()
    for _ in range(20):
        sends.append(FetchResponse([lazy(source, chunk_size=chunk_size)]).to_send(memory))
        sends[-1].write_to(Ignoring())  # what was converted beforehand
        assert sends[-1].needed_bytes
        sends[-1].convert_next()
        assert not sends[-1].needed_bytes
        sends[-1].write_to(Ignoring())
        assert sends[-1].needed_bytes
        sends[-1].convert_next()
        held = sends[-1].held_bytes
        sends[-1].release_chunk()
        assert 0 < held < 2 * len(batch)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < len(batch) + len(sends) * 16 * KIB


def test_many_sends_that_wait_take_little_together() -> None:
    """Each has sent its first chunk and waits for its turn with the next."""
    source = kf.MemoryRecords(log_of(200, size=2000))
    memory = ChunkMemory(64 * 1024)
    tracemalloc.start()
    sends = []
    for _ in range(100):
        part = lazy(source, chunk_size=64 * 1024)
        part.forget_first()
        send = FetchResponse([part]).to_send(memory)
        sink = Sink()
        send.write_to(sink)
        sends.append(send)
        del sink.taken
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert all(send.needed_bytes and not send.held_bytes for send in sends)
    assert held < 2_000_000


def test_forget_first_then_the_same_bytes_and_the_same_count() -> None:
    for data in LOGS.values():
        part = lazy(data)
        expected, size, first = alone(part), part.size_in_bytes, part.first_bytes
        part.forget_first()
        part.forget_first()
        assert (part.size_in_bytes, part.first_bytes) == (size, 0)
        assert alone(part) == expected
        stats = kf.ConversionStats()
        assert sum(map(len, _until_error(part, stats))) >= first
        send = part.to_send()
        while not send.completed:
            send.write_to(Sink())
        known = lazy(data).to_send()
        while not known.completed:
            known.write_to(Sink())
        assert send.stats.records_converted == known.stats.records_converted


def _until_error(part: kf.LazyDownConvertRecords, stats: kf.ConversionStats) -> list[bytes]:
    chunks = []
    with suppress(kf.KafkaFormatError):
        chunks.extend(bytes(chunk) for chunk in part.chunks(stats=stats))
    return chunks


# Errors


@pytest.mark.parametrize("kind", ["damaged", "zstd behind"])
@pytest.mark.parametrize("shared", [False, True])
def test_error_behind_the_first_chunk_is_padded_and_told(kind: str, shared: bool) -> None:
    part = lazy(LOGS[kind], chunk_size=300)
    response = FetchResponse([b"h", part, b"between", lazy(LOGS["plain"]), b"e"])
    send, sink = response.to_send(ChunkMemory(300) if shared else None), Sink(77)
    finish(send, sink)
    assert len(sink.taken) == response.size_in_bytes
    assert bytes(sink.taken[1 + part.size_in_bytes :]).startswith(b"between")
    (error,) = send.stats.errors
    assert error.base_offset in (6025, 7020)
    rows = rows_of(bytes(sink.taken[1 : 1 + part.size_in_bytes]))
    assert len(rows) == error.base_offset % 1000


def test_stored_records_whose_file_lost_its_end_are_an_eof_error(
    files: Callable[[bytes], kf.FileRecords],
) -> None:
    file = files(LOGS["plain"])
    send = FetchResponse([b"h", file, b"e"]).to_send()
    os.truncate(file.path, 1000)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, pytest.raises(EOFError, match="truncated"):
        finish(send, ours, 10)
    with pytest.raises(EOFError, match="truncated"):
        finish(send, Sink(), 10)
    assert send.remaining == file.size_in_bytes - 1000 + 1


def test_channel_that_fails_leaves_the_send_where_it_was() -> None:
    class Failing(Sink):
        def write(self, data: memoryview) -> int:
            if self.calls % 2:
                self.calls += 1
                raise ConnectionResetError
            return super().write(data)

    response = FetchResponse([b"header", lazy(LOGS["mixed"]), kf.MemoryRecords(LOGS["plain"])])
    send, sink = response.to_send(ChunkMemory(CHUNK)), Failing(900)
    for _ in range(10_000):
        if send.completed:
            break
        try:
            send.write_to(sink)
        except ConnectionResetError:
            continue
    assert bytes(sink.taken) == b"".join(map(alone, response.parts))


# Logs of which nothing is left


@pytest.mark.parametrize("chunk_size", [1, 300, 1 << 16])
@pytest.mark.parametrize(
    "data",
    [
        [end_marker(0, commit=True)],
        [end_marker(i, commit=True) for i in range(50)],
        [empty_batch(i * 5, 4) for i in range(50)],
        [ref.batch_of([Row(i, DAY, None, b"below")]) for i in range(50)],
    ],
    ids=["a marker", "markers", "empty batches", "batches below the offset"],
)
def test_passed_position_is_behind_all_that_converts_to_nothing(
    data: Sequence[bytes], chunk_size: int
) -> None:
    source = kf.MemoryRecords(b"".join(data))
    records = kf.LazyDownConvertRecords(source, 1, 1000, chunk_size=chunk_size)
    assert (records.passed_position, records.size_in_bytes) == (source.size_in_bytes, 12)
    cut = kf.MemoryRecords(b"".join(data) + data[0][:40])
    records = kf.LazyDownConvertRecords(cut, 1, 1000, chunk_size=chunk_size)
    assert records.passed_position == source.size_in_bytes
    found = kf.MemoryRecords(b"".join(data) + log_of(3, start=1000))
    records = kf.LazyDownConvertRecords(found, 1, 1000, chunk_size=chunk_size)
    assert records.passed_position is None
    assert [row.offset for row in rows_of(alone(records))] == [1000, 1001, 1002]


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
def test_send_when_it_lets_its_chunks_go_again_and_again_then_sends_the_same_bytes(codec: kf.Codec) -> None:
    data = bytearray()
    for first in range(0, 2000, 40):
        builder = kf.RecordBatchBuilder(codec=codec, base_offset=first)
        for offset in range(first, first + 40):
            builder.append(offset, b"key", b"value %d" % offset)
        data += builder.build()
    records = kf.LazyDownConvertRecords(kf.MemoryRecords(data), 1, chunk_size=2000)
    wanted = b"".join(map(bytes, records.chunks()))
    memory, random_ = ChunkMemory(), random.Random(7)
    send, sink = FetchResponse([b"head", records]).to_send(memory), bytearray()

    class Channel:
        def write(self, data: memoryview) -> int:
            taken = min(random_.choice([0, 1, 100, 5000]), len(data))
            sink.extend(data[:taken])
            return taken

    while not send.completed:
        send.write_to(Channel())
        if random_.random() < 0.5:
            send.release_chunk()
            assert send.held_bytes == 0
    assert bytes(sink[4 : 4 + len(wanted)]) == wanted[: len(sink) - 4]
