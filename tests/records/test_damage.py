"""Damage: every truncation, every bit of every byte, of small inputs of each kind.

The reference decides what a damaged input still says: the library either reads exactly that or raises one of
its documented errors, through every way in.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator, Sequence

import crc32c
import pytest

import kafkafmt as kf
import reference as ref
from records.samples import (
    DAY,
    ROWS,
    SAMPLES,
    as_rows,
    converted_rows,
    rows_of,
    rows_of_columns,
    sent,
    without_sequence,
)
from reference import Row

ATTRIBUTES = [
    name for name in vars(kf.RecordBatch) | vars(kf.RecordBatch.__base__) if not name.startswith("_")
]
DAMAGE = (kf.CorruptRecordError, kf.InvalidRecordError)
# Of each byte: the lowest and the highest bit, which is the sign, and all of them; and each of the others.
SOME_MASKS, OTHER_MASKS = (1, 128, 255), (2, 4, 8, 16, 32, 64)
ALL_MASKS = (*SOME_MASKS, *OTHER_MASKS)


def reference_rows(data: bytes, *, verify: bool = True) -> list[Row] | None:
    """What the reference reads; None where it finds damage."""
    try:
        return ref.read_rows(data, verify=verify)
    except ref.Damaged:
        return None


def outcome(action) -> object:
    """What an action returns, or None where it raises a documented error; any other exception is a failure."""
    with contextlib.suppress(kf.KafkaFormatError):
        return action()
    return None


def batches_until_damage(data: bytes) -> Iterator[kf.RecordBatch]:
    with contextlib.suppress(kf.KafkaFormatError):
        yield from kf.MemoryRecords(data).batches()


def look_at_every_attribute(data: bytes) -> None:
    for batch in batches_until_damage(data):
        for name in ATTRIBUTES:
            outcome(lambda batch=batch, name=name: getattr(batch, name))
        outcome(batch.is_valid)
        outcome(lambda batch=batch: list(batch.records(verify=False)))


def trim_in_the_middle(data: bytes) -> None:
    for batch in batches_until_damage(data):
        first_offset = outcome(lambda batch=batch: (batch.base_offset + batch.last_offset + 1) // 2)
        if first_offset is not None and first_offset <= batch.last_offset:
            trimmed = outcome(lambda batch=batch, first=first_offset: batch.trim(first))
            if trimmed is not None and trimmed is not batch:
                expected = [row for row in as_rows(batch) if row.offset >= first_offset]
                assert as_rows(trimmed) == expected


def go_on_behind_damage(data: bytes) -> None:
    """A reader that goes on behind each error comes to the end."""
    records, position = kf.MemoryRecords(data), 0
    while (error := error_of_reading(records, position)) is not None:
        after = records.position_after(error)
        assert position <= error.position < after <= len(data)
        position = after


def error_of_reading(records: kf.MemoryRecords, position: int) -> kf.KafkaFormatError | None:
    try:
        for run in records.runs(position):
            run.ensure_valid()
    except kf.KafkaFormatError as error:
        return error
    return None


def check_every_way_in(data: bytes) -> None:
    records = kf.MemoryRecords(data)
    expected = reference_rows(data)
    assert outcome(lambda: rows_of(data)) == expected
    columns = outcome(lambda: records.to_numpy(control=True))
    assert (None if columns is None else rows_of_columns(columns)) == (
        None if expected is None else without_sequence(expected)
    )
    check_without_control(data, is_sound=expected is not None)
    unverified = outcome(lambda: rows_of(data, verify=False))
    if all(batch.codec == ref.NONE for batch in batches_of_reference(data)):
        assert unverified == reference_rows(data, verify=False)
    index = outcome(records.index)
    assert index is None or len(index) == len(batches_of_reference(data))
    for to_magic in (0, 1, 2):
        converted = outcome(lambda to_magic=to_magic: records.down_convert(to_magic).records)
        if expected is None:
            assert converted is None or needs_no_decoding(data, to_magic), (
                f"damage is converted to v{to_magic}"
            )
        elif converted is not None:
            assert as_rows(converted.records(control=True)) == converted_rows(data, to_magic)
    lazy = outcome(lambda: kf.LazyDownConvertRecords(records, 1, chunk_size=64))
    if lazy is not None:
        got = sent(lazy)
        assert len(got) == lazy.size_in_bytes
        if expected is not None:
            rows = rows_of(got)
            whole = converted_rows(data, 1)
            assert rows == whole[: len(rows)]
            assert rows or not whole
    look_at_every_attribute(data)
    trim_in_the_middle(data)
    go_on_behind_damage(data)


def check_without_control(data: bytes, *, is_sound: bool) -> None:
    """Control batches are left out, and no other batch that damage has made look like one."""
    records = kf.MemoryRecords(data)
    rows, columns = outcome(lambda: as_rows(records.records())), outcome(records.to_numpy)
    assert (None if rows is None else without_sequence(rows)) == (
        None if columns is None else rows_of_columns(columns)
    )
    if is_sound:
        kept = [batch for batch in batches_of_reference(data) if not batch.is_control]
        assert rows == [row for batch in kept for row in batch.rows()]
    elif rows is not None:
        assert all(batch.crc_holds for batch in batches_of_reference(data))


def needs_no_decoding(data: bytes, to_magic: int) -> bool:
    """Are all CRCs right, and what cannot be decoded is only copied, old enough as it is, or a control batch?"""
    for batch in batches_of_reference(data):
        is_copied = batch.magic <= to_magic and (batch.magic == 2 or to_magic < 2)
        is_dropped = batch.is_control and to_magic < 2
        try:
            batch.rows()
        except ref.Damaged:
            if not (batch.crc_holds and (is_copied or is_dropped)):
                return False
    return True


def batches_of_reference(data: bytes) -> list[ref.Batch]:
    batches = []
    with contextlib.suppress(ref.Damaged):
        batches.extend(batch for batch in ref.read(data))  # keeps those before the damage
    return batches


def check_arrow(data: bytes) -> None:
    """Arrow columns, copied and as views, against numpy's."""
    records = kf.MemoryRecords(data)
    columns = outcome(lambda: records.to_numpy(["key", "value"]))
    for views in (False, True):
        table = outcome(lambda views=views: records.to_arrow(["key", "value"], views=views))
        assert (table is None) == (columns is None)
        if table is not None:
            table.validate(full=True)
            for name in ("key", "value"):
                assert table[name].to_pylist() == [columns[name][i] for i in range(len(columns[name]))]


def flips(data: bytes, masks: Sequence[int] = ALL_MASKS) -> list[tuple[int, bytes]]:
    """Each byte with some of its bits flipped: those of each mask."""
    flipped = []
    for position in range(len(data)):
        for mask in masks:
            mutant = bytearray(data)
            mutant[position] ^= mask
            flipped.append((position, bytes(mutant)))
    return flipped


# Every truncation, every flip


@pytest.mark.parametrize(
    "masks",
    [
        pytest.param(SOME_MASKS, id="some bits"),
        pytest.param(OTHER_MASKS, id="other bits", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("kind", SAMPLES)
def test_read_when_any_byte_is_flipped_then_what_the_bytes_say_or_a_documented_error(kind, masks):
    for position, data in flips(SAMPLES[kind], masks):
        try:
            check_every_way_in(data)
            if data[position] ^ SAMPLES[kind][position] in (1, 255):
                check_arrow(data)
        except Exception as error:
            raise AssertionError(
                f"byte {position}: {SAMPLES[kind][position]:#04x} -> {data[position]:#04x}"
            ) from error


@pytest.mark.parametrize("kind", SAMPLES)
def test_read_when_cut_anywhere_then_the_whole_batches_before_the_cut(kind):
    """Case 24: a trailing partial batch is left out, not an error."""
    whole = SAMPLES["v1"] + SAMPLES[kind]
    for size in range(len(whole)):
        data = whole[:size]
        assert rows_of(data) == ref.read_rows(data)
        check_every_way_in(data)


@pytest.mark.parametrize("kind", SAMPLES)
def test_read_when_cut_inside_but_claiming_to_be_complete_then_corrupt(kind):
    """Case 24: a truncation inside a batch whose length says that it is complete is an error."""
    *_, batch = ref.read(SAMPLES[kind])
    least = 61 if batch.magic == 2 else ref.MESSAGE_OVERHEAD[batch.magic]
    for size in range(least, len(batch.data)):
        cut = bytearray(batch.data[:size])
        struct.pack_into(">i", cut, 8, size - 12)
        with pytest.raises(kf.CorruptRecordError):
            rows_of(bytes(cut))
        check_every_way_in(bytes(cut))


UNCOMPRESSED = [kind for kind, data in SAMPLES.items() if not any(batch.codec for batch in ref.read(data))]


@pytest.mark.parametrize("kind", UNCOMPRESSED)
def test_read_when_any_byte_is_flipped_under_a_crc_that_holds_then_what_the_bytes_say_or_an_error(kind):
    """Intact bytes that say something else: the reference tells what they say, or that they cannot."""
    (batch, *_) = ref.read(SAMPLES[kind])
    rest = SAMPLES[kind][len(batch.data) :]
    for position, flipped in flips(batch.data):
        data = with_right_crc(flipped, batch.magic) + rest
        try:
            check_every_way_in(data)
            if batch.data[position] ^ flipped[position] in (1, 255):
                check_arrow(data)
        except Exception as error:
            raise AssertionError(
                f"byte {position}: {batch.data[position]:#04x} -> {flipped[position]:#04x}"
            ) from error


def with_right_crc(batch: bytes, magic: int) -> bytes:
    if magic == 2:
        return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]
    return batch[:12] + struct.pack(">I", zlib.crc32(batch[16:])) + batch[16:]


COVERED_FROM = {0: 16, 1: 16, 2: 21}


@pytest.mark.parametrize("kind", SAMPLES)
def test_verify_when_a_byte_under_the_crc_is_flipped_then_corrupt_through_every_way_in(kind):
    (batch, *_) = ref.read(SAMPLES[kind])
    start = COVERED_FROM[batch.magic]
    crc = start - 4 if batch.magic == 2 else 12
    for position in [*range(crc, crc + 4), *range(start, len(batch.data))]:
        if position == 16:  # another magic is another layout: see the flips of every byte
            continue
        data = bytearray(SAMPLES[kind])
        data[position] ^= 1
        records = kf.MemoryRecords(data)
        assert not next(iter(records.batches())).is_valid()
        for read in (
            lambda records=records: list(records.records()),
            records.to_numpy,
            records.to_arrow,
            lambda records=records: records.to_arrow(["key"], views=True),
            lambda records=records: records.down_convert(2),
        ):
            with pytest.raises(
                kf.CorruptRecordError, match=r"CRC mismatch: expected 0x\w+ as stored, found 0x"
            ):
                read()
        for to_magic in (0, 1):
            with pytest.raises((kf.CorruptRecordError, kf.UnsupportedCompressionTypeError)):
                records.down_convert(to_magic)
            with pytest.raises((kf.CorruptRecordError, kf.UnsupportedCompressionTypeError)):
                kf.LazyDownConvertRecords(records, to_magic)


def test_v2_header_when_bytes_outside_the_crc_are_flipped_then_only_their_own_fields_change():
    """Base offset, length, leader epoch and magic of v2 stand outside the CRC."""
    data = bytearray(SAMPLES["v2 none"])
    data[7] ^= 0x40
    (batch,) = kf.MemoryRecords(data).batches()
    assert batch.is_valid()
    assert [row.offset for row in as_rows(batch)] == [row.offset ^ 0x40 for row in ROWS]

    data = bytearray(SAMPLES["v2 none"])
    data[15] ^= 0x01
    (batch,) = kf.MemoryRecords(data).batches()
    assert (batch.partition_leader_epoch, rows_of(bytes(data))) == (-2, rows_of(SAMPLES["v2 none"]))

    for size, magic in ((1, 2), (0, 0), (0, 1)):
        data = bytearray(SAMPLES["v2 none"])
        data[11] -= size
        data[16] = magic
        with pytest.raises(kf.CorruptRecordError):
            list(kf.MemoryRecords(data).records())


@pytest.mark.parametrize("magic", [0, 1])
def test_message_when_bytes_outside_the_crc_are_flipped_then_offset_moves_or_size_is_corrupt(magic):
    data = bytearray(SAMPLES[f"v{magic}"])
    data[7] ^= 0x40
    assert rows_of(bytes(data))[0].offset == ROWS[0].offset ^ 0x40
    data = bytearray(SAMPLES[f"v{magic}"])
    data[11] -= 1
    with pytest.raises(kf.CorruptRecordError):
        rows_of(bytes(data))


@pytest.mark.parametrize("kind", SAMPLES)
def test_read_when_bytes_stand_behind_then_the_same_records_first(kind):
    """Every vector whole, and with the start of another batch, zeros, or noise behind it."""
    whole = ref.read_rows(SAMPLES[kind])
    assert rows_of(SAMPLES[kind]) == whole
    assert rows_of(SAMPLES[kind] + SAMPLES["v2 none"][:40]) == whole
    assert rows_of(SAMPLES[kind] + bytes(1000)) == whole
    got = []
    with pytest.raises(kf.KafkaFormatError):
        got.extend(rows_until_error(SAMPLES[kind] + b"\xa5" * 100, got))
    assert got == whole


def rows_until_error(data: bytes, got: list[Row]) -> list[Row]:
    for record in kf.MemoryRecords(data).records(control=True):
        got.extend(as_rows([record]))
    return []


def test_records_when_a_later_batch_is_damaged_then_all_records_before_it_come_first():
    """Case 29: whatever else is wrong behind it, a sound batch is read."""
    good = ref.batch_of([Row(0, DAY, b"k", b"good")])
    invalid = ref.batch(b"\0", 1, base_offset=1)
    corrupt = bytearray(ref.batch_of([Row(2, DAY, b"k", b"v")]))
    corrupt[-1] ^= 1
    for behind in ([corrupt], [invalid], [invalid, corrupt], [corrupt, invalid]):
        got: list[Row] = []
        with pytest.raises(DAMAGE) as raised:
            rows_until_error(good + b"".join(behind), got)
        assert got == [Row(0, DAY, b"k", b"good")]
        assert raised.value.position == len(good)
