"""Damage reports: which bytes, which offsets, what kind, and where to go on."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.log import Damage, Segment, find_damage
from log.samples import DAY, batch, batches, put_segment, real_segments
from reference import Row

DATA = batches(0, 10, 2)
SIZE = len(DATA[0])


def flipped(data: bytes, position: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= 0x55
    return bytes(damaged)


def found_in(*data: bytes, deep: bool = False) -> list[Damage]:
    return list(find_damage(kf.MemoryRecords(b"".join(data)), deep=deep))


def test_sound_records_have_no_damage() -> None:
    assert found_in(*DATA, deep=True) == []
    assert found_in() == []
    mixed = [
        *batches(0, 4, 2, magic=0),
        *batches(4, 8, 2, magic=1, codec=kf.Codec.GZIP),
        batch(8, codec=kf.Codec.ZSTD),
    ]
    assert found_in(*mixed, deep=True) == []


@pytest.mark.parametrize(
    "path", real_segments(), ids=lambda path: f"{path.parent.name}/{path.stem.lstrip('0') or 0}"
)
def test_segment_of_a_real_broker_has_no_damage_but_a_preallocated_tail(path: Path) -> None:
    with Segment(path).open() as records:
        kinds = [damage.kind for damage in find_damage(records, deep=True)]
    assert kinds == (["zero tail"] if path.parent.name == "preallocated-0" else [])


def test_batch_that_a_sound_one_follows_is_told_without_reading_on(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [flipped(one, SIZE - 20) if n % 2 else one for n, one in enumerate(batches(0, 200, 2))]
    records, reads = kf.MemoryRecords(b"".join(data)), []
    original = records.read_at
    monkeypatch.setattr(records, "read_at", lambda *wanted: reads.append(wanted) or original(*wanted))
    found = list(find_damage(records, deep=True))
    wanted = [(n * SIZE, (n + 1) * SIZE, 2 * n, 2 * n + 2) for n in range(1, 99, 2)]
    assert [
        (one.position, one.end_position, one.expected_offset, one.next_offset) for one in found[:-1]
    ] == wanted
    assert len(found) == 50
    assert len(reads) < 10


def test_progress_adds_up_to_the_size_with_damage_and_without() -> None:
    broken = flipped(DATA[1], 11)
    for data in (DATA, [DATA[0], broken, DATA[2]], [broken], [*DATA, bytes(100)], [*DATA, DATA[0][:30]]):
        records, told = kf.MemoryRecords(b"".join(data)), []
        list(find_damage(records, deep=True, progress=told.append))
        assert sum(told) == records.size_in_bytes


def test_progress_is_told_within_a_file() -> None:
    records, told = kf.MemoryRecords(b"".join(batches(0, 40, size=50_000))), []
    assert list(find_damage(records, progress=told.append)) == []
    assert len(told) > 4


def test_batch_with_a_wrong_crc_is_told_with_its_bytes_and_offsets() -> None:
    (damage,) = found_in(*DATA[:2], flipped(DATA[2], SIZE - 20), *DATA[3:])
    assert damage.kind == "corrupt"
    assert (damage.position, damage.end_position, damage.size_in_bytes) == (2 * SIZE, 3 * SIZE, SIZE)
    assert (damage.base_offset, damage.last_offset) == (4, 5)
    assert (damage.expected_offset, damage.next_offset) == (4, 6)
    assert damage.message.startswith("CRC mismatch: expected 0x")
    assert damage.path is None


def test_damage_at_the_start_and_at_the_end_has_no_offset_before_or_behind() -> None:
    first, last = found_in(flipped(DATA[0], 80), *DATA[1:4], flipped(DATA[4], 80))
    assert (first.position, first.expected_offset, first.next_offset) == (0, None, 2)
    assert (last.position, last.end_position) == (4 * SIZE, 5 * SIZE)
    assert (last.expected_offset, last.next_offset) == (8, None)


def test_damaged_batches_end_to_end_are_one_stretch() -> None:
    (damage,) = found_in(DATA[0], flipped(DATA[1], 80), flipped(DATA[2], 90), flipped(DATA[3], 17), DATA[4])
    assert (damage.position, damage.end_position) == (SIZE, 4 * SIZE)
    assert (damage.base_offset, damage.expected_offset, damage.next_offset) == (2, 2, 8)


def test_stretches_with_sound_batches_between_are_told_apart() -> None:
    first, second = found_in(DATA[0], flipped(DATA[1], 80), DATA[2], flipped(DATA[3], 80), DATA[4])
    assert (first.position, first.end_position, first.next_offset) == (SIZE, 2 * SIZE, 4)
    assert (second.position, second.end_position, second.expected_offset) == (3 * SIZE, 4 * SIZE, 6)


@pytest.mark.parametrize("length", [0, 1, 48, 49, SIZE - 13, SIZE - 11, 10_000, 2**31 - 1, -1, -(2**31)])
def test_length_that_lies_costs_its_own_batch_alone(length: int) -> None:
    lying = bytearray(DATA[2])
    struct.pack_into(">i", lying, 8, length)
    (damage,) = found_in(*DATA[:2], lying, *DATA[3:])
    assert damage.kind == "corrupt"
    assert (damage.position, damage.end_position) == (2 * SIZE, 3 * SIZE)
    assert (damage.expected_offset, damage.next_offset) == (4, 6)


def test_chain_of_lengths_that_leads_past_a_sound_batch_is_left() -> None:
    # The length of a damaged batch leads to what looks like a header in a value, and that one past a batch.
    builder = kf.RecordBatchBuilder(base_offset=2, last_offset=3)
    builder.append(DAY, None, b"<" * 40 + bytes(60))
    lying = bytearray(builder.build())
    fake = lying.index(b"<")
    struct.pack_into(">i", lying, 8, fake - 12)
    lying[fake : fake + 61] = DATA[1][:61]
    struct.pack_into(">i", lying, fake + 8, len(lying) - fake + SIZE - 12)
    (damage,) = found_in(DATA[0], lying, *DATA[2:])
    assert (damage.position, damage.end_position) == (SIZE, SIZE + len(lying))
    assert (damage.expected_offset, damage.next_offset) == (2, 4)


def test_magic_that_is_unknown_is_told() -> None:
    newer = bytearray(DATA[2])
    newer[16] = 3
    (damage,) = found_in(*DATA[:2], newer, *DATA[3:])
    assert (damage.kind, damage.position, damage.end_position) == ("corrupt", 2 * SIZE, 3 * SIZE)
    assert "magic" in damage.message


def test_bytes_that_are_no_batch_between_batches_are_told() -> None:
    (damage,) = found_in(*DATA[:2], b"\xff" * 1000, *DATA[2:])
    assert (damage.position, damage.size_in_bytes) == (2 * SIZE, 1000)
    assert (damage.base_offset, damage.expected_offset, damage.next_offset) == (None, 4, 4)


def test_zeros_between_batches_are_damage_and_at_the_end_a_tail() -> None:
    middle, tail = found_in(*DATA[:2], bytes(500), *DATA[2:], bytes(700))
    assert (middle.kind, middle.position, middle.size_in_bytes) == ("corrupt", 2 * SIZE, 500)
    assert (tail.kind, tail.position, tail.size_in_bytes) == ("zero tail", 5 * SIZE + 500, 700)
    assert (tail.expected_offset, tail.next_offset) == (10, None)
    assert tail.message == "zeros after the last batch: 700 bytes"


@pytest.mark.parametrize("size", [1, 11, 12, 17, 60, len(batch(2**62)) - 1])
def test_last_batch_cut_short_is_a_truncated_tail(size: int) -> None:
    (damage,) = found_in(*DATA, batch(2**62)[:size])
    assert damage.kind == "truncated tail"
    assert (damage.position, damage.size_in_bytes) == (5 * SIZE, size)
    assert damage.message.startswith("batch ends early: expected ")
    assert damage.message.endswith(f"found {size}")


def test_nothing_but_a_truncated_batch_is_a_tail() -> None:
    (damage,) = found_in(batch(2**62)[:40])
    assert (damage.kind, damage.position, damage.expected_offset) == ("truncated tail", 0, None)


def test_tail_of_a_segment_is_told_and_not_raised(tmp_path: Path) -> None:
    path = put_segment(tmp_path, 0, [*DATA, batch(2**62)[:40]])
    with Segment(path).open() as records:
        (damage,) = find_damage(records)
    assert (damage.kind, damage.path) == ("truncated tail", path)


def test_part_of_a_file_is_walked_from_its_start(tmp_path: Path) -> None:
    path = put_segment(tmp_path, 0, [flipped(DATA[0], 80), DATA[1], flipped(DATA[2], 80), *DATA[3:]])
    with kf.FileRecords(path, SIZE) as records:
        (damage,) = find_damage(records)
    assert (damage.position, damage.expected_offset) == (2 * SIZE, 4)


def test_damage_wider_than_what_is_read_at_a_time_is_one_stretch(tmp_path: Path) -> None:
    data = [DATA[0], b"\xee" * 3_000_000, *batches(2, 4000, 2), flipped(batch(4000), 90), batch(4001)]
    path = put_segment(tmp_path, 0, data)
    with Segment(path).open() as records:
        first, second = find_damage(records, deep=True)
    assert (first.position, first.size_in_bytes, first.next_offset) == (SIZE, 3_000_000, 2)
    assert (second.base_offset, second.next_offset, second.size_in_bytes) == (4000, 4001, len(data[-1]))


def test_offsets_that_go_back_are_told_once() -> None:
    (damage,) = found_in(DATA[0], DATA[3], DATA[1], DATA[2], batch(9))
    assert damage.kind == "invalid"
    assert (damage.position, damage.end_position) == (2 * SIZE, 3 * SIZE)
    assert (damage.base_offset, damage.expected_offset, damage.next_offset) == (2, 8, 4)
    assert "ascend" in damage.message


def invalid_batches() -> dict[str, bytes]:
    """Batches whose CRC holds and whose content does not."""
    rows = [Row(2, DAY, b"k", b"v"), Row(3, DAY, b"k", b"v")]
    payload = ref.records(rows, 2, DAY)
    fields = {"base_offset": 2, "base_timestamp": DAY, "max_timestamp": DAY}
    outside = ref.records([rows[0], rows[1]._replace(offset=9)], 2, DAY)
    inner = ref.message(1, 1, DAY, b"k", b"v")[:-1]
    return {
        "fewer records than counted": ref.batch(payload, 3, last_offset_delta=1, **fields),
        "more records than counted": ref.batch(payload, 1, last_offset_delta=1, **fields),
        "a negative count": ref.batch(payload, -1, last_offset_delta=1, **fields),
        "an offset outside the batch": ref.batch(outside, 2, last_offset_delta=1, **fields),
        "offsets that go back": ref.batch(ref.records(rows[::-1], 2, DAY), 2, **fields),
        "a codec that does not exist": ref.batch(payload, 2, attributes=6, **fields),
        "an offset delta below zero": ref.batch(payload, 2, last_offset_delta=-1, **fields),
        "a wrapper cut inside": ref.wrapper(1, ref.GZIP, rows, inner=ref.compress(ref.GZIP, inner)),
        "a compressed count too high": ref.batch(
            ref.compress(ref.GZIP, payload), 3, last_offset_delta=1, attributes=ref.GZIP, **fields
        ),
    }


@pytest.mark.parametrize("what", invalid_batches())
def test_batch_that_is_intact_and_not_valid_is_told_by_a_deep_walk(what: str) -> None:
    data = invalid_batches()[what]
    (damage,) = found_in(DATA[0], data, *DATA[2:], deep=True)
    assert damage.kind == "invalid"
    assert (damage.position, damage.size_in_bytes) == (SIZE, len(data))
    assert (damage.expected_offset, damage.next_offset) == (2, 4)
    if what != "an offset delta below zero":  # which the header alone shows
        assert found_in(DATA[0], data, *DATA[2:]) == []


def test_compressed_payload_that_is_broken_is_corrupt_though_its_crc_holds() -> None:
    data = ref.batch(b"\x1f\x8b no gzip", 2, base_offset=2, attributes=ref.GZIP)
    (damage,) = found_in(DATA[0], data, *DATA[2:], deep=True)
    assert (damage.position, damage.size_in_bytes, damage.next_offset) == (SIZE, len(data), 4)


def test_payload_beyond_the_limit_is_told_by_a_deep_walk() -> None:
    bomb = batch(2, 2, size=100_000, codec=kf.Codec.GZIP)
    records = kf.MemoryRecords(b"".join([DATA[0], bomb, *DATA[2:]]), max_decompressed_bytes=100_000)
    (damage,) = find_damage(records, deep=True)
    assert (damage.kind, damage.position, damage.end_position) == ("invalid", SIZE, SIZE + len(bomb))


def test_every_flipped_byte_is_told_and_costs_one_batch() -> None:
    for magic in (0, 1, 2):
        data = [batch(offset, magic=magic, size=5) for offset in (1, 2, 3)]
        size = len(data[0])
        for position in range(size):
            damages = found_in(data[0], flipped(data[1], position), data[2], deep=True)
            if position < 8:  # no CRC covers the offset
                assert len(damages) <= 1
                continue
            if magic == 2 and 12 <= position < 16:  # nor the leader epoch
                assert damages == []
                continue
            (damage,) = damages
            assert (damage.position, damage.end_position, damage.next_offset) == (size, 2 * size, 3)


def test_every_cut_is_told_as_a_tail_of_what_is_left() -> None:
    data = b"".join(DATA)
    for size in range(len(data)):
        damages = found_in(data[:size])
        if size % SIZE == 0:
            assert damages == []
            continue
        (damage,) = damages
        assert damage.kind == ("zero tail" if not any(data[size - size % SIZE : size]) else "truncated tail")
        assert (damage.position, damage.end_position) == (size - size % SIZE, size)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_told_in_order_and_what_is_between_is_sound(choose: st.DataObject) -> None:
    kinds = st.sampled_from([(2, kf.Codec.NONE), (2, kf.Codec.GZIP), (1, kf.Codec.NONE), (1, kf.Codec.LZ4)])
    data = bytearray()
    for offset in range(0, 40, 4):
        magic, codec = choose.draw(kinds)
        data += batch(offset, 4, magic=magic, codec=codec, size=choose.draw(st.integers(0, 60)))
    for _ in range(choose.draw(st.integers(0, 5))):
        at = choose.draw(st.integers(0, len(data)))
        data[at : at + choose.draw(st.sampled_from([0, 1, 1, 4, 70, 500]))] = choose.draw(
            st.binary(max_size=80)
        )
    records = kf.MemoryRecords(data)
    position = 0
    for damage in find_damage(records, deep=True):
        assert position <= damage.position < damage.end_position <= len(data)
        assert list(find_damage(kf.MemoryRecords(data[position : damage.position]), deep=True)) == []
        list(kf.MemoryRecords(data[position : damage.position]).records())
        position = damage.end_position
    assert list(find_damage(kf.MemoryRecords(data[position:]), deep=True)) == []


def test_garbage_of_many_megabytes_takes_no_longer_than_it_has_bytes() -> None:
    garbage = random.Random(5).randbytes(1 << 20) * 24
    (damage,) = found_in(DATA[0], garbage, DATA[1])
    assert (damage.position, damage.end_position) == (SIZE, SIZE + len(garbage))


def test_reading_on_from_each_stretch_reads_every_sound_record() -> None:
    data = b"".join([DATA[0], flipped(DATA[1], 70), DATA[2], b"\xff" * 33, DATA[3], DATA[4][:-1]])
    read, position = [], 0
    for damage in (*find_damage(kf.MemoryRecords(data)), None):
        part = kf.MemoryRecords(data[position : damage.position if damage else len(data)])
        read += [record.offset for record in part.records()]
        position = damage.end_position if damage else 0
    assert read == [0, 1, 4, 5, 6, 7]


def test_crc_of_old_messages_is_checked() -> None:
    one = batch(2, magic=1)
    assert zlib.crc32(one[16:]) == int.from_bytes(one[12:16], "big")
    (damage,) = found_in(batch(1, magic=1), flipped(one, 12), batch(3, magic=1))
    assert (damage.base_offset, damage.last_offset, damage.next_offset) == (2, 2, 3)
