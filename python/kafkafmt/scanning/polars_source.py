"""A scan as a LazyFrame of Polars: projection, predicates and limits of the query reach the scan.

The whole predicate is applied to each batch that is read. So it may be understood in part, or not at all: then more is
read. Polars gives expressions as JSON, which is read here; constants and predicates of partitions are evaluated by
Polars itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from polars.io.plugins import register_io_source

from kafkafmt.columns.read import arrow_schema
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.row_bounds import FrameSource, RowBounds
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

OLDEST = "1.36"  # the oldest version that is tested
_PARTITION_COLUMNS = frozenset(("topic", "partition"))
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# The comparison with the sides swapped.
_SWAPPED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq"}


def lazy_frame(scan: FrameSource) -> pl.LazyFrame:
    """Return the LazyFrame of a scan. The scan is planned when it is collected. Raises ScanError for an old Polars."""
    try:
        return register_io_source(partial(_frames, scan), schema=partial(_polars_schema, scan), is_pure=True)
    except TypeError:  # it has no is_pure
        raise ScanError(f"to_polars needs Polars {OLDEST} or later, found {pl.__version__}") from None


def _polars_schema(scan: FrameSource) -> pl.Schema:
    return _frame(scan.schema.empty_table()).schema


def _frames(
    scan: FrameSource,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a query: what Polars calls."""
    if predicate is not None:
        scan = scan.matching(row_bounds(predicate))
    with closing(scan.to_batches(with_columns)) as batches:
        for batch in batches:
            frame = _frame(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= len(frame)
            yield from frame.iter_slices(batch_size or max(len(frame), 1))
            if n_rows == 0:
                return


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def row_bounds(predicate: pl.Expr) -> RowBounds:
    """Return bounds of the rows that a predicate matches, as far as it is understood."""
    try:
        whole = json.loads(predicate.meta.serialize(format="json"))
    except (ValueError, TypeError, pl.exceptions.PolarsError):  # this version has no such JSON, or not of all
        return RowBounds()
    parts = list(_conjuncts(whole))
    of_partitions = [part for part in map(_expression, parts) if part is not None and _is_of_partition(part)]
    offsets, timestamps = (_Interval.of_all(parts, name) for name in ("offset", "timestamp"))
    return RowBounds(
        partial(_matches_partition, of_partitions),
        (offsets.first, None if offsets.last is None else offsets.last + 1),
        None if timestamps.first is None else max(-(-timestamps.first // 1000), 0) or None,
    )


def _conjuncts(node: Any) -> Iterator[Any]:
    parts = node.get("BinaryExpr", {}) if isinstance(node, dict) else {}
    if parts.get("op") in ("And", "LogicalAnd"):
        yield from _conjuncts(parts["left"])
        yield from _conjuncts(parts["right"])
    else:
        yield node


def _expression(node: Any) -> pl.Expr | None:
    try:
        return pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    except (ValueError, TypeError, pl.exceptions.PolarsError):
        return None


def _is_of_partition(expression: pl.Expr) -> bool:
    names = set(expression.meta.root_names())
    return bool(names) and names <= _PARTITION_COLUMNS


def _matches_partition(predicates: list[pl.Expr], one: TopicPartition) -> bool:
    if not predicates:
        return True
    rows = _frame(arrow_schema(["topic", "partition"]).empty_table())
    rows = pl.DataFrame({"topic": [one.topic], "partition": [one.partition]}, schema=rows.schema)
    return not rows.filter(predicates).is_empty()


class _Interval(NamedTuple):
    """The least and the greatest number that a column can have: an offset, or microseconds. None for no bound."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def of_all(cls, parts: list[Any], column: str) -> _Interval:
        whole = cls()
        for part in parts:
            whole = whole.within(_interval(part, column))
        return whole

    def within(self, other: _Interval) -> _Interval:
        firsts = [one for one in (self.first, other.first) if one is not None]
        lasts = [one for one in (self.last, other.last) if one is not None]
        return _Interval(max(firsts, default=None), min(lasts, default=None))

    def or_in(self, other: _Interval) -> _Interval:
        first = None if self.first is None or other.first is None else min(self.first, other.first)
        last = None if self.last is None or other.last is None else max(self.last, other.last)
        return _Interval(first, last)


def _interval(node: Any, column: str) -> _Interval:
    """Return the numbers of a column that a predicate can match; without bounds if it is not understood."""
    if not isinstance(node, dict):
        return _Interval()
    binary, function = node.get("BinaryExpr"), node.get("Function")
    if binary is not None:
        left, right, operator = binary["left"], binary["right"], binary["op"]
        if operator in ("Or", "LogicalOr"):
            return _interval(left, column).or_in(_interval(right, column))
        if operator in ("And", "LogicalAnd"):
            return _interval(left, column).within(_interval(right, column))
        if right == {"Column": column} and operator in _SWAPPED:
            left, right, operator = right, left, _SWAPPED[operator]
        return _compared(operator, _constants(right)) if left == {"Column": column} else _Interval()
    if function is not None and function["input"][:1] == [{"Column": column}]:
        return _of_function(function)
    return _Interval()


def _of_function(node: Any) -> _Interval:
    name, inputs = node["function"].get("Boolean"), node["input"][1:]
    kind = next(iter(name)) if isinstance(name, dict) else name
    numbers = [_constants(one) for one in inputs]
    if kind == "IsBetween" and len(numbers) == 2:  # its open bounds are taken as closed
        return _compared("GtEq", numbers[0]).within(_compared("LtEq", numbers[1]))
    if kind == "IsIn" and len(numbers) == 1:
        return _compared("Eq", numbers[0])
    return _Interval()


def _compared(operator: str, numbers: list[int] | None) -> _Interval:
    """Return the numbers that compare as true with one of `numbers`, which are whole or rounded down."""
    if not numbers:
        return _Interval()
    first, last = min(numbers), max(numbers)
    if operator in ("Gt", "GtEq"):
        return _Interval(first, None)
    if operator in ("Lt", "LtEq"):
        return _Interval(None, last)
    return _Interval(first, last) if operator == "Eq" else _Interval()


def _constants(node: Any) -> list[int] | None:
    """Return the values of an expression without columns: whole numbers, or microseconds. None for anything else."""
    expression = _expression(node)
    if expression is None or expression.meta.root_names():
        return None
    try:
        values = pl.select(expression).to_series()
        if isinstance(values.dtype, pl.List):
            values = values.explode()
        found = [_number(value) for value in values.to_list() if value is not None]
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None
    return found or None


def _number(value: object) -> int:
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
        return (aware - _EPOCH) // datetime.resolution
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value // 1)
    raise TypeError(type(value))
