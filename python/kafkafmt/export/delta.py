"""A Delta table, written by `deltalake`: our Parquet files are added by a transaction.

The next offset of a partition is the version of the transaction identifier `kafkafmt:<topic>-<partition>`, which Delta
keeps for streaming writers: in checkpoints, too, and through compaction, vacuum and clean-up of the log. Two
transactions that set the same identifier conflict, so no offset is exported twice.

Each run sets the identifier `kafkafmt:fence`, too. A run that finds dead ones raises it before it removes their files.
So a run that was only suspended, and taken for dead, cannot commit files that are gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from kafkafmt.export.errors import ExportError, TableConflictError, one_line, table_conflict
from kafkafmt.export.partitioning import PartitionField
from kafkafmt.export.runs import RunLease
from kafkafmt.export.schemas import DELETED, merged_schema
from kafkafmt.export.stores import delta_options
from kafkafmt.export.tables import APPEND, DataFile, TableCommit, TableState, TableTraits
from kafkafmt.export.upsert import latest_rows
from kafkafmt.export.upsert_columns import UpsertColumns
from kafkafmt.export.writing import below, partition_texts
from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from deltalake import CommitProperties, WriterProperties
    from deltalake import DeltaTable as _Table

    from kafkafmt.export.layout import WriteOptions

_IDENTIFIER = "kafkafmt:{}-{}"
_FENCE = "kafkafmt:fence"
_RUN = "kafkafmt.run"
_PARTITIONING = "kafkafmt.partitionBy"
_MODE = "kafkafmt.mode"
_TARGET_SIZE = "delta.targetFileSize"
_COMPRESSIONS: Mapping[str, Any] = {
    "zstd": "ZSTD",
    "snappy": "SNAPPY",
    "lz4": "LZ4_RAW",
    "gzip": "GZIP",
    "none": "UNCOMPRESSED",
}
_COMMITS_LOOKED_AT = 1000
_CLOCKS_DIFFER_SECONDS = 86_400.0
# The longest text that is a bound.
_MOST_TEXT = 32
_MILLISECOND = timedelta(milliseconds=1)


class DeltaTable:
    """A Delta table in a folder. See `kafkafmt.export.tables.TableCommitter`."""

    traits = TableTraits(has_time=False, has_partition_columns=False)

    def __init__(self, folder: StoragePath, options: Mapping[str, str]) -> None:
        """options: `storage_options` of `deltalake`, beside those of the URI."""
        self._folder = self.data_folder = folder
        self._options = {**delta_options(folder), **options}
        self._uri = str(folder.absolute()) if isinstance(folder, Path) else folder.uri
        self._lease: RunLease | None = None
        self._fence = 0
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise ExportError("a Delta table needs deltalake: pip install 'kafkafmt[lake]'") from None

    @property
    def location(self) -> str:
        return str(self._folder)

    def begin(self, run: str) -> None:
        self._lease = lease = RunLease(self._folder, run)
        lease.take()
        table = self._open()
        self._fence = 0 if table is None else self._fence_of(table)
        if lease.dead:
            if table is not None:
                self._raise_fence(table)
            self._remove_files_of(lease.dead)
        for dead in lease.dead:
            lease.forget(dead)

    def read_state(self, partitions: Collection[TopicPartition]) -> TableState:
        table = self._open()
        if table is None:
            return TableState({}, version=None)
        offsets = {}
        for one in partitions:
            found = self._next_offset(table, one)
            if found is not None:
                offsets[one] = found
        metadata = table.metadata()
        settings = metadata.configuration
        text = settings.get(_PARTITIONING)
        if text is not None:
            fields = tuple(PartitionField(*one) for one in json.loads(text))
        else:
            fields = tuple(map(PartitionField, metadata.partition_columns))
        derived = {one.name for one in fields if one.transform != "identity"}
        schema = pa.schema([one for one in pa.schema(table.schema()) if one.name not in derived])
        return TableState(offsets, schema, fields, table.version(), settings.get(_MODE))

    def prepare(
        self, schema: pa.Schema, partitioning: Sequence[PartitionField], state: TableState
    ) -> TableState:
        from deltalake import DeltaTable as Table
        from deltalake import Schema

        merged = merged_schema(state.schema, schema, self.location, widens=self.traits.widens)
        if state.schema is None:
            derived = [
                pa.field(one.name, _column_type(one)) for one in partitioning if one.transform != "identity"
            ]
            text = json.dumps([[one.column, one.transform] for one in partitioning])
            with self._errors():
                Table.create(
                    self._uri,
                    Schema.from_arrow(pa.schema([*merged, *derived])),
                    mode="error",
                    partition_by=[one.name for one in partitioning],
                    configuration={_PARTITIONING: text, _MODE: state.mode or APPEND},
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
        elif merged != state.schema:
            self._add_columns(merged)
        return dataclasses.replace(
            state, schema=merged, partitioning=tuple(partitioning), version=self._require().version()
        )

    def commit(self, commit: TableCommit, state: TableState) -> TableState:
        now = int(datetime.now(timezone.utc).timestamp() * 1000)
        actions = [_add_action(file, state, now) for file in commit.files]

        def append(table: _Table, properties: CommitProperties) -> None:
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)

        return self._committed(commit, state, append)

    def upsert(
        self, commit: TableCommit, state: TableState, columns: UpsertColumns, options: WriteOptions
    ) -> TableState:
        latest = latest_rows(commit.files, self._folder, columns)
        if latest is None:
            return self.commit(dataclasses.replace(commit, files=()), state)
        for one in state.partitioning:
            if one.transform != "identity":
                texts = partition_texts(latest.column(one.column).combine_chunks(), one)
                latest = latest.append_column(one.name, texts.cast(_column_type(one)))
        same = " AND ".join(f"t.`{columns(name)}` = s.`{columns(name)}`" for name in ("topic", "key"))
        partition, timestamp = columns("partition"), columns("timestamp")
        newer = f"(s.`{partition}` = t.`{partition}` OR s.`{timestamp}` >= t.`{timestamp}`)"
        values = {f"`{name}`": f"s.`{name}`" for name in latest.column_names if name != DELETED}
        self._set_target_size(options.target_file_bytes)
        written = _writer_properties(latest, options)

        def merge(table: _Table, properties: CommitProperties) -> None:
            before = table.version()
            (
                table.merge(latest, same, "s", "t", writer_properties=written, commit_properties=properties)
                .when_matched_delete(f"s.`{DELETED}` AND {newer}")
                .when_matched_update(values, newer)
                .when_not_matched_insert(values, f"NOT s.`{DELETED}`")
                .execute()
            )
            if table.version() == before:  # deltalake commits no merge that changes no row, nor its offsets
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

        after = self._committed(commit, state, merge)
        self.abort(commit.files)
        return after

    def compact(self, target_file_bytes: int) -> tuple[int, int]:
        """Join small files, and return the numbers of files that were removed and added. Exports may run meanwhile.

        Raises ExportError if there is no table, TableConflictError if another writer has removed one of the files.
        """
        table = self._open()
        if table is None:
            raise ExportError(f"{self.location}: expected a table, found none")
        with self._errors():
            found = table.optimize.compact(target_size=target_file_bytes)
        return int(found["numFilesRemoved"]), int(found["numFilesAdded"])

    def abort(self, files: Sequence[DataFile]) -> None:
        for file in files:
            path = below(self._folder, file.path)
            storage_of(path).delete(path)

    def end(self, *, is_known: bool = True) -> None:
        if self._lease is not None:
            self._lease.release(is_known=is_known)
            self._lease = None

    def _committed(
        self, commit: TableCommit, state: TableState, change: Callable[[_Table, CommitProperties], None]
    ) -> TableState:
        """Change the table and commit the offsets, in one step. Raises TableConflictError if nothing was committed."""
        from deltalake import CommitProperties, Transaction

        assert self._lease is not None
        self._lease.ensure_held()
        table = self._require()
        before = table.version()
        self._ensure_offsets(table, commit, state)
        transactions = [
            Transaction(_FENCE, self._fence),
            *(
                Transaction(_IDENTIFIER.format(*one), offset)
                for one, offset in sorted(commit.offsets.items())
            ),
        ]
        properties = CommitProperties(custom_metadata={_RUN: commit.run}, app_transactions=transactions)
        try:
            with self._errors():
                change(table, properties)
        except TableConflictError as error:
            # If the answer of a store is lost, the request is repeated, and conflicts with its own commit.
            after = self._require()
            newer = self._history(after, after.version() - before) if after.version() > before else []
            if not newer:
                raise ExportError(
                    f"{self.location}: it is not known whether it was committed: {error}"
                ) from error
            if all(one.get(_RUN) != commit.run for one in newer):
                raise
        offsets = {**state.offsets, **commit.offsets}
        return dataclasses.replace(state, offsets=offsets, version=self._require().version())

    def _fence_of(self, table: _Table) -> int:
        with self._errors():
            return table.transaction_version(_FENCE) or 0

    def _raise_fence(self, table: _Table) -> None:
        """Let the commits of earlier runs fail from now on. Raises TableConflictError if another run does so, too."""
        from deltalake import CommitProperties, Transaction

        self._fence += 1
        properties = CommitProperties(app_transactions=[Transaction(_FENCE, self._fence)])
        with self._errors():
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def _ensure_offsets(self, table: _Table, commit: TableCommit, state: TableState) -> None:
        if self._fence_of(table) != self._fence:
            raise self._conflict("another export has begun, as this one was suspended")
        for one in commit.offsets:
            found = self._next_offset(table, one)
            if found != state.offsets.get(one):
                raise self._conflict(
                    f"partition {one}: expected offset {state.offsets.get(one)}, found {found}"
                )

    def _next_offset(self, table: _Table, one: TopicPartition) -> int | None:
        with self._errors():
            return table.transaction_version(_IDENTIFIER.format(*one))

    def _history(self, table: _Table, limit: int) -> list[dict[str, Any]]:
        with self._errors():
            return table.history(limit)

    def _set_target_size(self, target_file_bytes: int) -> None:
        """Set the property of the table from which a merge takes the size of files."""
        table, wanted = self._require(), {_TARGET_SIZE: str(target_file_bytes)}
        if table.metadata().configuration.get(_TARGET_SIZE) != wanted[_TARGET_SIZE]:
            with self._errors():
                table.alter.set_table_properties(wanted)

    def _open(self) -> _Table | None:
        from deltalake import DeltaTable as Table
        from deltalake.exceptions import TableNotFoundError

        if isinstance(self._folder, Path) and not self._folder.is_dir():
            return None
        with self._errors():
            try:
                return Table(self._uri, storage_options=self._options)
            except TableNotFoundError:
                return None

    def _require(self) -> _Table:
        table = self._open()
        if table is None:
            raise TableConflictError(f"{self.location}: the table was deleted meanwhile")
        return table

    def _conflict(self, what: str) -> TableConflictError:
        return table_conflict(self.location, what)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except CommitFailedError as error:
            raise self._conflict(one_line(error)) from error
        except DeltaError as error:
            raise ExportError(f"{self.location}: {one_line(error)}") from error

    def _add_columns(self, merged: pa.Schema) -> None:
        """Add the columns, and the fields within columns, that the table lacks: by a write without rows."""
        from deltalake import write_deltalake

        table = self._require()
        new = {one.name: one for one in merged}
        fields = [new.pop(one.name, one) for one in pa.schema(table.schema())]
        rows = pa.schema([*fields, *new.values()]).empty_table()
        with self._errors():
            write_deltalake(table, rows, mode="append", schema_mode="merge")

    def _remove_files_of(self, runs: Mapping[str, float]) -> None:
        """Remove the files of killed runs that did not commit. If the log is too short to tell, they stay.

        runs: with the times in seconds at which they began.
        """
        table = self._open()
        history = [] if table is None else self._history(table, _COMMITS_LOOKED_AT)
        committed = {one.get(_RUN) for one in history}
        since = -math.inf if table is None else _complete_since(history)
        left = tuple(f"part-{run}-" for run, began in runs.items() if began > since and run not in committed)
        # Files that were merged never become those of the table.
        left += tuple(f"merged-{run}-" for run in runs)
        storage: Any = storage_of(self._folder)
        for name, _ in storage.walk(self._folder):
            if name.rpartition("/")[2].startswith(left):
                path = below(self._folder, name)
                storage.delete(path)


def _complete_since(history: Sequence[Mapping[str, Any]]) -> float:
    """Return the time in seconds, on any clock, since when a history, newest first, has all commits."""
    if not history:
        return math.inf
    oldest = history[-1]
    if oldest.get("version") == 0:
        return -math.inf
    return float(oldest.get("timestamp", math.inf)) / 1000 + _CLOCKS_DIFFER_SECONDS


def _writer_properties(rows: pa.Table, options: WriteOptions) -> WriterProperties:
    """Return how `deltalake` writes the files of a merge. Its row groups are limited by rows: by the size of these."""
    from deltalake import WriterProperties

    most = options.group_bytes * rows.num_rows // max(rows.nbytes, 1)
    return WriterProperties(max_row_group_size=max(most, 1), compression=_COMPRESSIONS[options.compression])


def _column_type(one: PartitionField) -> pa.DataType:
    return {"year": pa.int32(), "day": pa.date32()}.get(one.transform, pa.string())


def _add_action(file: DataFile, state: TableState, now_ms: int) -> Any:
    from deltalake.transaction import AddAction

    values = {one.name: _partition_text(one, file) for one in state.partitioning}
    return AddAction(
        quote(file.path, safe="/=-_.~"),
        file.size_in_bytes,
        values,
        now_ms,
        True,
        json.dumps(statistics(file)),
    )


def _partition_text(one: PartitionField, file: DataFile) -> str | None:
    text = one.text(file.partition[one.name])
    return text.lower() if text in ("True", "False") and file.partition[one.name] in (True, False) else text


def statistics(file: DataFile) -> dict[str, Any]:
    """Return Delta's statistics of a file: of the columns that are not nested, as far as Parquet has them.

    The bounds of times are widened to whole milliseconds: Delta's writers have these, and readers may cut others.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for number in range(file.footer.num_row_groups):
        group = file.footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None:
                continue
            if found.has_null_count:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.num_values:
                    without.add(name)
                continue
            try:
                low, high = found.min, found.max
            except OverflowError:  # Python has no times beyond the year 9999
                without.add(name)
                continue
            least[name] = min(least.get(name, low), low)
            most[name] = max(most.get(name, high), high)
    bounds = {
        name: (_bound(_floor(least[name])), _bound(_ceiling(most[name])))
        for name in least
        if name not in without
    }
    return {
        "numRecords": file.rows,
        "minValues": {name: low for name, (low, high) in bounds.items() if None not in (low, high)},
        "maxValues": {name: high for name, (low, high) in bounds.items() if None not in (low, high)},
        "nullCount": nulls,
    }


def _floor(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def _ceiling(value: Any) -> Any:
    cut = _floor(value)
    if cut == value:
        return value
    return cut + _MILLISECOND if datetime.max.replace(tzinfo=cut.tzinfo) - cut > _MILLISECOND else None


def _bound(value: Any) -> Any:
    """Return a bound as JSON; None if it cannot be one."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else None
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None
