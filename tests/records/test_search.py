"""The search for the next sound batch after damage: `position_after`."""

from __future__ import annotations

import functools
import random
import struct

import pytest

import kafkafmt as kf
import reference as ref
from records.samples import DAY, SAMPLES
from reference import Row


@pytest.mark.parametrize("length", [0, 1, 40, 200, 2**20, 2**31 - 1, -1])
def test_position_after_when_the_length_of_the_damaged_batch_lies_then_finds_the_next_sound_batch(length):
    """Case 29: the length of a damaged batch is not believed."""
    good, bad = SAMPLES["v2 gzip"], bytearray(SAMPLES["v2 none"])
    struct.pack_into(">i", bad, 8, length)
    bad[30] ^= 1
    data = good + bytes(bad) + good
    for position in (len(good), len(good) + 5):
        error = kf.CorruptRecordError("here", position=position, next_position=position + length)
        assert kf.MemoryRecords(data).position_after(error) == len(good) + len(bad)


def test_position_after_when_nothing_sound_follows_then_the_end():
    data = SAMPLES["v2 none"] + random.Random(1).randbytes(5000)
    error = kf.CorruptRecordError("here", position=0)
    assert kf.MemoryRecords(data[1:]).position_after(error) == len(data) - 1
    with pytest.raises(ValueError, match="position"):
        kf.MemoryRecords(data).position_after(kf.CorruptRecordError("nowhere"))


@pytest.mark.parametrize("gap", [1, 1000, 2**20 - 30, 2**20 + 7, 3 * 2**20])
def test_position_after_in_a_file_when_the_next_batch_is_far_then_found(gap, tmp_path):
    """The search goes on across the bounds of what is read at a time."""
    path = tmp_path / "log"
    path.write_bytes(b"\xa5" * gap + SAMPLES["v2 zstd"] + SAMPLES["v1"])
    with kf.FileRecords(path) as records:
        assert records.position_after(kf.CorruptRecordError("here", position=0)) == gap


@pytest.mark.slow
def test_position_after_when_bytes_look_like_many_large_batches_then_finds_the_next_one_in_bounded_time():
    """A megabyte-sized message seems to begin every 32 bytes: the search does not become quadratic."""
    size = 2**20
    fake = struct.pack(">qiIbbii6x", 1, size, 0, 0, 0, -1, size - 14)
    data = fake * (2**23 // len(fake)) + SAMPLES["v2 none"] + bytes(2 * size)
    error = kf.CorruptRecordError("here", position=0)
    assert kf.MemoryRecords(data).position_after(error) == 2**23


@functools.cache
def batches_of_longs(magic: int, count: int, records: int) -> list[bytes]:
    """Batches whose values are of Kafka's LongSerializer: most of their bytes look like the header of a message."""
    random_ = random.Random(count)
    batches = []
    for number in range(count):
        builder = kf.RecordBatchBuilder(magic, base_offset=number * records)
        for _ in range(records):
            builder.append(DAY, None, struct.pack(">q", random_.randrange(2**31)))
        batches.append(bytes(builder.build()))
    return batches


@pytest.mark.parametrize(
    ("magic", "count", "records"), [(2, 60, 4000), (2, 250, 500), (1, 200, 200)], ids=["large", "small", "v1"]
)
@pytest.mark.parametrize("mask", [0x40000000, 0x01000000, 0x00010000, 0x00000100])
def test_position_after_when_a_length_among_batches_of_longs_is_damaged_then_loses_that_batch_alone(
    magic, count, records, mask
):
    batches = batches_of_longs(magic, count, records)
    data, start = bytearray(b"".join(batches)), sum(map(len, batches[:10]))
    assert len(data) > 2**20
    (length,) = struct.unpack_from(">i", data, start + 8)
    struct.pack_into(">i", data, start + 8, length ^ mask)
    error = kf.CorruptRecordError("here", position=start)
    damaged = batches[10] if magic == 2 else batches[10][: 34 + 8]
    assert kf.MemoryRecords(data).position_after(error) == start + len(damaged)


@pytest.mark.parametrize("magic", [1, 2])
def test_position_after_when_batches_of_any_size_are_anywhere_then_the_sound_ones_are_found(magic):
    """The CRC of a range is computed in other steps than that of a whole batch."""
    random_ = random.Random(magic)
    for size in (0, 1, 900, 1024, 2047, 2048, 5000, 100_000):
        for gap in (1, 1023, 1024, random_.randrange(1, 4000)):
            builder = kf.RecordBatchBuilder(magic, base_offset=7)
            builder.append(DAY, None, random_.randbytes(size))
            batch, tail = bytes(builder.build()), bytes(random_.randrange(2000))
            error = kf.CorruptRecordError("here", position=0)
            data = bytearray(b"\xa5" * gap + batch + tail)
            assert kf.MemoryRecords(data).position_after(error) == gap
            data[gap + random_.randrange(21, len(batch))] ^= 1 << random_.randrange(8)
            assert kf.MemoryRecords(data).position_after(error) == len(data)


def test_position_after_when_bytes_look_like_many_batches_that_end_later_then_few_bytes_are_read_again():
    """Each of them ends after the bytes that were read for the one before it."""
    most = 0x7F7F7F7F  # so that no other byte looks like the first one of a batch
    fake = struct.pack(
        ">qiibIhiqqqhii", most << 32 | most, 2**20, -1, 2, most, 127, most, -1, -1, -1, -1, -1, most
    )
    data = fake * (2**22 // len(fake)) + SAMPLES["v2 none"]

    class Counted(kf.MemoryRecords):
        read_bytes = 0

        def read_at(self, position, size, memory=None):
            self.read_bytes += size
            assert self.read_bytes < 600 * len(data)
            return super().read_at(position, size, memory)

    found = Counted(data).position_after(kf.CorruptRecordError("here", position=0))
    assert found == len(data) - len(SAMPLES["v2 none"])


@pytest.mark.slow
def test_position_after_when_a_batch_of_70_mib_follows_then_reads_it():
    damaged = bytearray(ref.batch_of([Row(0, DAY, None, b"damaged")]))
    damaged[-1] ^= 1
    large = kf.RecordBatchBuilder(base_offset=1)
    for _ in range(70):
        large.append(DAY, None, bytes(2**20))
    records = kf.MemoryRecords(bytes(damaged) + large.build())
    with pytest.raises(kf.CorruptRecordError) as raised:
        list(records.records())
    assert records.position_after(raised.value) == len(damaged)
