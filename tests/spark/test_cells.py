"""Functions over columns of batches, on Arrow arrays; test_functions.py has them on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa
import pytest

import kafkafmt as kf
import reference as ref
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.spark import cells
from kafkafmt.spark.cells import (
    Otherwise,
    checked,
    converted_down,
    converted_up,
    decoded,
    over_cells,
    trimmed,
)
from records.samples import DAY, EVERY_KIND, GAPS, ROWS, SAMPLES, WITH_HEADERS, end_marker

ATTRIBUTES_END = 23
COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
TRUNCATED = SAMPLES["v2 none"][:-1]
FLIPPED = SAMPLES["v2 gzip"][:-1] + bytes([SAMPLES["v2 gzip"][-1] ^ 1])
# The CRC holds, and what is in it does not: a records count of one more than there are.
MISCOUNTED = ref.batch(ref.records(ROWS, 10, DAY), 4, base_offset=10, last_offset_delta=2, base_timestamp=DAY)
# The CRC of the wrapper holds, and that of a message in it does not.
FLIPPED_WITHIN = ref.wrapper(1, ref.GZIP, ROWS, inner=ref.message(1, 0, DAY, b"key", b"value", crc=1))
DAMAGED = {
    "cut off": TRUNCATED,
    "flipped": FLIPPED,
    "a byte": b"\0",
    "zeros behind": SAMPLES["v1"] + bytes(100),
    "miscounted": MISCOUNTED,
}

Function = Callable[..., pa.Array]

FUNCTIONS: dict[str, Function] = {
    **{
        f"to v{magic}": partial(converted_down, options=ConversionOptions(magic, zstd_fallback=kf.Codec.LZ4))
        for magic in (0, 1)
    },
    "to v2": converted_up,
    "decoded": partial(decoded, columns=COLUMNS),
    "checked": partial(checked, deep=False),
    "checked deeply": partial(checked, deep=True),
}


def binary(found: Iterable[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(list(found), kind or pa.binary())


def over(
    function: Function, column: pa.Array, *arguments: pa.Array, otherwise: Otherwise = "fail"
) -> list[object]:
    """The results for all cells; every array that is handed out is sound."""
    given = (column, *arguments) if arguments else column
    found = list(over_cells(function, otherwise, iter([given])))
    for array in found:
        array.validate(full=True)
    return [value for array in found for value in array.to_pylist()]


def down(data: bytes, magic: int) -> bytes:
    return bytes(kf.MemoryRecords(data).down_convert(magic, zstd_fallback=kf.Codec.LZ4).records.buffer)


def decoded_by_library(data: bytes) -> list[dict[str, object]]:
    kept = [bytes(batch) for batch in kf.MemoryRecords(data).batches() if not batch.is_control]
    return kf.MemoryRecords(b"".join(kept)).to_arrow(COLUMNS).to_pylist()


def trimmed_by_library(data: bytes, first_offset: int) -> bytes:
    batches = kf.MemoryRecords(data).batches()
    return b"".join(bytes(one.trim(first_offset)) for one in batches if one.last_offset >= first_offset)


CELLS = [*SAMPLES.values(), b"", None, EVERY_KIND, SAMPLES["v2 zstd"] * 3, SAMPLES["v0"], None, b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_cells_when_converted_then_each_is_what_the_library_makes_of_it(
    magic: int, kind: pa.DataType
) -> None:
    found = over(FUNCTIONS[f"to v{magic}"], binary(CELLS, kind))
    assert found == [None if cell is None else down(cell, magic) for cell in CELLS]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("fallback", [kf.Codec.NONE, kf.Codec.GZIP])
def test_zstd_when_converted_down_then_its_records_are_in_its_cell_whatever_the_codec(
    magic: int, fallback: kf.Codec
) -> None:
    empty = ref.batch(b"", 0, attributes=ref.ZSTD, last_offset_delta=3)
    data = [EVERY_KIND, SAMPLES["v2 zstd"], empty, end_marker(7, commit=True), SAMPLES["v0"] + empty]
    function = partial(converted_down, options=ConversionOptions(magic, zstd_fallback=fallback))
    records = [kf.MemoryRecords(cell).down_convert(magic, zstd_fallback=fallback).records for cell in data]
    assert over(function, binary(data)) == [bytes(one.buffer) for one in records]


@pytest.mark.parametrize("columns", [COLUMNS, ("offset",), ("headers", "key")])
def test_cells_when_decoded_then_each_has_the_records_that_the_library_reads(columns: Sequence[str]) -> None:
    found = over(partial(decoded, columns=columns), binary(CELLS))
    expected = [None if cell is None else decoded_by_library(cell) for cell in CELLS]
    assert found == [
        cell if cell is None else [{name: record[name] for name in columns} for record in cell]
        for cell in expected
    ]


def test_markers_when_decoded_then_are_no_records() -> None:
    transaction = SAMPLES["v2 transactional"] + end_marker(13, commit=True)
    assert over(FUNCTIONS["decoded"], binary([end_marker(0, commit=False), transaction])) == [
        [],
        decoded_by_library(SAMPLES["v2 transactional"]),
    ]


def test_batch_when_its_control_bit_is_flipped_then_is_damaged_and_no_marker() -> None:
    flipped = bytearray(SAMPLES["v2 none"])
    flipped[ATTRIBUTES_END - 1] ^= ref.CONTROL
    sound = SAMPLES["v2 none"]
    for function in (FUNCTIONS["decoded"], FUNCTIONS["to v1"], FUNCTIONS["to v0"]):
        with pytest.raises(kf.CorruptRecordError, match="CRC mismatch"):
            over(function, binary([sound, sound + flipped]))
        found = over(function, binary([sound, sound + flipped, sound]), otherwise="null")
        assert found == [*over(function, binary([sound])), None, *over(function, binary([sound]))]


@pytest.mark.parametrize("codec", range(5))
def test_cells_when_trimmed_then_each_is_what_the_library_makes_of_it(codec: int) -> None:
    gaps = ref.batch_of(GAPS, codec=codec, base_offset=1, last_offset_delta=9)
    behind = ref.batch_of(ROWS, codec=codec, base_offset=11)
    data = [gaps, gaps + behind, behind, ref.messages(1, GAPS), SAMPLES["v2 empty"], b""]
    for first_offset in range(14):
        bounds = pa.array([first_offset] * len(data))
        assert over(trimmed, binary(data), bounds) == [
            trimmed_by_library(cell, first_offset) for cell in data
        ]


def test_cells_when_each_is_trimmed_elsewhere_then_is_trimmed_there_and_null_gives_null() -> None:
    gaps = ref.batch_of(GAPS, base_offset=1, last_offset_delta=9)
    found = over(trimmed, binary([gaps, None, gaps, gaps]), pa.array([8, 3, None, 5], pa.int32()))
    assert found == [trimmed_by_library(gaps, 8), None, None, trimmed_by_library(gaps, 5)]


def test_wrapper_when_trimmed_within_then_is_an_error_and_in_front_of_it_is_kept() -> None:
    wrapper = ref.wrapper(1, ref.GZIP, GAPS)
    assert over(trimmed, binary([wrapper]), pa.array([3])) == [wrapper]
    with pytest.raises(kf.UnsupportedVersionError, match=r"expected a batch of format v2, found v1"):
        over(trimmed, binary([wrapper]), pa.array([4]))
    assert over(trimmed, binary([wrapper]), pa.array([4]), otherwise="null") == [None]


def test_batches_when_sound_then_are_valid_and_null_is_null() -> None:
    expected = [None if cell is None else True for cell in CELLS]
    assert over(FUNCTIONS["checked"], binary(CELLS)) == expected
    assert over(FUNCTIONS["checked deeply"], binary(CELLS)) == expected


@pytest.mark.parametrize("name", ["checked", "checked deeply"])
@pytest.mark.parametrize("kind", [kind for kind in DAMAGED if kind != "miscounted"])
def test_batches_when_damaged_then_are_not_valid_and_those_beside_them_are(name: str, kind: str) -> None:
    sound, damage = SAMPLES["v2 lz4"], DAMAGED[kind]
    data = [sound, damage, None, sound + damage, sound]
    found = over(FUNCTIONS[name], binary(data), otherwise="false")
    assert found == [True, False, None, False, True]


def test_batch_when_only_its_content_is_wrong_then_is_valid_unless_looked_into() -> None:
    data = binary([SAMPLES["v2 none"], MISCOUNTED, None, FLIPPED_WITHIN])
    assert over(FUNCTIONS["checked"], data, otherwise="false") == [True, True, None, True]
    assert over(FUNCTIONS["checked deeply"], data, otherwise="false") == [True, False, None, False]


@pytest.mark.parametrize("name", ["to v1", "to v2", "decoded"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_cell_when_met_then_fails_or_is_null_alone(name: str, kind: str) -> None:
    damage = DAMAGED[kind] if (name, kind) != ("to v2", "miscounted") else FLIPPED  # copied, not looked into
    sound = SAMPLES["v1"]
    data = [sound, sound + damage, None, sound, damage]
    (expected,) = over(FUNCTIONS[name], binary([sound]))
    with pytest.raises((kf.CorruptRecordError, kf.InvalidRecordError)):
        over(FUNCTIONS[name], binary(data))
    found = over(FUNCTIONS[name], binary(data), otherwise="null")
    assert found == [expected, None, None, expected, None]


@pytest.mark.parametrize("name", ["to v0", "to v2", "decoded"])
def test_message_in_a_wrapper_when_it_is_flipped_then_its_cell_fails_or_is_null_alone(name: str) -> None:
    data = binary([SAMPLES["v1"], FLIPPED_WITHIN])
    with pytest.raises(kf.CorruptRecordError, match="CRC mismatch of an inner message"):
        over(FUNCTIONS[name], data)
    found = over(FUNCTIONS[name], data, otherwise="null")
    assert found == [*over(FUNCTIONS[name], binary([SAMPLES["v1"]])), None]


def test_error_when_raised_then_tells_what_was_expected_the_offsets_and_where_in_the_cell() -> None:
    sound = SAMPLES["v2 one record"]
    for function in (FUNCTIONS["to v1"], FUNCTIONS["decoded"]):
        with pytest.raises(kf.CorruptRecordError) as caught:
            over(function, binary([sound * 3, sound + FLIPPED]))
        assert caught.value.message.startswith("CRC mismatch: expected 0x")
        assert caught.value.position == len(sound)
        assert caught.value.next_position == len(sound) + len(FLIPPED)
        assert (caught.value.base_offset, caught.value.last_offset) == (10, 12)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            SAMPLES["v1"] + TRUNCATED,
            rf"expected a whole batch in the last {len(TRUNCATED)} bytes, found a part",
        ),
        (SAMPLES["v1"] + bytes(40), r"expected no bytes after the last batch, found 40 zeros"),
        (SAMPLES["v1"] + b"\0" * 11 + b"\1" + bytes(9), r"batch size too small: expected at least 26 bytes"),
    ],
)
def test_cell_when_not_whole_batches_then_is_told_and_what_is_behind_it_is_not_taken_for_its_own(
    cell: bytes, message: str
) -> None:
    for behind in ([], [SAMPLES["v2 none"]], [b"\0", SAMPLES["v1"]]):
        with pytest.raises(kf.CorruptRecordError, match=message) as caught:
            over(FUNCTIONS["to v1"], binary([SAMPLES["v0"], cell, *behind]))
        assert caught.value.position == len(SAMPLES["v1"])


def test_cells_when_batches_go_across_them_then_are_damaged_all() -> None:
    data = SAMPLES["v2 none"] + SAMPLES["v2 gzip"]
    halves = [data[: len(data) // 2], data[len(data) // 2 :]]
    assert over(FUNCTIONS["checked"], binary(halves), otherwise="false") == [False, False]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_when_sliced_then_are_read_within_the_slice(name: str) -> None:
    data = [FLIPPED, SAMPLES["v0"], None, SAMPLES["v1"], b"", SAMPLES["v2 lz4"], FLIPPED]
    whole = over(FUNCTIONS[name], binary(data[1:-1]))
    assert over(FUNCTIONS[name], binary(data)[1:-1]) == whole
    assert over(FUNCTIONS[name], binary(data)[2:4]) == whole[1:3]
    assert over(FUNCTIONS[name], binary(data)[3:3]) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_null_when_it_has_bytes_then_they_are_not_looked_at(name: str) -> None:
    """As Arrow allows it."""
    data = [SAMPLES["v0"], FLIPPED, SAMPLES["v1"]]
    buffers = binary(data).buffers()
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\5"), *buffers[1:]])
    assert over(FUNCTIONS[name], column) == over(FUNCTIONS[name], binary([data[0], None, data[2]]))


def test_column_when_large_then_is_taken_in_pieces_and_rows_stay_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = [SAMPLES["v2 none"], None, EVERY_KIND, b"", SAMPLES["v1"], SAMPLES["v0"], None] * 5
    for function in FUNCTIONS.values():
        whole = over(function, binary(data))
        for size in (1, len(SAMPLES["v1"]), len(EVERY_KIND)):
            monkeypatch.setattr(cells, "CHUNK_BYTES", size)
            assert len(list(over_cells(function, "fail", iter([binary(data)])))) > 5
            assert over(function, binary(data)) == whole
        monkeypatch.undo()


def test_result_when_too_large_for_a_column_then_is_cut_or_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit of 2 GiB that stands for itself, lowered: what a cell gives is what is compared."""
    data = [SAMPLES["v2 gzip"]] * 8
    whole = over(FUNCTIONS["to v1"], binary(data))
    monkeypatch.setattr(cells, "_MAX_ARROW_BYTES", 3 * len(whole[0]))  # type: ignore[arg-type]
    assert len(list(over_cells(FUNCTIONS["to v1"], "fail", iter([binary(data)])))) == 4
    assert over(FUNCTIONS["to v1"], binary(data)) == whole
    monkeypatch.setattr(cells, "_MAX_ARROW_BYTES", 1)
    with pytest.raises(
        ValueError, match=r"the result of one cell: expected less than 2 GiB.*found \d+ bytes"
    ):
        over(FUNCTIONS["to v1"], binary(data))


def test_column_when_not_binary_then_is_said_to_be() -> None:
    with pytest.raises(ValueError, match=r"expected a binary column of batches, found string"):
        over(FUNCTIONS["checked"], pa.array(["text"]))


def test_headers_when_asked_for_then_are_there_and_null_where_a_record_has_none() -> None:
    (found,) = over(FUNCTIONS["decoded"], binary([ref.batch_of([*WITH_HEADERS, ref.Row(2, DAY, b"", b"")])]))
    assert [record["headers"] is None for record in found] == [False, False, True]  # type: ignore[attr-defined]
    assert found[0]["headers"][2] == {"key": "", "value": None}  # type: ignore[index]
