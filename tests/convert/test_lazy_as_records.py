"""KIP-283, "Message Chunking": `public class LazyDownConvertRecords implements Records`, with writeTo."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.records.base import Records

CHUNK = 2000
BATCHES, RECORDS = 30, 10


def batch(number: int, codec: kf.Codec = kf.Codec.NONE, size: int = 20) -> bytes:
    builder = kf.RecordBatchBuilder(codec=codec, base_offset=number * RECORDS)
    for record in range(RECORDS):
        builder.append(1_700_000_000_000, b"key-%d" % record, bytes([65 + record]) * size)
    return bytes(builder.build())


SMALL = b"".join(batch(number) for number in range(BATCHES))  # larger when converted: cut
LARGE = b"".join(batch(number, kf.Codec.GZIP, 5) for number in range(BATCHES))


@pytest.fixture(params=[SMALL, LARGE, batch(0), b""], ids=["small", "gzip", "one", "none"])
def lazy(request: pytest.FixtureRequest) -> kf.LazyDownConvertRecords:
    return kf.LazyDownConvertRecords(kf.MemoryRecords(request.param), 1, 3, chunk_size=CHUNK)


class Sink:
    """A channel that takes at most so many bytes at a time."""

    def __init__(self, most: int = 2**31) -> None:
        self.data = bytearray()
        self._most = most

    def write(self, data: memoryview) -> int:
        taken = data[: self._most]
        self.data += taken
        return len(taken)


def sent(lazy: kf.LazyDownConvertRecords) -> bytes:
    sink, send = Sink(), lazy.to_send()
    while not send.completed:
        send.write_to(sink)
    return bytes(sink.data)


def written(lazy: Records, sink: Sink, position: int = 0, end: int | None = None) -> bytes:
    end = lazy.size_in_bytes if end is None else end
    while position < end:
        taken = lazy.write_to(sink, position, end - position)
        assert taken > 0
        position += taken
    return bytes(sink.data)


def test_lazy_records_when_created_then_are_records_with_the_fields_of_the_kip() -> None:
    source = kf.MemoryRecords(SMALL)
    place = kf.TopicPartition("orders", 3)
    lazy = kf.LazyDownConvertRecords(source, 1, 3, topic_partition=place)
    assert isinstance(lazy, Records)
    assert (lazy.source, lazy.to_magic, lazy.first_offset) == (source, 1, 3)
    assert (lazy.topic_partition, lazy.size_in_bytes) == (place, len(SMALL))
    assert (lazy.start_position, lazy.end_position) == (0, len(SMALL))


@pytest.mark.parametrize("most", [7, 1000, 2**31])
def test_write_to_when_called_until_the_end_then_writes_what_a_send_writes(
    lazy: kf.LazyDownConvertRecords, most: int
) -> None:
    assert written(lazy, Sink(most)) == sent(lazy)
    assert lazy.write_to(Sink(), lazy.size_in_bytes) == 0


def test_write_to_when_asked_for_a_range_then_writes_that(lazy: kf.LazyDownConvertRecords) -> None:
    expected, size = sent(lazy), lazy.size_in_bytes
    for position, end in ((0, 5), (size // 2, size), (size // 3, size // 2), (1, size // 2), (size, size)):
        if position <= size:
            assert written(lazy, Sink(), position, min(end, size)) == expected[position : min(end, size)]


def test_write_to_when_the_channel_takes_nothing_then_the_next_call_goes_on_there() -> None:
    lazy = kf.LazyDownConvertRecords(kf.MemoryRecords(SMALL), 1, chunk_size=CHUNK)
    first = lazy.write_to(Sink(100))
    assert lazy.write_to(Sink(0), first) == 0
    assert written(lazy, Sink(), first) == sent(lazy)[first:]


@pytest.mark.parametrize(("position", "size"), [(-1, 10), (0, -1)])
def test_read_at_when_the_position_or_the_size_is_below_0_then_value_error(position: int, size: int) -> None:
    lazy = kf.LazyDownConvertRecords(kf.MemoryRecords(SMALL), 1)
    with pytest.raises(ValueError, match=r"expected 0 to .* found -1"):
        lazy.read_at(position, size)


@pytest.mark.parametrize("position", [-1, len(SMALL) + 1])
def test_write_to_when_the_position_is_outside_then_raises(position: int) -> None:
    lazy = kf.LazyDownConvertRecords(kf.MemoryRecords(SMALL), 1)
    with pytest.raises(ValueError, match=f"position {position}"):
        lazy.write_to(Sink(), position)


def test_write_to_when_it_goes_on_then_each_chunk_is_converted_once(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(SMALL)
    reads = []

    class CountedFile(kf.FileRecords):
        def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
            reads.append(position)
            return super().read_at(position, size, memory)

    with CountedFile(path) as source:
        lazy = kf.LazyDownConvertRecords(source, 1, chunk_size=CHUNK)
        written(lazy, Sink(700))
        once = len(reads)
        reads.clear()
        assert list(kf.LazyDownConvertRecords(source, 1, chunk_size=CHUNK).chunks())
    assert once <= len(reads)


def test_write_to_when_the_channel_is_a_socket_then_it_gets_the_bytes(
    lazy: kf.LazyDownConvertRecords,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        position, received = 0, b""
        while position < lazy.size_in_bytes:
            taken = lazy.write_to(ours, position, lazy.size_in_bytes - position)
            position += taken
            received += theirs.recv(taken, socket.MSG_WAITALL)
    assert received == sent(lazy)


def test_records_when_read_then_are_those_that_a_consumer_finds_in_what_is_sent(
    lazy: kf.LazyDownConvertRecords,
) -> None:
    consumer = kf.MemoryRecords(sent(lazy))
    assert [one.offset for one in lazy.records()] == [one.offset for one in consumer.records()]
    assert [one.magic for one in lazy.batches()] == [one.magic for one in consumer.batches()]
    assert lazy.valid_bytes == consumer.valid_bytes
    assert lazy.index().tolist() == consumer.index().tolist()


def test_records_when_read_by_position_then_are_the_same_bytes_in_any_order(
    lazy: kf.LazyDownConvertRecords,
) -> None:
    expected = sent(lazy)
    for position in (*range(0, len(expected), 321), 0, len(expected)):
        assert bytes(lazy.read_at(position, 5000)) == expected[position : position + 5000]


def test_batch_when_it_cannot_be_converted_then_is_padding_as_in_a_send() -> None:
    data = bytearray(SMALL)
    data[len(batch(0)) * 12 + 100] ^= 1
    lazy = kf.LazyDownConvertRecords(kf.MemoryRecords(data), 1, chunk_size=CHUNK)
    assert written(lazy, Sink()) == sent(lazy)
    found = [one.offset for one in lazy.records()]
    assert found == list(range(len(found)))
    assert len(found) == 12 * RECORDS


def test_records_when_pickled_then_are_the_same(lazy: kf.LazyDownConvertRecords) -> None:
    lazy.write_to(Sink(100))
    again = pickle.loads(pickle.dumps(lazy))
    assert written(again, Sink()) == sent(lazy)


def test_source_when_it_cannot_be_read_then_write_to_raises_each_time(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(SMALL)
    source = kf.FileRecords(path)
    lazy = kf.LazyDownConvertRecords(source, 1, chunk_size=CHUNK)
    position = lazy.write_to(Sink())
    source.close()
    for _ in range(2):
        with pytest.raises(ValueError, match="is closed"):
            lazy.write_to(Sink(), position)
