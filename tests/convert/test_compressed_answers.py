"""KIP-283, "Rejected Alternatives: Compression": records that are compressed while they are converted down."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from kafkafmt.convert.chunks import ChunkMemory
from kafkafmt.convert.fetch_response import FetchResponse
from records.samples import DAY, EVERY_KIND, GAPS, converted_rows, empty_batch, end_marker, sent
from reference import Row

CODECS = [kf.Codec.GZIP, kf.Codec.SNAPPY, kf.Codec.LZ4]
WAYS = list(itertools.product([0, 1], CODECS))


def log(batches: int, *, codec: int = ref.NONE, count: int = 20) -> bytes:
    firsts = range(0, batches * count, count)
    return b"".join(
        ref.batch_of(
            [Row(at, DAY + at, b"key", b"%05d" % at + bytes(95)) for at in range(first, first + count)],
            codec=codec,
        )
        for first in firsts
    )


def compressed(data: bytes, to_magic: int, codec: kf.Codec, **options) -> kf.LazyDownConvertRecords:
    return kf.LazyDownConvertRecords(kf.MemoryRecords(data), to_magic, codec=codec, **options)


@pytest.mark.parametrize(("to_magic", "codec"), WAYS)
@pytest.mark.parametrize("stored", range(5))
def test_kip_283_compression_when_a_codec_is_set_then_wrappers_have_it_and_the_size_is_exact(
    to_magic: int, codec: kf.Codec, stored: int
) -> None:
    data = log(4, codec=stored)
    records = compressed(data, to_magic, codec)
    got = sent(records)
    wrappers = list(ref.read(got))
    assert [(one.magic, one.codec) for one in wrappers] == [(to_magic, codec)] * 4
    assert len(got) == records.size_in_bytes < len(log(4))
    assert sum(len(bytes(batch.buffer)) for batch in kf.MemoryRecords(got).batches()) == len(
        got
    )  # no padding
    assert ref.read_rows(got) == converted_rows(data, to_magic)


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_in_a_wrapper_when_v1_then_are_relative_and_when_v0_absolute(codec: kf.Codec) -> None:
    data = ref.batch_of(GAPS)
    inner = {}
    for to_magic in (0, 1):
        (wrapper,) = kf.MemoryRecords(sent(compressed(data, to_magic, codec))).batches()
        assert (wrapper.last_offset, [record.offset for record in wrapper]) == (8, [3, 5, 7, 8])
        value = bytes(wrapper.buffer)[34 if to_magic else 26 :]
        messages = ref.decompress(
            codec, ref.lz4_with_right_checksum(value) if codec == kf.Codec.LZ4 else value
        )
        inner[to_magic] = [one.last_offset for one in ref.read(messages)]
    assert inner == {0: [3, 5, 7, 8], 1: [0, 2, 4, 5]}


@pytest.mark.parametrize(("to_magic", "codec"), WAYS)
def test_every_kind_when_compressed_then_every_record_up_to_the_end_of_the_chunk(
    to_magic: int, codec: kf.Codec
) -> None:
    got = sent(compressed(EVERY_KIND, to_magic, codec))
    assert ref.read_rows(got) == converted_rows(EVERY_KIND, to_magic)
    assert {batch.codec for batch in ref.read(got)} == {codec}


@pytest.mark.parametrize(("to_magic", "codec"), WAYS)
def test_size_when_a_chunk_ends_or_the_limit_is_reached_then_is_of_the_batches_before(
    to_magic: int, codec: kf.Codec
) -> None:
    data = log(10)
    ends = list(
        itertools.accumulate(len(batch.data) for batch in ref.read(sent(compressed(data, to_magic, codec))))
    )
    of_three = compressed(data, to_magic, codec, chunk_size=3 * len(data) // 10)
    assert of_three.size_in_bytes == ends[2]
    assert b"".join(of_three.chunks()) == sent(of_three)
    for limit, expected in ((ends[4], ends[4]), (ends[4] - 1, ends[3]), (0, ends[0])):
        records = compressed(data, to_magic, codec, limit_bytes=limit)
        assert records.size_in_bytes == expected
        assert sent(records) == sent(compressed(data, to_magic, codec))[:expected]


@pytest.mark.parametrize(("to_magic", "codec"), WAYS)
def test_chunk_when_it_is_forgotten_then_is_compressed_again_to_the_same_bytes(
    to_magic: int, codec: kf.Codec
) -> None:
    data = end_marker(0, commit=True) + empty_batch(1, 0) + log(10)
    for limit in (1 << 30, 1500):
        records = compressed(data, to_magic, codec, limit_bytes=limit)
        expected = sent(records)
        records.forget_first()
        assert records.first_bytes == 0
        assert sent(records) == expected


class TlsChannel:
    """A channel that takes `room` bytes of what it is offered. As a TLS socket, it must not be offered fewer then."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.room = 0
        self._offered = 0

    def write(self, data: memoryview) -> int:
        assert len(data) >= self._offered
        taken = data[: self.room]
        self.received += taken
        self._offered = 0 if len(taken) else len(data)
        return len(taken)


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_chunk_when_it_is_released_while_chunks_become_smaller_then_its_other_bytes_follow(
    codec: kf.Codec | None,
) -> None:
    data = log(10)
    records = kf.LazyDownConvertRecords(kf.MemoryRecords(data), 1, codec=codec, limit_bytes=1 << 30)
    expected, stats = sent(records), kf.ConversionStats()
    sum(map(len, records.chunks(stats=stats)))
    memory, channel = ChunkMemory(len(data)), TlsChannel()
    send = records.to_send(memory)
    for room in itertools.cycle([700, 0]):
        channel.room = room
        send.write_to(channel)
        if send.completed:
            break
        if not room:
            memory.chunk_size = 1000
            send.release_chunk()
            assert send.held_bytes == 0
            assert send.needed_bytes > 0
    assert bytes(channel.received) == expected
    if codec is not None:  # all was converted beforehand, and converted again
        assert send.stats.records_converted == stats.records_converted == 200


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_chunk_when_it_is_released_without_shared_memory_then_its_other_bytes_follow(
    codec: kf.Codec | None,
) -> None:
    records = kf.LazyDownConvertRecords(kf.MemoryRecords(log(10)), 1, codec=codec, chunk_size=3000)
    send, channel = records.to_send(), TlsChannel()
    for room in itertools.cycle([777, 0]):
        channel.room = room
        send.write_to(channel)
        if send.completed:
            break
        send.release_chunk()
    assert bytes(channel.received) == sent(records)


@pytest.mark.parametrize("codec", [kf.Codec.NONE, *CODECS])
@pytest.mark.parametrize("limit_bytes", [6_000, 1 << 30])
def test_chunk_when_it_is_of_zstd_batches_and_released_then_its_other_bytes_follow(
    codec: kf.Codec, limit_bytes: int
) -> None:
    """For consumers of v2 without zstd."""
    data = log(5, codec=ref.ZSTD) + end_marker(100, commit=True) + log(5, codec=ref.ZSTD)
    records = compressed(data, 2, codec, limit_bytes=limit_bytes)
    expected = sent(records)
    send, channel = records.to_send(ChunkMemory(len(data))), TlsChannel()
    for room in itertools.cycle([100, 0]):
        channel.room = room
        send.write_to(channel)
        if send.completed:
            break
        send.release_chunk()
        assert send.held_bytes == 0
    assert bytes(channel.received) == expected
    assert {batch.codec for batch in ref.read(expected) if not batch.is_control} == {codec}


@pytest.mark.parametrize("rooms", [(2, 0), (4, 700, 0)], ids=["in the head", "in a chunk"])
def test_chunk_when_it_is_released_then_those_of_later_partitions_are_too(rooms: tuple[int, ...]) -> None:
    """Memory for it is acquired again, and nothing may be held meanwhile."""
    data = log(10)
    parts = [compressed(data, 1, codec, limit_bytes=1 << 30) for codec in CODECS]
    expected = b"head" + b"".join(map(sent, parts))
    send, channel = FetchResponse([b"head", *parts]).to_send(ChunkMemory(len(data))), TlsChannel()
    for room in rooms:
        channel.room = room
        send.write_to(channel)
    assert send.held_bytes == sum(one.first_bytes for one in parts) > 0
    send.release_chunk()
    assert send.held_bytes == 0
    channel.room = len(expected)
    while not send.completed:
        send.write_to(channel)
    assert bytes(channel.received) == expected
    assert send.held_bytes == 0


def test_chunk_when_it_is_damaged_after_a_part_was_sent_then_the_send_fails() -> None:
    data = bytearray(log(4))
    records = compressed(data, 1, kf.Codec.GZIP)
    send, channel = records.to_send(ChunkMemory(len(data))), TlsChannel()
    channel.room = 100
    send.write_to(channel)
    send.release_chunk()
    data[100] ^= 1
    for _ in range(2):
        with pytest.raises(kf.CorruptRecordError):
            send.write_to(channel)


@pytest.mark.parametrize("codec", [None, kf.Codec.GZIP])
def test_chunk_when_the_file_is_truncated_after_a_part_was_sent_then_the_send_fails(
    codec: kf.Codec | None, tmp_path: Path
) -> None:
    """Padding in its place would be in the middle of a message."""
    path = tmp_path / "log"
    path.write_bytes(log(10))
    with kf.FileRecords(path) as source:
        records = kf.LazyDownConvertRecords(source, 1, codec=codec, chunk_size=2000)
        send, channel = records.to_send(ChunkMemory(2000)), TlsChannel()
        if codec is None:
            channel.room = records.first_bytes
            send.write_to(channel)
        channel.room = 50
        send.write_to(channel)
        send.release_chunk()
        os.truncate(path, 100)
        for _ in range(2):
            with pytest.raises(EOFError, match="file truncated: expected"):
                send.write_to(channel)


def test_damage_when_it_is_behind_the_first_batch_then_what_is_before_is_sent_without_padding() -> None:
    data = bytearray(log(4))
    data[len(data) // 2 + 100] ^= 1
    got = sent(compressed(bytes(data), 1, kf.Codec.GZIP))
    assert [one.codec for one in ref.read(got)] == [kf.Codec.GZIP] * 2
    with pytest.raises(kf.CorruptRecordError):
        compressed(bytes(data[len(data) // 2 :]), 1, kf.Codec.GZIP)


def test_codec_when_zstd_or_with_a_fallback_then_value_error() -> None:
    with pytest.raises(ValueError, match="message format v1 has no zstd, expected another codec"):
        compressed(log(1), 1, kf.Codec.ZSTD)
    with pytest.raises(ValueError, match="expected one of them"):
        compressed(log(1), 1, kf.Codec.GZIP, zstd_fallback=kf.Codec.LZ4)
