"""Who owns the bytes of what public iterators hand out, and which objects a send writes to.

What a caller keeps stays as it is by default: joined, listed, or held by a transport while it waits for its socket.
With `reuse_memory=True` memory is shared, as kernels and jobs want it.
"""

from __future__ import annotations

import asyncio
import gc
import io
import socket
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from records.samples import DAY
from reference import Row

SOURCE_BATCHES = 600
DATA = b"".join(
    ref.batch_of([Row(number, DAY + number, b"key-%d" % number, bytes([number % 251]) * 700)])
    for number in range(SOURCE_BATCHES)
)
CHUNK_SIZE = 50_000


@pytest.fixture
def path(tmp_path):
    segment = tmp_path / "segment"
    segment.write_bytes(DATA)
    return segment


def lazy(records: kf.Records | None = None, **options) -> kf.LazyDownConvertRecords:
    records = kf.MemoryRecords(DATA) if records is None else records
    return kf.LazyDownConvertRecords(records, 1, chunk_size=CHUNK_SIZE, **options)


def converted() -> bytes:
    return bytes(kf.MemoryRecords(DATA).down_convert(1).records.buffer)


# Chunks that are kept


KEPT: dict[str, Callable[[Iterator[memoryview]], bytes]] = {
    "join": lambda chunks: b"".join(chunks),
    "list": lambda chunks: b"".join(list(chunks)),
    "every other one": lambda chunks: b"".join(
        kept for kept in [(one, next(chunks, b"")) for one in chunks] for kept in kept
    ),
    "a deque of three": lambda chunks: joined_behind(chunks, 3),
}


def joined_behind(chunks: Iterator[memoryview], waiting: int) -> bytes:
    """As a transport sends them: when some more are waiting."""
    out, queue = bytearray(), deque()
    for chunk in chunks:
        queue.append(chunk)
        if len(queue) > waiting:
            out += queue.popleft()
    return bytes(out) + b"".join(queue)


@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("how", KEPT)
def test_chunks_when_kept_then_each_has_its_own_bytes(how, in_file, path):
    records = kf.FileRecords(path) if in_file else kf.MemoryRecords(DATA)
    assert KEPT[how](lazy(records).chunks()) == converted()


def test_chunks_when_kept_then_read_only_and_whole_when_all_else_is_gone(path):
    with kf.FileRecords(path) as records:
        kept = list(lazy(records).chunks())
    del records
    gc.collect()
    junk = [bytearray(b"\xdd" * CHUNK_SIZE) for _ in range(20)]
    assert all(chunk.readonly for chunk in kept)
    assert b"".join(kept) == converted()
    del junk


def test_converted_chunks_when_joined_then_each_has_its_own_bytes():
    recompressed = kf.ConversionOptions(None, codec=kf.Codec.LZ4)
    chunks = list(kf.ConvertedChunks(kf.MemoryRecords(DATA), recompressed, chunk_size=CHUNK_SIZE))
    assert len(chunks) > 3
    offsets = [record.offset for record in kf.MemoryRecords(b"".join(chunks)).records()]
    assert offsets == list(range(SOURCE_BATCHES))


def test_chunks_when_they_outgrow_their_memory_then_still_their_own():
    """lz4 to none by way of a batch that converts to more than a chunk's memory, and small ones around it."""
    large = ref.batch_of([Row(1, DAY, b"k", bytes(400_000))], codec=ref.LZ4)
    small = [ref.batch_of([Row(number, DAY, b"k", b"v" * 300)]) for number in (0, 2, 3)]
    data = b"".join([small[0], large, *small[1:]])
    options = kf.ConversionOptions(None, codec=kf.Codec.NONE)
    chunks = list(kf.ConvertedChunks(kf.MemoryRecords(data), options, chunk_size=1000))
    assert [record.offset for record in kf.MemoryRecords(b"".join(chunks)).records()] == [0, 1, 2, 3]


def test_chunks_when_memory_is_reused_then_views_of_one_buffer():
    _first, *others = addresses(lazy().chunks(reuse_memory=True))
    assert len(others) > 3
    assert len(set(others)) == 1
    assert b"".join(map(bytes, lazy().chunks(reuse_memory=True))) == converted()


@pytest.mark.thread_unsafe
def test_chunks_when_dropped_then_their_memory_is_used_again():
    """What makes owned chunks cheap: fresh memory's page faults would cost as much as the conversion."""
    assert len(set(addresses(lazy().chunks()))) <= 4


def addresses(chunks: Iterator[memoryview]) -> list[int]:
    return [address(chunk) for chunk in chunks]


def address(view: object) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def test_chunks_when_small_and_kept_then_no_more_memory_than_they_have():
    """A chunk that converts to little does not keep the memory that a large one would need."""
    rows = [Row(number, DAY, b"k", bytes(2000)) for number in range(100)]
    data = b"".join(ref.batch_of([row]) for row in rows)
    options = kf.ConversionOptions(None, codec=kf.Codec.ZSTD)
    tracemalloc.start()
    kept = list(kf.ConvertedChunks(kf.MemoryRecords(data), options, chunk_size=10_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) >= 20
    assert held < 100_000
    assert len(kf.MemoryRecords(b"".join(kept)).index()) == 100


def test_sent_when_the_channel_keeps_the_views_then_they_stay_as_they_are():
    kept: list[memoryview] = []

    class Keeping:
        def write(self, view: memoryview) -> int:
            kept.append(view)
            return len(view)

    records = lazy()
    send = records.to_send()
    while not send.completed:
        send.write_to(Keeping())
    data = b"".join(kept)
    assert len(data) == records.size_in_bytes
    assert data[: len(converted())] == converted()[: len(data)]


# Other iterators of views


def test_runs_when_kept_then_each_has_its_own_bytes_unless_memory_is_reused(path):
    with kf.FileRecords(path) as records:
        kept = list(records.runs(run_bytes=CHUNK_SIZE))
        assert b"".join(run.batch(number) for run in kept for number in range(len(run))) == DATA
        shared = list(records.runs(run_bytes=CHUNK_SIZE, reuse_memory=True))
        assert len({address(run.buffer) for run in shared}) == 1


def test_batches_when_kept_then_each_has_its_own_bytes(path):
    with kf.FileRecords(path) as records:
        kept = list(records.batches())
    assert b"".join(batch.buffer for batch in kept) == DATA


def test_runs_and_batches_of_a_log_when_kept_then_each_has_its_own_bytes(tmp_path):
    folder = tmp_path / "topic-0"
    folder.mkdir()
    half = len(DATA) // SOURCE_BATCHES * (SOURCE_BATCHES // 2)
    starts = [int(position) for position in kf.MemoryRecords(DATA).index()["position"]]
    cut = min(starts, key=lambda position: abs(position - half))
    first_offset = starts.index(cut)
    (folder / f"{0:020d}.log").write_bytes(DATA[:cut])
    (folder / f"{first_offset:020d}.log").write_bytes(DATA[cut:])
    log = kf.log.PartitionLog(folder)
    runs = list(log.runs(run_bytes=CHUNK_SIZE))
    assert b"".join(run.batch(number) for run in runs for number in range(len(run))) == DATA
    assert b"".join(batch.buffer for batch in list(log.batches())) == DATA


def test_column_batches_when_kept_then_each_has_its_own_memory(path):
    values = [bytes([number % 251]) * 700 for number in range(SOURCE_BATCHES)]
    with kf.FileRecords(path) as records:
        numpy = list(records.numpy_batches(["value"], chunk_bytes=CHUNK_SIZE))
        tables = [
            list(records.arrow_batches(["value"], views=views, chunk_bytes=CHUNK_SIZE))
            for views in (False, True)
        ]
    assert len(numpy) > 3
    assert [value for chunk in numpy for value in chunk["value"]] == values
    for batches in tables:
        assert [value for batch in batches for value in batch.column("value").to_pylist()] == values


def test_forwarded_when_kept_then_each_has_its_own_bytes():
    rows = [Row(number, DAY, b"k", b"%04d" % number * 50) for number in range(300)]
    data = b"".join(ref.messages(1, rows[first : first + 1]) for first in range(len(rows)))
    (run,) = kf.MemoryRecords(data).runs()
    kept = [forwarded.run for forwarded in kf.BatchForwarder().forward(run)]
    found = b"".join(one.batch(number) for one in kept for number in range(len(one)))
    assert [record.value for record in kf.MemoryRecords(found).records()] == [row.value for row in rows]


# asyncio


async def received(write: Callable[[asyncio.StreamWriter], object]) -> bytes:
    """What a slow reader gets of what a coroutine function writes."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await write(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        reader._transport.pause_reading()  # what is written waits in the writer's buffer
        await asyncio.sleep(0)
        reader._transport.resume_reading()
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
    return data


def test_chunks_when_written_to_a_stream_writer_then_they_arrive_as_they_are():
    """A transport of Python 3.12 and later keeps what its socket does not take, and copies none of it."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=1 << 30)  # drain does not wait
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for chunk in lazy().chunks():
            writer.write(chunk)
            await writer.drain()

    assert asyncio.run(received(write)) == converted()


def test_chunks_when_written_with_writelines_then_they_arrive_as_they_are():
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.writelines(lazy().chunks())
        await writer.drain()

    assert asyncio.run(received(write)) == converted()


def test_send_when_the_channel_is_a_stream_writer_then_type_error_and_nothing_is_written():
    refused = []

    async def write(writer: asyncio.StreamWriter) -> None:
        for channel in (writer, writer.transport):
            with pytest.raises(TypeError, match=r"found asyncio\..*BytesIO") as raised:
                lazy().to_send().write_to(channel)
            refused.append(str(raised.value))

    assert asyncio.run(received(write)) == b""
    assert len(refused) == 2


# What is no channel


class Forgetful:
    def write(self, view: memoryview) -> None:
        pass


class Succeeding:
    def write(self, view: memoryview) -> bool:
        return True


class Awaited:
    async def write(self, view: memoryview) -> int:
        return len(view)


NO_CHANNELS = {
    "an object whose write returns nothing": (Forgetful(), "Forgetful, whose write returned NoneType"),
    "one whose write says that it succeeded": (Succeeding(), "Succeeding, whose write returned bool"),
    "one whose write is a coroutine": (Awaited(), "Awaited, whose write returned coroutine"),
    "an object without write": (object(), "found object"),
    "a list's append": ([].append, "found builtin_function_or_method"),
    "a str": ("channel", "found str"),
    "None": (None, "found NoneType"),
    "a class": (io.BytesIO, "found the class _io.BytesIO"),
    "a file opened as text": (io.StringIO(), "found _io.StringIO, a file opened as text"),
}


@pytest.mark.parametrize("kind", NO_CHANNELS)
def test_write_to_when_the_channel_is_none_then_type_error_that_names_what_is_expected(kind, path):
    channel, found = NO_CHANNELS[kind]
    with kf.FileRecords(path) as records:
        for write_to in (
            lazy().to_send().write_to,
            kf.FetchResponse([b"header", lazy()]).to_send().write_to,
            kf.MemoryRecords(DATA).write_to,
            records.write_to,
        ):
            with pytest.raises(TypeError) as raised:
                write_to(channel)
            assert "expected a socket, or an object whose write(view) returns how many bytes" in str(
                raised.value
            )
            assert found in str(raised.value)


def test_write_to_when_a_text_file_is_open_then_type_error(tmp_path):
    with (tmp_path / "out").open("w") as file, pytest.raises(TypeError, match="opened as text"):
        lazy().to_send().write_to(file)


@pytest.mark.parametrize("buffering", [0, -1])
def test_write_to_when_a_file_is_open_as_binary_then_all_is_written(buffering, tmp_path):
    records = lazy()
    with (tmp_path / "out").open("wb", buffering=buffering) as file:
        send = records.to_send()
        while not send.completed:
            send.write_to(file)
    written = (tmp_path / "out").read_bytes()
    assert len(written) == records.size_in_bytes
    assert written[: len(converted())] == converted()[: len(written)]


def test_write_to_when_a_raw_file_would_block_then_0_and_it_goes_on():
    class Hesitant(io.RawIOBase):
        taken, calls = b"", 0

        def write(self, view: memoryview) -> int | None:
            self.calls += 1
            if self.calls % 2:
                return None
            self.taken += bytes(view[:30_000])
            return min(len(view), 30_000)

    records, channel = lazy(), Hesitant()
    send = records.to_send()
    while not send.completed:
        send.write_to(channel)
    assert channel.taken[: len(converted())] == converted()[: len(channel.taken)]


def test_write_to_when_a_buffered_file_blocks_after_some_bytes_then_those_are_not_written_twice():
    """BufferedWriter tells what it took by the error that says that it would block."""

    class Full(io.RawIOBase):
        taken, room = b"", 100_000

        def writable(self) -> bool:
            return True

        def write(self, view: memoryview) -> int | None:
            part = bytes(view[: self.room])
            self.taken, self.room = self.taken + part, self.room - len(part)
            return len(part) or None

    records, raw = lazy(), Full()
    channel = io.BufferedWriter(raw, 10_000)
    send = records.to_send()
    while not send.completed:
        if not send.write_to(channel):
            raw.room = 100_000
    raw.room = 1 << 30
    channel.flush()
    assert len(raw.taken) == records.size_in_bytes
    assert raw.taken[: len(converted())] == converted()[: len(raw.taken)]
