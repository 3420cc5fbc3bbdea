"""Batches that get another codec, in their own format or on the way to another one."""

from __future__ import annotations

import itertools

import pytest

import kafkafmt as kf
import reference as ref
from records.samples import (
    DAY,
    EVERY_KIND,
    GAPS,
    ROWS,
    SAMPLES,
    WITH_HEADERS,
    converted_rows,
    empty_batch,
    end_marker,
)
from reference import Row

CODECS = [kf.Codec(number) for number in range(5)]
OLD_CODECS = CODECS[:4]
KEPT_FIELDS = (
    *("magic", "last_offset", "base_timestamp", "max_timestamp", "delete_horizon_ms", "timestamp_type"),
    *("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence", "last_sequence"),
    *("is_transactional", "is_control", "base_offset", "count"),
)
V2_SAMPLES = {name: data for name, data in SAMPLES.items() if name.startswith("v2")}
OLD_SAMPLES = {name: data for name, data in SAMPLES.items() if not name.startswith("v2")}


def recompressed(data: bytes, codec: kf.Codec, **options) -> bytes:
    return bytes(kf.MemoryRecords(data).recompress(codec, **options).records.buffer)


def converted(
    data: bytes, to_magic: int | None, codec: kf.Codec, *, chunk_size: int = 1 << 20, **options
) -> bytes:
    options = kf.ConversionOptions(to_magic, codec=codec, **options)
    chunks = kf.ConvertedChunks(kf.MemoryRecords(data), options, chunk_size=chunk_size)
    return b"".join(bytes(chunk) for chunk in chunks)


def codecs_of(data: bytes) -> set[int]:
    """Those of the batches that a codec is for."""
    return {batch.codec for batch in ref.read(data) if not batch.is_control and batch.rows()}


@pytest.mark.parametrize(("kind", "codec"), list(itertools.product(V2_SAMPLES, CODECS)))
def test_v2_batch_when_recompressed_then_has_all_fields_and_records_it_had(
    kind: str, codec: kf.Codec
) -> None:
    (before,) = kf.MemoryRecords(V2_SAMPLES[kind]).batches()
    data = recompressed(V2_SAMPLES[kind], codec)
    (after,) = kf.MemoryRecords(data).batches()
    assert {name: getattr(after, name) for name in KEPT_FIELDS} == {
        name: getattr(before, name) for name in KEPT_FIELDS
    }
    assert after.is_valid()
    assert ref.read_rows(data) == ref.read_rows(V2_SAMPLES[kind])
    assert after.codec == (kf.Codec.NONE if before.is_control or not before.count else codec)


@pytest.mark.parametrize(("kind", "codec"), list(itertools.product(OLD_SAMPLES, OLD_CODECS)))
def test_messages_when_recompressed_then_keep_format_and_records(kind: str, codec: kf.Codec) -> None:
    data = recompressed(OLD_SAMPLES[kind], codec)
    assert ref.read_rows(data) == ref.read_rows(OLD_SAMPLES[kind])
    assert {batch.magic for batch in ref.read(data)} == {batch.magic for batch in ref.read(OLD_SAMPLES[kind])}
    assert codecs_of(data) == {codec}


@pytest.mark.parametrize("chunk_size", [1, 200, 1 << 20])
@pytest.mark.parametrize(
    ("to_magic", "codec"), [(m, c) for m in (0, 1, 2) for c in CODECS if m == 2 or c != kf.Codec.ZSTD]
)
def test_every_kind_when_both_change_then_every_record_and_one_codec(
    to_magic: int, codec: kf.Codec, chunk_size: int
) -> None:
    data = converted(EVERY_KIND, to_magic, codec, chunk_size=chunk_size)
    assert ref.read_rows(data) == converted_rows(EVERY_KIND, to_magic)
    assert codecs_of(data) == {codec}
    # What was too old for the format that was asked for is as old as it was.
    assert {batch.magic for batch in ref.read(data)} == ({2} if to_magic == 2 else set(range(to_magic + 1)))


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_every_kind_when_recompressed_in_chunks_then_are_the_bytes_of_the_eager_way(codec: kf.Codec) -> None:
    at_once = recompressed(EVERY_KIND, codec)
    assert ref.read_rows(at_once) == ref.read_rows(EVERY_KIND)
    by_chunks = converted(EVERY_KIND, None, codec, chunk_size=300)
    assert ref.read_rows(by_chunks) == ref.read_rows(EVERY_KIND)
    assert converted(EVERY_KIND, None, codec) == at_once


@pytest.mark.parametrize("codec", CODECS)
def test_batch_when_it_has_the_codec_already_then_is_copied_as_bytes(codec: kf.Codec) -> None:
    batch = ref.batch_of(ROWS, codec=codec)
    # As another library compressed it: `level` is not what it was made with.
    level = {kf.Codec.GZIP: 9, kf.Codec.LZ4: 9, kf.Codec.ZSTD: 19}.get(codec)
    result = kf.MemoryRecords(batch * 2).recompress(codec, level=level)
    assert bytes(result.records.buffer) == batch * 2
    assert result.stats.records_converted == 0


def test_control_and_empty_batches_when_recompressed_then_are_never_compressed() -> None:
    data = end_marker(10, commit=True) + empty_batch()
    assert recompressed(data, kf.Codec.ZSTD) == data
    empty_with_codec = ref.batch(b"", 0, base_offset=20, last_offset_delta=4, attributes=ref.GZIP)
    (batch,) = kf.MemoryRecords(recompressed(empty_with_codec, kf.Codec.LZ4)).batches()
    assert (batch.codec, batch.count, batch.last_offset) == (kf.Codec.NONE, 0, 24)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_stand_alone_when_compressed_then_are_gathered_into_wrappers(magic: int) -> None:
    rows = [Row(3 * i, DAY + i, b"key", bytes(1000)) for i in range(100)]
    if magic == 0:
        rows = [row._replace(timestamp=-1, timestamp_type=-1) for row in rows]
    data = recompressed(ref.messages(magic, rows), kf.Codec.GZIP)
    assert ref.read_rows(data) == rows
    wrappers = list(kf.MemoryRecords(data).batches())
    assert [wrapper.count for wrapper in wrappers] == [15] * 6 + [10]  # 16 KiB each
    if magic == 1:
        assert [wrapper.max_timestamp for wrapper in wrappers] == [
            max(record.timestamp for record in wrapper) for wrapper in wrappers
        ]


def test_v1_wrapper_when_made_then_inner_offsets_are_relative() -> None:
    for source in (ref.messages(1, GAPS), ref.wrapper(1, ref.GZIP, GAPS), ref.batch_of(GAPS)):
        (wrapper,) = ref.read(converted(source, 1, kf.Codec.SNAPPY))
        inner = ref.decompress(ref.SNAPPY, wrapper.data[ref.MESSAGE_OVERHEAD[1] :])
        assert [int.from_bytes(inner[at : at + 8], "big") for at in _messages_in(inner)] == [0, 2, 4, 5]
        assert wrapper.last_offset == 8


def _messages_in(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return starts


def test_uncompressed_batch_when_it_gets_a_codec_below_v2_then_is_one_wrapper_from_the_first_offset() -> None:
    data = ref.batch_of(WITH_HEADERS) + ref.batch_of(ROWS)
    found = converted(data, 1, kf.Codec.LZ4, first_offset=11)
    assert [row.offset for row in ref.read_rows(found)] == [11, 12]
    assert len(list(ref.read(found))) == 1


@pytest.mark.parametrize("codec", [kf.Codec.GZIP, kf.Codec.LZ4, kf.Codec.ZSTD])
def test_level_when_given_then_is_the_codecs(codec: kf.Codec) -> None:
    words = [b"%d is the square of %d" % (i * i, i) for i in range(2000)]
    data = ref.batch_of([Row(i, DAY, None, word) for i, word in enumerate(words)])
    sources = [data, recompressed(data, kf.Codec.SNAPPY)]
    low, high = {kf.Codec.GZIP: (1, 9), kf.Codec.LZ4: (1, 12), kf.Codec.ZSTD: (1, 19)}[codec]
    for source, to_magic in itertools.product(sources, [None, 2] if codec == kf.Codec.ZSTD else [None, 1, 2]):
        sizes = [len(converted(source, to_magic, codec, level=level)) for level in (low, high)]
        assert sizes[1] < sizes[0], (to_magic, sizes)


def test_zstd_when_a_batch_is_of_v1_then_is_refused_at_that_batch() -> None:
    data = ref.batch_of(ROWS) + ref.messages(1, GAPS)
    with pytest.raises(
        kf.UnsupportedCompressionTypeError, match="zstd: expected message format v2 or later"
    ) as raised:
        recompressed(data, kf.Codec.ZSTD)
    assert raised.value.position == len(ref.batch_of(ROWS))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"to_magic": None}, "to_magic and codec: expected one of them"),
        ({"to_magic": 1, "codec": kf.Codec.ZSTD}, "v1 has no zstd"),
        ({"to_magic": 2, "codec": 7}, "codec: expected one of none, gzip"),
        ({"to_magic": None, "codec": kf.Codec.SNAPPY, "level": 3}, "snappy has no compression levels"),
        ({"to_magic": None, "codec": kf.Codec.GZIP, "level": 10}, "gzip level must be 1 to 9"),
        ({"to_magic": 2, "level": 3}, "level: expected a codec with it"),
        (
            {"to_magic": 1, "codec": kf.Codec.LZ4, "zstd_fallback": kf.Codec.GZIP},
            "codec and zstd_fallback: expected one of them",
        ),
    ],
)
def test_options_when_they_do_not_fit_together_then_are_refused(arguments: dict, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        kf.ConversionOptions(**arguments)


@pytest.mark.parametrize("kind", ["v2 gzip", "v1 gzip", "v1", "v2 headers"])
def test_damage_when_met_then_is_never_recompressed(kind: str) -> None:
    good = ref.batch_of(ROWS, codec=ref.LZ4)
    damaged = bytearray(SAMPLES[kind])
    damaged[-1] ^= 0xFF
    with pytest.raises(kf.CorruptRecordError, match="CRC mismatch") as raised:
        recompressed(good + bytes(damaged) + good, kf.Codec.SNAPPY)
    assert raised.value.position is not None
    assert raised.value.position >= len(good)


def test_payload_when_it_is_a_bomb_then_is_refused_at_the_limit() -> None:
    data = ref.batch_of([Row(0, DAY, None, bytes(1 << 20))], codec=ref.GZIP)
    with pytest.raises(kf.DecompressionLimitError):
        kf.MemoryRecords(data, max_decompressed_bytes=1 << 16).recompress(kf.Codec.ZSTD)
