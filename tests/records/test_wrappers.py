"""What is wrong inside a wrapper of format v0 or v1, whose own CRC holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import kafkafmt as kf
import reference as ref
from kafkafmt.cli import main
from kafkafmt.log import find_damage
from kafkafmt.streams import PartitionGroup
from records.samples import DAY, rows_of
from reference import Row

ROWS = [Row(number, DAY + number, b"key-%d" % number, b"value-%d" % number) for number in range(40)]
PART = b"\0" * 8 + b"\0\0\0\x40" + b"part of a message"
LONG_PART = ref.message(1, 40, DAY, b"key", b"value")[:-1]

READERS: dict[str, Callable[[kf.Records], object]] = {
    "records": lambda records: list(records.records()),
    "to_numpy": lambda records: records.to_numpy(),
    "numpy_batches": lambda records: list(records.numpy_batches()),
    "to_arrow": lambda records: records.to_arrow(),
    "views": lambda records: records.to_arrow(views=True),
    "batch": lambda records: [list(batch) for batch in records.batches()],
    "ensure_valid": lambda records: [batch.ensure_valid() for batch in records.batches()],
    "down_convert": lambda records: records.down_convert(0),
    "convert up": lambda records: records.down_convert(2),
    "recompress": lambda records: records.recompress(kf.Codec.GZIP),
    "decompress": lambda records: records.recompress(kf.Codec.NONE),
    "lazy": lambda records: list(kf.LazyDownConvertRecords(records, 0).chunks()),
    "split": lambda records: [kf.split_batch(batch, 100) for batch in records.batches()],
}
NOT_TOLERANT = ("ensure_valid",)


def messages(magic: int, wrong: int | None = None) -> bytes:
    """Messages of which number `wrong` has a CRC that does not hold."""
    return b"".join(
        ref.message(magic, row.offset, row.timestamp, row.key, row.value, crc=1 if number == wrong else None)
        for number, row in enumerate(ROWS)
    )


def wrapper(inner: bytes, magic: int = 1, codec: int = ref.LZ4) -> bytes:
    return ref.wrapper(magic, codec, ROWS, inner=inner)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrong", [0, 17, len(ROWS) - 1])
def test_wrapper_when_the_crc_of_a_message_in_it_is_wrong_then_corrupt(reader: str, wrong: int) -> None:
    records = kf.MemoryRecords(wrapper(messages(1, wrong)))
    with pytest.raises(kf.CorruptRecordError, match="CRC mismatch of an inner message") as raised:
        READERS[reader](records)
    assert (raised.value.position, raised.value.next_position) == (0, records.size_in_bytes)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_wrapper_when_any_byte_that_a_crc_covers_is_flipped_then_invalid(magic: int, codec: int) -> None:
    inner = messages(magic)
    starts = [inner.index(b"value-%d" % number) + 6 for number in range(len(ROWS))]
    for position in [12, 13, 14, 15, *starts]:
        flipped = inner[:position] + bytes([inner[position] ^ 0x55]) + inner[position + 1 :]
        (batch,) = kf.MemoryRecords(wrapper(flipped, magic, codec)).batches()
        assert not batch.is_valid(), position


def test_wrapper_when_crcs_are_not_to_be_checked_then_read() -> None:
    data = wrapper(messages(1, 3))
    assert [row.value for row in rows_of(data, verify=False)] == [row.value for row in ROWS]
    assert len(kf.MemoryRecords(data).to_numpy(verify=False)["offset"]) == len(ROWS)
    assert kf.MemoryRecords(data).down_convert(0, verify=False).stats.records_converted == len(ROWS)


def test_records_when_a_later_wrapper_is_corrupt_inside_then_those_before_it_come_first() -> None:
    good = wrapper(messages(1))
    records = kf.MemoryRecords(good + wrapper(messages(1, 5)) + good)
    iterated, chunks = records.records(), records.numpy_batches()
    assert [next(iterated).offset for _ in ROWS] == [row.offset for row in ROWS]
    assert len(next(chunks)["offset"]) == len(ROWS)
    for rest in (iterated, chunks):
        with pytest.raises(kf.CorruptRecordError) as raised:
            next(rest)
        assert raised.value.position == len(good)
        assert records.position_after(raised.value) == records.size_in_bytes - len(good)


@pytest.mark.parametrize("verify", [True, False])
def test_take_when_a_message_in_a_wrapper_is_corrupt_then_an_error(verify: bool) -> None:
    group, tp = PartitionGroup(1 << 20, verify=verify), kf.TopicPartition("t", 0)
    group.add(tp)
    (run,) = kf.MemoryRecords(wrapper(messages(1, 5))).runs()
    group.feed(tp, run)
    group.finish(tp)
    with pytest.raises(kf.CorruptRecordError, match="inner message"):
        group.take()


def write_segment(folder: Path, data: bytes) -> Path:
    (folder / "t-0").mkdir(parents=True)
    path = folder / "t-0" / f"{0:020}.log"
    path.write_bytes(data)
    return path


@pytest.mark.thread_unsafe
@pytest.mark.parametrize("command", [["verify"], ["inspect", "--verify"]])
@pytest.mark.parametrize(
    ("inner", "told"), [(messages(1, 5), "CRC mismatch of an inner"), (messages(1) + PART, "ends early")]
)
def test_verify_when_a_wrapper_is_wrong_inside_then_told(
    tmp_path: Path, command: list[str], inner: bytes, told: str
) -> None:
    write_segment(tmp_path, wrapper(inner))
    result = CliRunner().invoke(main, [*command, str(tmp_path)])
    assert result.exit_code == 1
    assert told in result.output


@pytest.mark.parametrize("part", [b"\0", PART, LONG_PART, ref.message(1, 40, DAY, None, b"x", size=99)])
@pytest.mark.parametrize("reader", sorted(READERS.keys() - set(NOT_TOLERANT)))
def test_wrapper_when_a_part_of_a_message_ends_it_then_readers_get_the_whole_ones(
    reader: str, part: bytes
) -> None:
    data = wrapper(messages(1) + part)
    READERS[reader](kf.MemoryRecords(data))
    assert [row.value for row in rows_of(data)] == [row.value for row in ROWS]
    assert kf.MemoryRecords(data).down_convert(2).stats.records_converted == len(ROWS)
    assert len(kf.MemoryRecords(data).to_numpy()["offset"]) == len(ROWS)


@pytest.mark.parametrize("to_magic", [0, 2])
def test_conversion_when_a_part_of_a_message_ends_a_wrapper_then_counted(to_magic: int) -> None:
    records = kf.MemoryRecords(
        wrapper(messages(1) + PART) + wrapper(messages(1)) + wrapper(messages(1) + b"\0")
    )
    stats = kf.ConversionStats()
    for expected in (2, 4):
        list(kf.LazyDownConvertRecords(records, to_magic, chunk_size=1).chunks(stats=stats))
        assert stats.partial_messages == expected
    assert records.down_convert(to_magic).stats.partial_messages == 2
    assert records.down_convert(1).stats.partial_messages == 0


@pytest.mark.parametrize("part", [b"\0", PART, LONG_PART])
def test_wrapper_when_a_part_of_a_message_ends_it_then_checks_are_strict(part: bytes) -> None:
    records = kf.MemoryRecords(wrapper(messages(1) + part))
    (batch,) = records.batches()
    assert not batch.is_valid()
    with pytest.raises(kf.InvalidRecordError, match=f"found {len(part)} bytes of one"):
        batch.ensure_valid()
    assert [damage.kind for damage in find_damage(records, deep=True)] == ["invalid"]


@pytest.mark.parametrize("part", [b"", b"\0", PART])
def test_wrapper_when_no_whole_message_is_in_it_then_invalid(part: bytes) -> None:
    with pytest.raises(kf.InvalidRecordError, match="at least one inner message"):
        list(kf.MemoryRecords(wrapper(part, codec=ref.GZIP)).records())
