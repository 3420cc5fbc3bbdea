"""Binary columns whose cells are whole batches end to end, as Arrow arrays: converted, trimmed, decoded, checked.

The cells of an Arrow column lie end to end in its data, so one scan finds the batches of all of them, and the
kernels get many cells a call. A column is taken in pieces of about `PIECE_BYTES`, and each gives an array of its
own: what is held follows the piece and what its largest batch decompresses to, not the column.

A piece in which something is wrong is halved until the cell that it is wrong with stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from _kafkafmt.columns import ColumnBuilder
from _kafkafmt.scan import BatchRun, scan
from kafkafmt.arrow_arrays import bitmap, boolean_array, int64_values, string_array, valid_values
from kafkafmt.batch import RecordBatch
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns import arrow_schema, record_batch
from kafkafmt.conversion import ConversionOptions
from kafkafmt.converter import Converter
from kafkafmt.decoding import Payloads, groups
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.damage import check_records
from kafkafmt.log.segment import check_tail
from kafkafmt.records import RUN_BYTES, MemoryRecords
from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = RUN_BYTES

# What stands in for the result of a cell that something is wrong with: the error, null, or false.
Otherwise: TypeAlias = Literal["fail", "null", "false"]

_MAX_ARROW_BYTES = np.iinfo(np.int32).max
_CODEC_IDS = 8  # three bits of the attributes
_OFFSET_DTYPES = {pa.binary(): np.int32, pa.large_binary(): np.int64}


class Cells:
    """The cells of a binary array that is not empty, and the batches in them.

    run: the batches of all cells, in order. starts: where each cell begins in the run's buffer, and where the last
    one ends. firsts: the row in the run of each cell's first batch, and behind the last one. valid: a boolean a
    cell, False for null, or None without nulls; a null cell has no batches.

    Raises KafkaFormatError where a cell is anything but whole batches.
    """

    def __init__(self, column: pa.Array) -> None:
        self.valid = valid_values(column)
        starts, data = _contents(column)
        if self.valid is not None and np.diff(starts)[~self.valid].any():
            starts, data = _contents(pc.fill_null(column, b""))
        self.starts = starts - starts[0]
        data = data[starts[0] : starts[-1]]
        self.run, consumed, *_ = scan(data)
        boundaries = np.append(self.run.index["position"], consumed)
        misplaced = ~np.isin(self.starts, boundaries)
        if misplaced.any():
            cell = int(misplaced.argmax()) - 1
            _raise_for(data[self.starts[cell] : self.starts[cell + 1]])
        self.firsts = boundaries.searchsorted(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def described(self, error: KafkaFormatError) -> KafkaFormatError:
        """`error`, of a batch in the run, with positions in its cell."""
        if error.position is not None:
            start = int(self.starts[self.starts.searchsorted(error.position, side="right") - 1])
            error.position -= start
            if error.next_position is not None:
                error.next_position -= start
        return error

    def binary(self, ends: NDArray[np.int64], data: memoryview | pa.Buffer) -> pa.Array:
        """What became of the cells: `data`, in which they end at `ends`.

        Raises OverflowError where that is more than a column holds.
        """
        if ends[-1] > _MAX_ARROW_BYTES:
            raise OverflowError(f"{ends[-1]} bytes")
        offsets = np.zeros(len(self) + 1, np.int32)
        offsets[1:] = ends
        return string_array(pa.binary(), offsets, data, self.valid)


def _contents(column: pa.Array) -> tuple[NDArray[np.int64], memoryview]:
    """Where the cells of a binary array begin in its data, and the last one ends; and its data."""
    _, offsets, data = column.buffers()
    dtype = _OFFSET_DTYPES[column.type]
    starts = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * np.dtype(dtype).itemsize)
    return starts.astype(np.int64), memoryview(data or b"").cast("B").toreadonly()


def _raise_for(cell: memoryview) -> NoReturn:
    """Say what is wrong with a cell that is anything but whole batches."""
    records, reached = MemoryRecords(cell), 0
    for run in records.runs():
        reached = run.end_position
    check_tail(records, reached, is_active=False)
    raise AssertionError("the cell is whole batches")


def over_cells(
    function: Callable[..., pa.Array], otherwise: Otherwise, arrays: Iterator[pa.Array | Sequence[pa.Array]]
) -> Iterator[pa.Array]:
    """What `function` makes of the cells of each array, and of the arrays beside it that hold its arguments.

    Where one of those is null, so is the result. Each result is a row a cell, in pieces. Raises KafkaFormatError
    for a cell that something is wrong with, where `otherwise` says so, and ValueError for a result that an Arrow
    column does not hold.
    """
    with PlainErrors():
        for given in arrays:
            column, *arguments = [given] if isinstance(given, pa.Array) else given
            if column.type not in _OFFSET_DTYPES:
                raise ValueError(f"expected a binary column of batches, found {column.type}")
            for argument in arguments:
                if argument.null_count:
                    column = pc.if_else(argument.is_valid(), column, pa.scalar(None, column.type))
            for piece in _pieces(column):
                yield from _tried(function, otherwise, column[piece], [each[piece] for each in arguments])


def _pieces(column: pa.Array) -> Iterator[slice]:
    """Slices of `PIECE_BYTES` at the most, or of one cell that is larger."""
    if not len(column):
        return
    starts, _ = _contents(column)
    first = 0
    while first < len(column):
        stop = int(starts.searchsorted(starts[first] + PIECE_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), len(column))
        yield slice(first, stop)
        first = stop


def _tried(
    function: Callable[..., pa.Array], otherwise: Otherwise, column: pa.Array, arguments: list[pa.Array]
) -> Iterator[pa.Array]:
    is_alone = len(column) == 1
    try:
        cells = Cells(column)
        try:
            result = function(cells, *arguments)
        except KafkaFormatError as error:
            raise cells.described(error) from None
    except OverflowError as error:
        if is_alone:
            message = (
                f"the result of one cell: expected less than 2 GiB, what an Arrow column holds, found {error}"
            )
            raise ValueError(message) from None
    except KafkaFormatError:
        if otherwise == "fail":
            raise
        if is_alone:
            nothing = function(Cells(pa.nulls(1, column.type)), *arguments)
            yield nothing if otherwise == "null" else pc.fill_null(nothing, False)
            return
    else:
        yield result
        return
    half = len(column) // 2
    for part in (slice(half), slice(half, None)):
        yield from _tried(function, otherwise, column[part], [each[part] for each in arguments])


def converted_down(cells: Cells, options: ConversionOptions) -> pa.Array:
    """Each cell in format v1 or v0, as a binary array.

    All cells are converted in one call; whose the batches are that come out of it the headers of the sources tell.
    """
    converter = Converter(options)
    converter.expect(int(cells.starts[-1]))
    converter.convert(cells.run)
    found, size, *_ = scan(converter.output)
    counts = _converted_counts(cells.run.index, options)
    assert len(found) == counts.sum()
    boundaries = np.append(found.index["position"], size)
    return cells.binary(boundaries[np.append(0, counts.cumsum())[cells.firsts[1:]]], converter.output)


def _converted_counts(rows: NDArray[np.void], options: ConversionOptions) -> NDArray[np.int64]:
    """How many batches each becomes: a record is a message of its own where no codec wraps it."""
    wraps = np.zeros(_CODEC_IDS, np.bool_)
    for codec in Codec:
        wraps[codec] = options.codec_of(codec) not in (None, Codec.NONE)
    of_v2 = np.where(wraps[rows["codec"]], rows["count"] > 0, rows["count"]) * ~rows["is_control"]
    return np.where(rows["magic"] < 2, 1, of_v2).astype(np.int64)


def converted_up(cells: Cells) -> pa.Array:
    """Each cell in format v2, as a binary array: what stands alone is gathered, but not across cells."""
    converter = Converter(ConversionOptions(2))
    converter.expect(int(cells.starts[-1]))
    ends = np.empty(len(cells), np.int64)
    firsts = cells.firsts.tolist()
    for cell in range(len(cells)):
        if firsts[cell] < firsts[cell + 1]:
            converter.convert(cells.run, firsts[cell], firsts[cell + 1])
        ends[cell] = len(converter.output)
    return cells.binary(ends, converter.output)


def trimmed(cells: Cells, first_offsets: pa.Array) -> pa.Array:
    """Each cell without the records below its first offset, as a binary array; see `RecordBatch.trim`."""
    rows = cells.run.index
    wanted = np.repeat(int64_values(first_offsets.cast(pa.int64())), np.diff(cells.firsts))
    is_below = rows["last_offset"] < wanted
    is_cut = ~is_below & (rows["base_offset"] < wanted)  # a wrapper's is -1: it is asked
    boundaries = np.append(rows["position"], cells.starts[-1])
    batches = string_array(pa.binary(), boundaries.astype(np.int32), cells.run.buffer)
    is_changed = is_below | is_cut
    if is_changed.any():
        left = [
            b"" if is_below[row] else bytes(RecordBatch(cells.run, row).trim(int(wanted[row])))
            for row in np.flatnonzero(is_changed).tolist()
        ]
        ends = np.cumsum([0, *map(len, left)], dtype=np.int32)
        replacements = string_array(pa.binary(), ends, b"".join(left))
        batches = pc.replace_with_mask(batches, boolean_array(is_changed), replacements)
    starts, data = _contents(batches)
    return cells.binary(starts[cells.firsts[1:]] - starts[0], data[starts[0] : starts[-1]])


def decoded(cells: Cells, columns: Sequence[str]) -> pa.Array:
    """Each cell's records, markers of transactions left out, as an array of structs of `columns`."""
    is_marker = cells.run.index["is_control"]
    run = BatchRun(cells.run.buffer, cells.run.index[~is_marker])
    builder = ColumnBuilder(columns)
    counts = np.zeros(len(cells.run), np.int64)
    found = [
        _add_records(builder, run, first, stop, payloads)
        for first, stop, payloads in groups(run, verify=True, limit=DEFAULT_MAX_DECOMPRESSED_BYTES)
    ]
    if found:
        counts[~is_marker] = np.concatenate(found)
    count = builder.count
    records = record_batch(builder.take(), count, arrow_schema(columns), None).to_struct_array()
    offsets = np.append(0, counts.cumsum())[cells.firsts].astype(np.int32)
    kind = pa.list_(pa.field("element", records.type))
    buffers = [bitmap(cells.valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(cells), buffers, children=[records])


def _add_records(
    builder: ColumnBuilder, run: BatchRun, first: int, stop: int, payloads: Payloads
) -> NDArray[np.int64]:
    """Append the records of batches `first` to `stop`; how many each has."""
    counts = run.index["count"][first:stop].astype(np.int64)
    if (counts >= 0).all():
        builder.add(run, first, stop, payloads, verify=True)
        return counts
    for number in range(stop - first):  # of a wrapper the payload alone knows
        before, row = builder.count, first + number
        builder.add(run, row, row + 1, payloads[number : number + 1] if payloads else None, verify=True)
        counts[number] = builder.count - before
    return counts


def checked(cells: Cells, deep: bool) -> pa.Array:
    """Whether the CRCs of each cell's batches hold; with `deep` it raises KafkaFormatError for what is not sound."""
    if deep:
        cells.run.ensure_valid()
        check_records(cells.run, 0, len(cells.run), DEFAULT_MAX_DECOMPRESSED_BYTES)
    failures = np.append(0, (~cells.run.valid()).cumsum())[cells.firsts]
    return boolean_array(np.diff(failures) == 0, cells.valid)
