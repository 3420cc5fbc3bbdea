from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Literal, overload

from typing_extensions import Buffer, disjoint_base

from _kafkafmt.columns.column_rows import ColumnRows
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.open_batch import OpenBatch
from _kafkafmt.streams.merge import MergedRecords

@disjoint_base
class RecordEncoder(OpenBatch):
    def append(
        self,
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str | bytes, Buffer | None]] = (),
    ) -> None: ...
    def append_with_offset(
        self,
        offset: int,
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str | bytes, Buffer | None]] = (),
    ) -> None: ...
    def try_append(
        self,
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Collection[tuple[str | bytes, Buffer | None]] = (),
    ) -> int: ...
    @property
    def missing_bytes(self) -> int: ...
    def has_room_for(
        self,
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Collection[tuple[str | bytes, Buffer | None]] = (),
    ) -> bool: ...
    def _append_columns(self, parts: list[ColumnRows]) -> None: ...
    def fill(self, columns: ColumnRows, first: int, stop: int) -> int: ...
    def fill_located(self, located: LocatedRecords, first: int, stop: int) -> int: ...
    def fill_merged(self, merged: MergedRecords, first: int) -> int: ...
    def size_upper_bound(self, located: LocatedRecords, number: int) -> int: ...
    @overload
    def _build(
        self, compress: Callable[[memoryview], Buffer] | None, is_writable: Literal[False] = False
    ) -> bytes: ...
    @overload
    def _build(
        self, compress: Callable[[memoryview], Buffer] | None, is_writable: Literal[True]
    ) -> bytearray: ...
