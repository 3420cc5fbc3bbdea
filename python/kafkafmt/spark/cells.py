"""Convert, trim, decode and check binary Arrow columns whose cells contain complete batches.

The cells of an Arrow column are adjacent in its data. So one scan finds the batches of all cells, and a kernel call
processes many cells. A column is processed in chunks of about `CHUNK_BYTES`, and each chunk yields an array. Memory
depends on the chunk and on its largest decompressed batch, not on the column.

If a chunk raises an error, it is halved repeatedly until the wrong cell is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.columns.columns import ColumnBuilder
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns.arrow import bitmap, boolean_array, int64_values, string_array, valid_values
from kafkafmt.columns.read import arrow_schema, record_batch
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.damage import check_records
from kafkafmt.log.segment import check_tail
from kafkafmt.records.base import RUN_BYTES, MemoryRecords
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.decoding import Payloads, decompressed_chunks
from kafkafmt.records.runs import without_control
from kafkafmt.spark.one_line_errors import OneLineErrors
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = RUN_BYTES

# The result of an invalid cell: the error is raised, null, or false.
Otherwise: TypeAlias = Literal["fail", "null", "false"]

_MAX_ARROW_BYTES = np.iinfo(np.int32).max
_CODEC_IDS = 8  # three bits of the attributes
_OFFSET_DTYPES = {pa.binary(): np.int32, pa.large_binary(): np.int64}


class Cells:
    """The cells of a binary array that is not empty, and the batches in them.

    run: the batches of all cells, in order. starts: the position of each cell in the run's buffer, then the end of the
    last cell. firsts: the row in the run of each cell's first batch, then the number of batches. valid: a boolean for
    each cell, False for null; None if the array has no nulls. A null cell has no batches.

    Raises KafkaFormatError if a cell contains anything else than complete batches.
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

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Return `error`, raised for a batch of the run, with positions relative to its cell instead of the run."""
        if error.position is not None:
            start = int(self.starts[self.starts.searchsorted(error.position, side="right") - 1])
            error.position -= start
            if error.next_position is not None:
                error.next_position -= start
        return error

    def binary(self, ends: NDArray[np.int64], data: memoryview | pa.Buffer) -> pa.Array:
        """Return a binary array of results, one for each cell, which end at `ends` in `data`.

        Raises OverflowError if the results exceed the 2 GiB of a column.
        """
        if ends[-1] > _MAX_ARROW_BYTES:
            raise OverflowError(f"{ends[-1]} bytes")
        offsets = np.zeros(len(self) + 1, np.int32)
        offsets[1:] = ends
        return string_array(pa.binary(), offsets, data, self.valid)


def _contents(column: pa.Array) -> tuple[NDArray[np.int64], memoryview]:
    """Return the start of each cell of a binary array in its data, then the end of the last one; and the data."""
    _, offsets, data = column.buffers()
    dtype = _OFFSET_DTYPES[column.type]
    starts = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * np.dtype(dtype).itemsize)
    return starts.astype(np.int64), memoryview(data or b"").cast("B").toreadonly()


def _raise_for(cell: memoryview) -> NoReturn:
    """Raise the KafkaFormatError of a cell that contains anything else than complete batches."""
    records, reached = MemoryRecords(cell), 0
    for run in records.runs():
        reached = run.end_position
    check_tail(records, reached, is_active=False)
    raise AssertionError("the cell is whole batches")


def over_cells(
    function: Callable[..., pa.Array], otherwise: Otherwise, arrays: Iterator[pa.Array | Sequence[pa.Array]]
) -> Iterator[pa.Array]:
    """Apply `function` to the cells of each array, and yield the results in chunks, a row for each cell.

    arrays: binary arrays of cells, or sequences of such an array and the arrays of further arguments. If an argument
    is null, so is the result. otherwise: the result of an invalid cell.

    Raises KafkaFormatError for an invalid cell if `otherwise` is "fail"; ValueError for a column that is not binary, or
    a result of 2 GiB or more.
    """
    with OneLineErrors():
        for given in arrays:
            column, *arguments = [given] if isinstance(given, pa.Array) else given
            if column.type not in _OFFSET_DTYPES:
                raise ValueError(f"expected a binary column of batches, found {column.type}")
            for argument in arguments:
                if argument.null_count:
                    column = pc.if_else(argument.is_valid(), column, pa.scalar(None, column.type))
            for chunk in _chunks(column):
                yield from _tried(function, otherwise, column[chunk], [each[chunk] for each in arguments])


def _chunks(column: pa.Array) -> Iterator[slice]:
    """Yield slices of at most `CHUNK_BYTES`, or of one larger cell."""
    if not len(column):
        return
    starts, _ = _contents(column)
    first = 0
    while first < len(column):
        stop = int(starts.searchsorted(starts[first] + CHUNK_BYTES, side="right")) - 1
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
            raise cells.with_source(error) from None
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
    """Return each cell converted to format v1 or v0, as a binary array.

    All cells are converted in one call. The headers of the source batches determine how many of the converted batches
    belong to each cell.
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
    """Return the number of batches that each batch becomes. Without a codec each record becomes a message."""
    wraps = np.zeros(_CODEC_IDS, np.bool_)
    for codec in Codec:
        wraps[codec] = options.codec_of(codec) not in (None, Codec.NONE)
    of_v2 = np.where(wraps[rows["codec"]], rows["count"] > 0, rows["count"]) * ~rows["is_control"]
    return np.where(rows["magic"] < 2, 1, of_v2).astype(np.int64)


def converted_up(cells: Cells) -> pa.Array:
    """Return each cell converted to format v2, as a binary array. Messages are combined only within a cell."""
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
    """Return each cell without the records below its first offset, as a binary array; see `RecordBatch.trim`."""
    rows = cells.run.index
    wanted = np.repeat(int64_values(first_offsets.cast(pa.int64())), np.diff(cells.firsts))
    is_below = rows["last_offset"] < wanted
    is_cut = ~is_below & (rows["base_offset"] < wanted)  # -1 for a wrapper: `trim` decides
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
    """Return the records of each cell without transaction markers, as arrays of structs of `columns`."""
    run = without_control(cells.run, verify=True)
    builder = ColumnBuilder(columns)
    counts = np.zeros(len(cells.run), np.int64)
    found = [
        _add_records(builder, run, first, stop, payloads)
        for first, stop, payloads in decompressed_chunks(
            run, verify=True, limit=DEFAULT_MAX_DECOMPRESSED_BYTES
        )
    ]
    if found:
        counts[~cells.run.index["is_control"]] = np.concatenate(found)
    count = builder.count
    records = record_batch(builder.take(), count, arrow_schema(columns), None).to_struct_array()
    offsets = np.append(0, counts.cumsum())[cells.firsts].astype(np.int32)
    kind = pa.list_(pa.field("element", records.type))
    buffers = [bitmap(cells.valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(cells), buffers, children=[records])


def _add_records(
    builder: ColumnBuilder, run: BatchRun, first: int, stop: int, payloads: Payloads
) -> NDArray[np.int64]:
    """Append the records of batches `first` to before `stop` to the builder. Return the number of records of each."""
    counts = run.index["count"][first:stop].astype(np.int64)
    if (counts >= 0).all():
        builder.add(run, first, stop, payloads, verify=True)
        return counts
    for number in range(stop - first):  # a wrapper's count is known only from its payload
        before, row = builder.count, first + number
        builder.add(run, row, row + 1, payloads[number : number + 1] if payloads else None, verify=True)
        counts[number] = builder.count - before
    return counts


def checked(cells: Cells, deep: bool) -> pa.Array:
    """Return whether the CRCs of each cell's batches are correct. With `deep`, raise KafkaFormatError for damage."""
    if deep:
        cells.run.ensure_valid()
        check_records(cells.run, 0, len(cells.run), DEFAULT_MAX_DECOMPRESSED_BYTES)
    failures = np.append(0, (~cells.run.valid()).cumsum())[cells.firsts]
    return boolean_array(np.diff(failures) == 0, cells.valid)
