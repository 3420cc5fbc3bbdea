"""A scan as a dataset of pyarrow: its readers, such as DuckDB, give it the columns and the filter of a query.

Expressions of pyarrow cannot be looked into. But a dataset can tell whether a filter can match rows with a guarantee,
such as `offset < 1000`: Arrow simplifies the filter with it. So bounds are found by bisection. The filter is applied to
each batch that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
from pyarrow.fs import LocalFileSystem

from kafkafmt.columns.read import arrow_schema
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.row_bounds import FrameSource, RowBounds
from kafkafmt.types import TopicPartition

_END = 2**63 - 1
_MAX_MILLISECONDS = _END // 1000
# Batches that the scanner reads ahead. By default, it would read 16.
_READAHEAD = 1


class ScanDataset(pds.Dataset):  # type: ignore[misc]
    """The rows of a scan as a `pyarrow.dataset.Dataset` without fragments. `Scan.to_dataset` makes it.

    A filter on topic, partition and offset keeps other records from being read, and a filter on timestamp those before
    the first one that it matches. Columns that are not needed are not materialised.
    """

    def __init__(self, scan: FrameSource) -> None:
        self._scan = scan

    def __reduce__(self) -> tuple[type[ScanDataset], tuple[FrameSource]]:
        return ScanDataset, (self._scan,)

    def __repr__(self) -> str:
        return f"ScanDataset({self._scan!r})"

    @property
    def schema(self) -> pa.Schema:
        """The schema of the scan."""
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        batch_size: int | None = None,
        **options: Any,
    ) -> pds.Scanner:
        """Return a scanner, as `pyarrow.dataset.Dataset.scanner`. Options of files have no effect."""
        schema = self.schema
        scan = self._scan if filter is None else self._scan.matching(row_bounds(filter, schema))
        needed = _needed(columns, filter, schema)
        sizes = {} if batch_size is None else {"batch_size": batch_size}
        return pds.Scanner.from_batches(
            scan.to_batches(needed),
            schema=pa.schema([schema.field(name) for name in needed]),
            columns=columns,
            filter=filter,
            batch_readahead=_READAHEAD,
            use_threads=options.get("use_threads", True),
            memory_pool=options.get("memory_pool"),
            **sizes,
        )

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[NoReturn]:  # noqa: A002
        """Raise ScanError: tasks of the scan read its parts."""
        raise ScanError("a scan has no fragments: Scan.tasks gives its parts")

    def _has_no_files(self, *arguments: object, **named: object) -> NoReturn:
        raise ScanError("a scan has no files: use scanner, to_table or to_batches")

    filter = replace_schema = sort_by = join = join_asof = _has_no_files

    @property
    def partition_expression(self) -> pc.Expression:
        """What is known of all rows: nothing."""
        return pc.scalar(True)


def _needed(
    columns: Sequence[str] | Mapping[str, pc.Expression] | None,
    wanted: pc.Expression | None,
    schema: pa.Schema,
) -> list[str]:
    """Return the columns that a query needs, one at least, by trying what happens without each."""
    named = schema.names if columns is None else [] if isinstance(columns, Mapping) else list(columns)
    expressions = [] if wanted is None else [wanted]
    expressions += columns.values() if isinstance(columns, Mapping) else []
    needed = [name for name in schema.names if name in named or not _binds_without(name, expressions, schema)]
    unknown = [name for name in named if name not in schema.names]
    if unknown:
        raise ScanError(f"no column {unknown[0]!r} in the scan: found {', '.join(schema.names)}")
    return needed or ["offset" if "offset" in schema.names else schema.names[0]]


def _binds_without(name: str, expressions: Sequence[pc.Expression], schema: pa.Schema) -> bool:
    others = pds.InMemoryDataset(schema.remove(schema.get_field_index(name)).empty_table())
    try:
        others.scanner(columns={str(number): one for number, one in enumerate(expressions)})
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return False
    return True


def row_bounds(wanted: pc.Expression, schema: pa.Schema) -> RowBounds:
    """Return bounds of the rows with a schema that a filter matches."""
    for field in arrow_schema(["topic", "partition", "offset", "timestamp"]):
        schema = schema if field.name in schema.names else schema.append(field)
    can_match = partial(_can_match, wanted, schema)
    offset, timestamp = pc.field("offset"), pc.field("timestamp")
    first_offset = _last(lambda bound: not can_match(offset < bound), _END)
    end_offset = _END - _last(lambda back: not can_match(offset >= _END - back), _END)
    first_time = _last(lambda bound: not can_match(timestamp < _time(bound)), _MAX_MILLISECONDS)
    return RowBounds(
        partial(_can_match_partition, can_match),
        (first_offset or None, None if end_offset == _END else end_offset),
        first_time or None,
    )


def _can_match_partition(can_match: Callable[[pc.Expression], bool], one: TopicPartition) -> bool:
    return can_match((pc.field("topic") == one.topic) & (pc.field("partition") == one.partition))


def _can_match(wanted: pc.Expression, schema: pa.Schema, guarantee: pc.Expression) -> bool:
    """Return False if a filter matches no row for which the guarantee is true."""
    files, layout = LocalFileSystem(), pds.IpcFileFormat()
    fragment = layout.make_fragment("", files, partition_expression=guarantee)
    known = pds.FileSystemDataset([fragment], schema, layout, files)
    return next(known.get_fragments(filter=wanted), None) is not None


def _time(milliseconds: int) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000, pa.timestamp("us", "UTC"))


def _last(is_so: Callable[[int], bool], most: int) -> int:
    """Return the greatest number up to `most` for which a condition is true, or 0. It is true up to some number."""
    if not is_so(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_so(middle) else (low, middle - 1)
    return low
