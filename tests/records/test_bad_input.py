"""Input that lies: counts, sizes, varints, magics, codecs, bombs, torn and zero-filled files.

The checksum is right in all of it unless a test says otherwise, so that nothing but the structure gives it away.
"""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from measure import peak_bytes
from records.samples import DAY, ROWS, SAMPLES, as_rows, rows_of
from reference import Row

RECORD = ref.record(0, 0, b"k", b"v")
BIG = 2**31 - 1


def framed(body: bytes) -> bytes:
    """A record around fields that are written one by one."""
    return ref.varint(len(body)) + body


HEAD = b"\0\0\0"  # attributes and the two deltas
KEY, VALUE, NO_HEADERS = ref.sized(b"k"), ref.sized(b"v"), b"\0"

# What is wrong -> the records section, and the count that the batch declares.
LIES: dict[str, tuple[bytes, int]] = {
    "a count of 2^31 - 1": (RECORD, BIG),
    "a count of one too many": (RECORD, 2),
    "a count of -1": (RECORD, -1),
    "a count of -2^31": (RECORD, -(2**31)),
    "a byte left after the last record": (RECORD + b"\0", 1),
    "a record left after the last": (RECORD * 2, 1),
    "no records where there ought to be one": (b"", 1),
    "a record longer than the batch": (ref.record(0, 0, b"k", b"v", length=100), 1),
    "a record length of 2^31 - 1": (ref.record(0, 0, b"k", b"v", length=BIG), 1),
    "a record length of -1": (ref.record(0, 0, b"k", b"v", length=-1), 1),
    "a record length of 0": (b"\0" * 8, 1),
    "a record that goes on after its fields": (ref.record(0, 0, b"k", b"v", tail=b"\0"), 1),
    "a record that ends before its fields": (ref.record(0, 0, b"k", b"v", length=6) + b"\0", 1),
    "a key size of -2": (framed(HEAD + ref.varint(-2) + b"k" + VALUE + NO_HEADERS), 1),
    "a key size past the record": (framed(HEAD + ref.varint(50) + b"k" + VALUE + NO_HEADERS), 1),
    "a key size of 2^31 - 1": (framed(HEAD + ref.varint(BIG) + b"k" + VALUE + NO_HEADERS), 1),
    "a value size of -2": (framed(HEAD + KEY + ref.varint(-2) + b"v" + NO_HEADERS), 1),
    "a value size past the record": (framed(HEAD + KEY + ref.varint(3) + b"v" + NO_HEADERS), 1),
    "a value size of 2^31 - 1": (framed(HEAD + KEY + ref.varint(BIG) + b"v" + NO_HEADERS), 1),
    "a header count past the record": (ref.record(0, 0, b"k", b"v", header_count=1000), 1),
    "a header count of 2^31 - 1": (ref.record(0, 0, b"k", b"v", header_count=BIG), 1),
    "a header count of -1": (ref.record(0, 0, b"k", b"v", header_count=-1), 1),
    "a header count of one too many": (ref.record(0, 0, b"k", b"v", [(b"h", b"1")], header_count=2), 1),
    "a header count of one too few": (
        ref.record(0, 0, b"k", b"v", [(b"h", b"1"), (b"i", b"2")], header_count=1),
        1,
    ),
    "a null header key": (framed(HEAD + KEY + VALUE + ref.varint(1) + ref.varint(-1) + b"\0"), 1),
    "a header key past the record": (
        framed(HEAD + KEY + VALUE + ref.varint(1) + ref.sized(b"h", 99) + b"\0"),
        1,
    ),
    "a header value size of -2": (
        framed(HEAD + KEY + VALUE + ref.varint(1) + ref.sized(b"h") + ref.varint(-2)),
        1,
    ),
    "a header value size of 2^31 - 1": (
        framed(HEAD + KEY + VALUE + ref.varint(1) + ref.sized(b"h") + ref.varint(BIG)),
        1,
    ),
    "an int32 varint of 6 bytes": (
        framed(b"\0\0" + ref.unsigned_varint(0, padded_to=6) + KEY + VALUE + NO_HEADERS),
        1,
    ),
    "an int32 varint with bits past the 32nd": (
        framed(b"\0\0" + b"\xff\xff\xff\xff\x1f" + KEY + VALUE + NO_HEADERS),
        1,
    ),
    "an int64 varint of 11 bytes": (
        framed(b"\0" + ref.unsigned_varint(0, padded_to=11) + b"\0" + KEY + VALUE + NO_HEADERS),
        1,
    ),
    "an int64 varint with bits past the 64th": (
        framed(b"\0" + b"\xff" * 9 + b"\x03" + b"\0" + KEY + VALUE + NO_HEADERS),
        1,
    ),
    "a varint that never ends": (b"\xff" * 40, 1),
    "a varint that the record cuts short": (framed(HEAD + KEY + VALUE + b"\x80"), 1),
}


def lying(lie: str, codec: int = ref.NONE, **fields: int) -> bytes:
    payload, count = LIES[lie]
    fields = {"base_offset": 5, "last_offset_delta": 9, **fields}
    return ref.batch(ref.compress(codec, payload), count, attributes=codec, **fields)


WAYS_IN = {
    "records": lambda records: list(records.records()),
    "records unverified": lambda records: list(records.records(verify=False)),
    "batch": lambda records: [list(batch) for batch in records.batches()],
    "to_numpy": lambda records: records.to_numpy(),
    "to_numpy offset": lambda records: records.to_numpy(["offset"]),
    "to_arrow": lambda records: records.to_arrow(),
    "to_arrow views": lambda records: records.to_arrow(["key", "value"], views=True),
    "down_convert 0": lambda records: records.down_convert(0),
    "down_convert 1": lambda records: records.down_convert(1),
    "lazy": lambda records: kf.LazyDownConvertRecords(records, 1),
    "trim": lambda records: [batch.trim(batch.base_offset + 1) for batch in records.batches()],
}


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize("lie", LIES)
def test_v2_records_when_a_number_lies_then_invalid_record_through_every_way_in(lie, way_in):
    """Cases 25, 27: counts and lengths that the bytes cannot hold; varints that are too long or overflow."""
    data = lying(lie)
    with pytest.raises(kf.InvalidRecordError, match=r"(expected|does not end)") as raised:
        WAYS_IN[way_in](kf.MemoryRecords(data))
    error = raised.value
    assert (error.position, error.base_offset, error.last_offset) == (0, 5, 14)
    assert error.next_position == len(data)


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4, ref.ZSTD])
@pytest.mark.parametrize("lie", LIES)
def test_compressed_v2_records_when_a_number_lies_then_invalid_record(lie, codec):
    """Case 25, behind each codec."""
    data = lying(lie, codec)
    with pytest.raises(kf.InvalidRecordError if LIES[lie][0] else kf.KafkaFormatError):
        list(kf.MemoryRecords(data).records())
    with pytest.raises(kf.KafkaFormatError):
        kf.MemoryRecords(data).down_convert(1)


def test_v2_records_when_the_crc_fails_too_then_corrupt_not_invalid():
    """The two families: without a CRC that holds, a broken structure is damage."""
    data = lying("a key size past the record", crc=1)
    for verify in (True, False):
        with pytest.raises(kf.CorruptRecordError):
            list(kf.MemoryRecords(data).records(verify=verify))


@pytest.mark.parametrize("value", [0, 1, 63, 64, 2**20, BIG, -1, -64, -65, -(2**31)])
def test_varint_when_padded_to_its_longest_form_then_read(value):
    """Case 27: a padded varint within 5 bytes is overlong but no error, as in Kafka."""
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    body = b"\0\0" + ref.unsigned_varint(zigzag, padded_to=5) + KEY + VALUE + NO_HEADERS
    data = ref.batch(framed(body), 1, base_offset=2**32)
    assert [row.offset for row in rows_of(data)] == [2**32 + value]


@pytest.mark.parametrize("delta", [0, 2**63 - 1, -(2**63), 2**33, -(2**33)])
def test_timestamp_delta_when_64_bits_then_read(delta):
    """Case 14: timestamp deltas are 64-bit."""
    data = ref.batch(ref.record(0, delta, b"k", b"v"), 1, base_timestamp=0)
    assert [row.timestamp for row in rows_of(data)] == [delta]


MESSAGE_LIES = {
    "a key size of -2": {"key_size": -2},
    "a key size past the message": {"key_size": 99},
    "a key size of 2^31 - 1": {"key_size": BIG},
    "a value size of -2": {"value_size": -2},
    "a value size past the message": {"value_size": 99},
    "a value size of 2^31 - 1": {"value_size": BIG},
    "a value that ends early": {"value_size": 1},
    "bytes behind the value": {"tail": b"\0\0"},
}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("lie", MESSAGE_LIES)
def test_message_when_a_size_lies_then_invalid_record(lie, magic):
    """Case 25, in v0 and v1."""
    data = ref.message(magic, 7, DAY, b"key", b"value", **MESSAGE_LIES[lie])
    for read in (
        WAYS_IN["records"],
        WAYS_IN["to_numpy"],
        WAYS_IN["to_arrow"],
        lambda records: records.down_convert(2),
    ):
        with pytest.raises(kf.InvalidRecordError) as raised:
            read(kf.MemoryRecords(data))
        assert (raised.value.position, raised.value.last_offset) == (0, 7)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
@pytest.mark.parametrize(
    "lie", [*MESSAGE_LIES, "cut short", "nothing in it", "compressed inside", "of v2", "size -1"]
)
def test_wrapper_when_an_inner_message_lies_then_invalid_record(lie, codec, magic):
    """Case 25, inside wrappers: each inner message is checked as the outer ones are."""
    good = ref.message(magic, 0, DAY, b"key", b"value")
    inner = {
        "cut short": good[:-1],
        "nothing in it": b"",
        "compressed inside": ref.message(magic, 0, DAY, None, b"x", attributes=ref.GZIP),
        "of v2": good[:16] + b"\x02" + good[17:],
        "size -1": ref.message(magic, 0, DAY, b"key", b"value", size=-1),
    }.get(lie)
    if inner is None:
        inner = good + ref.message(magic, 1, DAY, b"key", b"value", **MESSAGE_LIES[lie])
    data = ref.wrapper(magic, codec, ROWS, inner=inner)
    with pytest.raises(kf.InvalidRecordError if inner else kf.KafkaFormatError):
        list(kf.MemoryRecords(data).records())
    with pytest.raises(kf.KafkaFormatError):
        kf.MemoryRecords(data).down_convert(2)
    (batch,) = kf.MemoryRecords(data).batches()
    with pytest.raises(kf.KafkaFormatError):
        _ = batch.count


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_when_its_value_is_null_then_invalid_record(magic):
    data = ref.message(magic, 3, DAY, None, None, attributes=ref.GZIP)
    with pytest.raises(kf.InvalidRecordError, match="null value"):
        list(kf.MemoryRecords(data).records())


def test_v1_wrapper_when_its_offset_is_below_the_last_inner_one_then_invalid_record():
    """Case 11, the other side of it: a base would be negative."""
    data = ref.wrapper(1, ref.GZIP, ROWS, offset=1)
    with pytest.raises(kf.InvalidRecordError, match="wrapper offset"):
        list(kf.MemoryRecords(data).records())


# Memory and time


@pytest.mark.parametrize("lie", [name for name in LIES if "2^31" in name])
def test_allocation_when_a_number_lies_then_none_of_that_size(lie):
    """Case 25: the error comes before any allocation of the size that was claimed."""
    data = lying(lie)

    def read_every_way():
        for way_in in WAYS_IN.values():
            with pytest.raises(kf.KafkaFormatError):
                way_in(kf.MemoryRecords(data))

    assert peak_bytes(read_every_way) < 8 * 2**20


def test_allocation_when_numbers_lie_in_a_process_of_little_memory_then_documented_errors():
    """Case 25, 28: with room for nothing large, nothing but documented errors comes."""
    script = """
        import resource, sys
        sys.path.insert(0, {tests!r})
        import kafkafmt as kf, reference as ref
        from records.test_bad_input import LIES, WAYS_IN, lying
        from records.samples import SAMPLES
        inputs = [lying(lie) for lie in LIES]
        for kind, data in SAMPLES.items():
            for length in (2**31 - 1, 2**30, -1, 0, 13, -2**31):
                inputs.append(data[:8] + length.to_bytes(4, "big", signed=True) + data[12:])
        kf.MemoryRecords(SAMPLES["v2 none"]).to_arrow()  # what it loads, it loads before the limit
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 96 * 2**20, used + 96 * 2**20))
        for data in inputs:
            for way_in in WAYS_IN.values():
                try:
                    way_in(kf.MemoryRecords(data))
                except (kf.KafkaFormatError, ValueError):
                    pass
        print("survived", len(inputs))
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script.format(tests=tests))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("survived")


def bomb(codec: int, size: int) -> bytes:
    """A v2 batch of one record whose value is `size` zeros."""
    return ref.batch(ref.compress(codec, ref.record(0, 0, b"k", bytes(size))), 1, attributes=codec)


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4, ref.ZSTD])
def test_decompression_when_the_output_passes_the_cap_then_limit_error_in_little_memory(codec):
    """Case 26: a decompression bomb ends at the cap, not in memory."""
    size = 64 * 2**20 if codec != ref.SNAPPY else 8 * 2**20
    cap = size // 8
    data = bomb(codec, size)
    records = kf.MemoryRecords(data, max_decompressed_bytes=cap)

    def read():
        with pytest.raises(kf.DecompressionLimitError) as raised:
            list(records.records())
        assert (raised.value.position, raised.value.base_offset) == (0, 0)
        assert raised.value.next_position == len(data)

    assert peak_bytes(read) < 3 * cap + 4 * 2**20
    for way_in in (records.to_numpy, lambda: records.down_convert(1, zstd_fallback=kf.Codec.LZ4)):
        with pytest.raises(kf.DecompressionLimitError):
            way_in()


def test_decompression_when_tiny_records_would_take_many_times_the_cap_then_limit_error():
    """Case 26: a record takes 64 bytes when it is located, and 7 in its batch."""
    count = 2**20 + 1
    payload = ref.compress(ref.ZSTD, ref.record(0, 0, None, None) * count)
    data = SAMPLES["v2 none"] + ref.batch(payload, count, attributes=ref.ZSTD)
    records = kf.MemoryRecords(data, max_decompressed_bytes=2**23)
    _, tiny = records.batches()
    for read in (lambda: list(records.records()), lambda: records.to_numpy(["offset"]), lambda: list(tiny)):
        with pytest.raises(
            kf.DecompressionLimitError, match=f"expected at most {2**20} .*, found {count}"
        ) as raised:
            read()
        assert raised.value.position == len(SAMPLES["v2 none"])
    allowed = kf.MemoryRecords(data, max_decompressed_bytes=64 * count)
    assert len(allowed.to_numpy(["offset"])["offset"]) > count


def test_conversion_when_messages_of_tiny_records_would_take_many_times_the_cap_then_limit_error():
    """Case 26: a message of v1 takes 34 bytes, and a record 7."""
    count = 2**21
    payload = ref.compress(ref.GZIP, ref.record(0, 0, None, None) * count)
    data = SAMPLES["v2 none"] + ref.batch(payload, count, attributes=ref.GZIP)
    for to_magic in (0, 1):
        with pytest.raises(kf.DecompressionLimitError, match="messages of a batch") as raised:
            kf.MemoryRecords(data, max_decompressed_bytes=2**24).down_convert(to_magic)
        assert raised.value.position == len(SAMPLES["v2 none"])
    converted = kf.MemoryRecords(data, max_decompressed_bytes=2**26).down_convert(1)
    assert converted.stats.records_converted > count


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4, ref.ZSTD])
def test_decompression_when_the_output_is_just_the_cap_then_read(codec):
    size = 200_000
    section = len(ref.record(0, 0, b"k", bytes(size)))
    data = bomb(codec, size)
    assert len(next(kf.MemoryRecords(data, max_decompressed_bytes=section).records()).value) == size
    with pytest.raises(kf.DecompressionLimitError):
        next(kf.MemoryRecords(data, max_decompressed_bytes=section - 1).records())


@pytest.mark.parametrize("codec", [ref.GZIP, ref.ZSTD])
@pytest.mark.parametrize(
    "read",
    [
        lambda records: sum(1 for _ in records.records()),
        lambda records: records.to_numpy(["offset"]),
        lambda records: records.to_arrow(["offset"]),
        lambda records: sum(
            map(len, kf.LazyDownConvertRecords(records, 1, zstd_fallback=kf.Codec.LZ4).chunks())
        ),
    ],
)
def test_decompression_when_many_small_batches_grow_large_then_a_few_are_held_at_a_time(read, codec):
    """Case 26: each batch is under the cap, all of them together are not to be held at once."""
    data = bomb(codec, 2**20) * 64
    read(kf.MemoryRecords(SAMPLES["v2 gzip"]))  # what it imports, it imports before
    assert peak_bytes(lambda: read(kf.MemoryRecords(data))) < 16 * 2**20


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_when_it_is_a_bomb_then_limit_error(magic):
    """Case 26, in v0 and v1."""
    data = ref.wrapper(magic, ref.GZIP, [Row(0, DAY, None, bytes(10**6))])
    with pytest.raises(kf.DecompressionLimitError):
        list(kf.MemoryRecords(data, max_decompressed_bytes=10**5).records())


# Headers of batches


@pytest.mark.parametrize("magic", [3, 4, 99, 127])
@pytest.mark.parametrize("way_in", WAYS_IN)
def test_read_when_magic_is_3_or_more_then_unsupported_version(way_in, magic):
    """Case 28: a format that does not exist yet."""
    data = ref.batch(RECORD, 1, magic=magic)
    with pytest.raises(kf.UnsupportedVersionError, match=f"expected 0, 1 or 2, found {magic}") as raised:
        WAYS_IN[way_in](kf.MemoryRecords(data))
    assert raised.value.position == 0


def test_read_when_magic_is_3_then_the_next_position_if_told_is_behind_the_batch():
    """Case 29: whoever goes on at `next_position` gets on."""
    data = ref.batch(RECORD, 1, magic=3)
    with pytest.raises(kf.UnsupportedVersionError) as raised:
        list(kf.MemoryRecords(data + SAMPLES["v2 none"]).batches())
    assert raised.value.next_position in (None, len(data))


@pytest.mark.parametrize("magic", [-1, -128])
def test_read_when_magic_is_negative_then_corrupt(magic):
    with pytest.raises(kf.CorruptRecordError):
        list(kf.MemoryRecords(ref.batch(RECORD, 1, magic=magic)).batches())


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("way_in", WAYS_IN)
def test_v2_batch_when_codec_is_5_to_7_then_unsupported_compression_type(way_in, codec):
    """Case 28: codec ids that no codec has."""
    data = ref.batch(RECORD * 2, 2, attributes=codec)
    with pytest.raises(kf.UnsupportedCompressionTypeError):
        WAYS_IN[way_in](kf.MemoryRecords(data))
    (batch,) = kf.MemoryRecords(data).batches()
    with pytest.raises(kf.UnsupportedCompressionTypeError, match=f"found {codec}"):
        _ = batch.codec


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [4, 5, 6, 7])
def test_message_when_codec_is_4_to_7_then_unsupported_compression_type(magic, codec):
    """Case 28: nor has v0 or v1 zstd."""
    data = ref.message(magic, 0, DAY, None, b"payload", attributes=codec)
    with pytest.raises(kf.UnsupportedCompressionTypeError):
        list(kf.MemoryRecords(data).records())


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("short", [1, 8, "one too few"])
def test_read_when_the_length_is_below_the_minimum_then_corrupt(magic, short):
    """Case 28: no batch is that small."""
    minimum = {0: 26, 1: 34, 2: 61}[magic] - 12
    data = bytearray(SAMPLES[f"v{magic}" if magic < 2 else "v2 none"])
    struct.pack_into(">i", data, 8, minimum - 1 if short == "one too few" else short)
    with pytest.raises(kf.CorruptRecordError, match=r"too small: expected at least \d+ bytes, found \d+"):
        list(kf.MemoryRecords(data).batches())


@pytest.mark.parametrize("length", [-1, -(2**31), -100])
def test_read_when_the_length_is_negative_then_corrupt(length):
    data = SAMPLES["v2 none"][:8] + struct.pack(">i", length) + SAMPLES["v2 none"][12:]
    with pytest.raises(kf.CorruptRecordError):
        list(kf.MemoryRecords(data).batches())


@pytest.mark.parametrize("in_file", [False, True])
def test_read_when_the_length_is_2_to_the_31_then_a_partial_batch_and_no_allocation(in_file, tmp_path):
    """Case 28: a length of 2^31 - 1 neither hangs nor allocates."""
    data = SAMPLES["v1"] + SAMPLES["v2 none"][:8] + struct.pack(">i", BIG) + SAMPLES["v2 none"][12:]
    (tmp_path / "log").write_bytes(data)

    def read():
        records = kf.FileRecords(tmp_path / "log") if in_file else kf.MemoryRecords(data)
        assert as_rows(records.records()) == rows_of(SAMPLES["v1"])
        assert len(records.index()) == 3

    assert peak_bytes(read) < 4 * 2**20


def test_v2_batch_when_its_last_offset_delta_lies_then_no_other_error_than_documented():
    """A header that contradicts the records, under a CRC that holds."""
    for delta in (-1, -5, -(2**31), BIG):
        for deltas in ((0, 1), (5, 2), (-1, 0), (BIG, BIG), (0, 0)):
            payload = b"".join(ref.record(each, 0, b"k", b"v") for each in deltas)
            for base_offset in (0, 2**63 - 1, -(2**63)):
                data = ref.batch(payload, 2, last_offset_delta=delta, base_offset=base_offset)
                for name, way_in in WAYS_IN.items():
                    if name == "trim":
                        continue
                    with contextlib.suppress(kf.KafkaFormatError):
                        way_in(kf.MemoryRecords(data))


def test_trim_when_offsets_in_the_batch_contradict_each_other_then_invalid_record():
    """What the data causes is a KafkaFormatError, never a ValueError."""
    payload = b"".join(ref.record(delta, 0, b"k", b"v") for delta in (0, 9, 3))
    (batch,) = kf.MemoryRecords(ref.batch(payload, 3, last_offset_delta=9)).batches()
    with pytest.raises(kf.InvalidRecordError):
        batch.trim(5)


# Going on behind damage


def test_reader_when_batches_in_the_middle_are_damaged_then_reads_all_others():
    """Case 29: the error tells where, and a reader goes on behind it."""
    batches = [ref.batch_of([Row(i, DAY, b"k", b"value %d" % i)]) for i in range(20)]
    hurt = {3, 4, 11, 19}
    data = bytearray(b"".join(batches))
    starts = [sum(map(len, batches[:i])) for i in range(20)]
    for i in hurt:
        data[starts[i] + 65] ^= 0xFF
    got, errors, position = [], [], 0
    while position < len(data):
        part = kf.MemoryRecords(memoryview(data)[position:])
        try:
            got.extend(record.offset for record in part.records())  # keeps those before the damage
            break
        except kf.CorruptRecordError as error:
            errors.append((position + error.position, error.base_offset, error.last_offset))
            position += part.position_after(error)
    assert got == [i for i in range(20) if i not in hurt]
    assert errors == [(starts[i], i, i) for i in (3, 11, 19)]  # from 3 it goes to the next sound batch, 5


# Tails


@pytest.mark.parametrize("zeros", [1, 11, 12, 16, 17, 60, 61, 4096, 3 * 2**20])
@pytest.mark.parametrize("torn", [0, 5, 20, 70])
def test_segment_when_its_tail_is_zeros_or_torn_then_read_up_to_the_last_whole_batch(zeros, torn, tmp_path):
    """Case 30: a preallocated segment, and one torn by a crash."""
    whole = SAMPLES["v2 none"] + SAMPLES["v1 gzip"]
    data = whole + (SAMPLES["v2 headers"][:torn] if torn else bytes(zeros))
    path = tmp_path / "log"
    path.write_bytes(data)
    expected = ref.read_rows(whole)
    assert rows_of(data) == expected
    with kf.FileRecords(path) as records:
        assert as_rows(records.records()) == expected
        assert len(records.to_numpy(["offset"])["offset"]) == len(expected)
        assert len(records.index()) == 2
    assert len(list(kf.MemoryRecords(data).down_convert(2).records.records())) == len(expected)


def test_segment_when_zeros_stand_before_more_data_then_corrupt():
    """Case 30, the other side: zeros in the middle are damage."""
    data = SAMPLES["v2 none"] + bytes(100) + SAMPLES["v2 none"]
    with pytest.raises(kf.CorruptRecordError) as raised:
        list(kf.MemoryRecords(data).batches())
    assert raised.value.position == len(SAMPLES["v2 none"])
    assert kf.MemoryRecords(data).position_after(raised.value) == len(SAMPLES["v2 none"]) + 100


def test_records_when_empty_then_nothing():
    for data in (b"", bytearray(), bytes(1), bytes(11), SAMPLES["v2 none"][:11]):
        records = kf.MemoryRecords(data)
        assert list(records.batches()) == list(records.records()) == []
        assert len(records.index()) == 0
        assert len(records.to_numpy()["offset"]) == records.to_arrow().num_rows == 0
        assert bytes(records.down_convert(0).records.buffer) == b""


# Errors as objects


@pytest.mark.parametrize(
    "kind",
    [
        kf.KafkaFormatError,
        kf.CorruptRecordError,
        kf.InvalidRecordError,
        kf.UnsupportedCompressionTypeError,
        kf.UnsupportedVersionError,
        kf.RecordTooLargeError,
        kf.DecompressionLimitError,
    ],
)
def test_error_when_pickled_then_the_same(kind):
    """Errors cross from Spark's executors to the driver."""
    error = kind("what", position=7, base_offset=1, last_offset=3, next_position=99, path="/topic-0/0.log")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert issubclass(kind, kf.KafkaFormatError)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert str(copy) == "/topic-0/0.log: what (batch at position 7, offsets 1 to 3)"


@pytest.mark.parametrize("way_in", [name for name in WAYS_IN if name != "lazy"])
def test_error_when_raised_by_a_read_of_a_file_then_tells_where_and_survives_pickling(way_in, tmp_path):
    """Case 29: position, offsets, where the next batch is, and the file."""
    first = ref.batch_of([Row(0, DAY, None, b"v"), Row(1, DAY, None, b"v")])
    data = bytearray(first + SAMPLES["v2 gaps"])
    data[-1] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    with kf.FileRecords(path) as records, pytest.raises(kf.CorruptRecordError) as raised:
        WAYS_IN[way_in](records)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.position, error.next_position) == (len(first), len(data))
    assert (error.base_offset, error.last_offset) == (1, 10)
    assert f"position {len(first)}, offsets 1 to 10" in str(error)
    if way_in not in ("batch", "trim"):  # a batch does not know its file
        assert error.path == str(path)


def test_error_when_the_gzip_payload_is_cut_then_corrupt_with_the_position():
    payload = gzip.compress(RECORD, mtime=0)[:-9]
    data = SAMPLES["v1"] + ref.batch(payload, 1, attributes=ref.GZIP, base_offset=4)
    with pytest.raises(kf.CorruptRecordError) as raised:
        list(kf.MemoryRecords(data).records())
    assert (raised.value.position, raised.value.base_offset) == (len(SAMPLES["v1"]), 4)
