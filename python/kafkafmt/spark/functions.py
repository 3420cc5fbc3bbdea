"""Functions over columns of record batches, as the source yields them with `unit=batches`.

    from kafkafmt.spark import functions as kf

    batches = spark.read.format("kafkafmt").option("unit", "batches").load("/var/lib/kafka")
    batches.filter(~kf.is_valid("batch")).select("file", "position").show()
    batches.select(kf.down_convert("batch", 1, zstd_fallback="lz4")).show()
    batches.select(explode(kf.decode("batch")).alias("record")).select("record.*").show()

A cell is binary: one batch, or several end to end, of any format; none where it is empty. Null gives null. They
are Arrow UDFs, which take a column as it lies in memory: no Python object is made of a record. How much comes at a
time `spark.sql.execution.arrow.maxBytesPerBatch` bounds; what goes back goes in pieces of about 1 MiB of cells.

on_error: with "fail" a cell that is damaged, that is anything but whole batches, or that cannot be converted
ends the query, with an error that tells offsets, and the position in the cell; with "null" it gives null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.functions import arrow_udf, lit  # type: ignore[attr-defined]  # which the stubs lack

from kafkafmt.columns import COLUMNS, arrow_schema
from kafkafmt.conversion import ConversionOptions
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
from kafkafmt.spark.values import known_name
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from pyspark.sql import Column

OnError: TypeAlias = Literal["fail", "null"]

_EVERY_OFFSET = -(2**63)
# What a batch knows itself; where it is from it does not.
_RECORD_COLUMNS = tuple(name for name in COLUMNS if name not in ("topic", "partition"))


def down_convert(
    column: Column | str,
    to_magic: int,
    *,
    zstd_fallback: Codec | str | None = None,
    on_error: OnError = "fail",
) -> Column:
    """The batches in message format v1 or v0, as `Records.down_convert` makes them; those that are old enough are kept.

    Markers of transactions are dropped, so that a cell may become empty, and so are headers.

    zstd_fallback: the codec that zstd batches get, as v0 and v1 have no zstd: `Codec.LZ4`, or "lz4". Without one
    they are an error.
    """
    if to_magic not in (0, 1):
        raise ValueError(f"to_magic: expected 0 or 1, found {to_magic!r}")
    options = ConversionOptions(to_magic, _EVERY_OFFSET, _codec(zstd_fallback))
    return _apply("down_convert", partial(converted_down, options=options), "binary", on_error, column)


def up_convert(column: Column | str, *, on_error: OnError = "fail") -> Column:
    """The batches in message format v2, which is all that brokers of version 4 take.

    Messages of v0 and v1 that stand alone are gathered, within a cell, into batches of 16 KiB at the most.
    """
    return _apply("up_convert", converted_up, "binary", on_error, column)


def trim(column: Column | str, first_offset: Column | str | int, *, on_error: OnError = "fail") -> Column:
    """The batches without records below `first_offset`: a number, or a column, whose nulls give null.

    A batch that is wholly below is left out; one that begins below is cut, as `RecordBatch.trim` does it, for
    which its CRC is checked and it must be of format v2. Others are taken as they are.
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
    """The records as an array of structs with the columns of the source, to be exploded; CRCs are checked.

    Those are key, value, offset, timestamp, timestampType and, with `include_headers`, headers; or the `columns`
    that are named. What is not asked for is never built. Markers of transactions are no records.
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
    """Whether a cell is whole batches, of lengths that fit, and their CRCs hold; nothing is decompressed.

    deep: whether, beyond that, everything can be decompressed, the codecs are known, counts and lengths fit, and
    the offsets of records ascend, as `kafkafmt inspect --verify` checks it. Never an error.
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
    """A column of `function` over cells, which is pickled by name: executors import it from their own kafkafmt."""
    if otherwise not in ("fail", "null", "false"):
        raise ValueError(f"on_error: expected fail or null, found {otherwise!r}")

    def each(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return over_cells(function, otherwise, arrays)

    each.__name__ = name  # what Spark calls the column
    found: Column = arrow_udf(each, kind)(*columns)
    return found
