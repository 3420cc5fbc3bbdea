"""Functions over columns of record batches, such as the source yields with `unit=batches`.

    from kafkafmt.spark import functions as kf

    batches = spark.read.format("kafkafmt").option("unit", "batches").load("/var/lib/kafka")
    batches.filter(~kf.is_valid("batch")).select("file", "position").show()
    batches.select(kf.down_convert("batch", 1, zstd_fallback="lz4")).show()
    batches.select(explode(kf.decode("batch")).alias("record")).select("record.*").show()

A cell is binary, and contains any number of complete batches of any format, end to end. The result for null is null.
The functions are Arrow UDFs: they read a column's Arrow buffers, and create no Python object for a record.
`spark.sql.execution.arrow.maxBytesPerBatch` bounds the size of an input. Results are returned in chunks of about 1 MiB
of input cells.

on_error: what happens if a cell is damaged, has incomplete batches, or cannot be converted. With "fail" the query ends
with an error, which names the offsets and the position in the cell. With "null" the result of the cell is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.functions import arrow_udf, lit  # type: ignore[attr-defined]  # which the stubs lack

from kafkafmt._util.names import known_name
from kafkafmt.columns.read import COLUMNS, arrow_schema
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.spark.cells import (
    Otherwise,
    checked,
    converted_down,
    converted_up,
    decoded,
    over_cells,
    trimmed,
)
from kafkafmt.spark.source.schema import SPARK_TYPES
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["decode", "down_convert", "is_valid", "trim", "up_convert"]

OnError: TypeAlias = Literal["fail", "null"]

_EVERY_OFFSET = -(2**63)
# A batch contains these columns of its records. It does not contain its topic and partition.
_RECORD_COLUMNS = tuple(name for name in COLUMNS if name not in ("topic", "partition"))


def down_convert(
    column: Column | str,
    to_magic: int,
    *,
    zstd_fallback: Codec | str | None = None,
    on_error: OnError = "fail",
) -> Column:
    """Return a column of the batches converted to message format v1 or v0, as `Records.down_convert` does.

    Batches of that format or an older one stay unchanged. Headers and transaction markers are dropped, so a cell may
    become empty.

    zstd_fallback: the codec for zstd batches, which v0 and v1 do not support: `Codec.LZ4`, or "lz4". Without it, zstd
    batches are an error. Raises ValueError for another `to_magic` than 0 or 1, or an unknown codec.
    """
    if to_magic not in (0, 1):
        raise ValueError(f"to_magic: expected 0 or 1, found {to_magic!r}")
    options = ConversionOptions(to_magic, _EVERY_OFFSET, _codec(zstd_fallback))
    return _apply("down_convert", partial(converted_down, options=options), "binary", on_error, column)


def up_convert(column: Column | str, *, on_error: OnError = "fail") -> Column:
    """Return a column of the batches converted to message format v2, the only format that Kafka 4 brokers accept.

    Uncompressed messages of v0 and v1 are combined, within a cell, into batches of at most 16 KiB.
    """
    return _apply("up_convert", converted_up, "binary", on_error, column)


def trim(column: Column | str, first_offset: Column | str | int, *, on_error: OnError = "fail") -> Column:
    """Return a column of the batches without records below `first_offset`, a number or a column.

    A batch that ends below it is left out. A batch that begins below it is trimmed as `RecordBatch.trim` does: its CRC
    is checked, and it must be of format v2. Other batches stay unchanged. If `first_offset` is null, so is the result.
    """
    bound = lit(first_offset) if isinstance(first_offset, int) else first_offset
    return _apply("trim", trimmed, "binary", on_error, column, bound)


def decode(
    column: Column | str,
    columns: Iterable[str] | None = None,
    *,
    include_headers: bool = False,
    on_error: OnError = "fail",
) -> Column:
    """Return a column of the records, as an array of structs for `explode`. CRCs are checked.

    The fields are key, value, offset, timestamp, timestampType and, with `include_headers`, headers; or those in
    `columns`. Columns that are not selected are not materialised. Transaction markers are left out.

    Raises TypeError if `columns` is a string, ValueError for unknown or repeated columns.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns: expected names, found the string {columns!r}")
    if columns is not None:
        names = [known_name("column", name, _RECORD_COLUMNS) for name in columns]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"columns: expected distinct ones of {', '.join(_RECORD_COLUMNS)}, found {names}"
            )
    else:
        names = [name for name in _RECORD_COLUMNS if name != "headers" or include_headers]
    fields = ", ".join(f"{field.name}: {SPARK_TYPES[field.type]}" for field in arrow_schema(names))
    return _apply("decode", partial(decoded, columns=names), f"array<struct<{fields}>>", on_error, column)


def is_valid(column: Column | str, *, deep: bool = False) -> Column:
    """Return a boolean column: whether a cell contains only complete batches with correct lengths and CRCs.

    Nothing is decompressed. deep: also decompress, and check codecs, counts, lengths and the order of offsets, as
    `kafkafmt verify` does. No cell raises an error.
    """
    return _apply("is_valid", partial(checked, deep=deep), "boolean", "false", column)


def _codec(given: Codec | str | None) -> Codec | None:
    if not isinstance(given, str):
        return given
    names = {codec.name.lower(): codec for codec in Codec if codec != Codec.ZSTD}
    if given.lower() not in names:
        raise ValueError(f"zstd_fallback: expected one of {', '.join(names)}, found {given!r}")
    return names[given.lower()]


def _apply(
    name: str, function: Callable[..., Any], kind: str, otherwise: Otherwise, *columns: Column | str
) -> Column:
    """Return a column of `function` over cells. It is pickled by name: executors import it from their kafkafmt."""
    if otherwise not in ("fail", "null", "false"):
        raise ValueError(f"on_error: expected fail or null, found {otherwise!r}")

    def each(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return over_cells(function, otherwise, arrays)

    each.__name__ = name  # Spark's name of the column
    found: Column = arrow_udf(each, kind)(*columns)
    return found
