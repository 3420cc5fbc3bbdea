"""An Iceberg table in a catalog of `pyiceberg`: our Parquet files are appended by one snapshot.

The summary of the snapshot has the run, and the next offsets of all partitions as JSON: `kafkafmt.offsets`. The newest
snapshot of ours among the ancestors of the current one is the state. So a table that was rolled back continues where it
was then. The same commit writes the offsets and the sequence number of the snapshot to properties of the table. These
are the state if that snapshot is older than all ancestors that have not expired.

A commit asserts that the current snapshot is the one whose offsets were compared. If another writer was faster, the
offsets are compared again. So no offset is exported twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kafkafmt.export.errors import ExportError, TableConflictError, one_line, table_conflict
from kafkafmt.export.iceberg_commit import committing
from kafkafmt.export.iceberg_fence import EXPORT_FENCE, MAINTENANCE_FENCE, fence_of, raise_fence
from kafkafmt.export.iceberg_names import shown_name
from kafkafmt.export.iceberg_offsets import OFFSETS, SEQUENCE_NUMBER, encoded_offsets, offsets_of
from kafkafmt.export.iceberg_schemas import arrow_schema, field_ids, iceberg_fields
from kafkafmt.export.partitioning import PartitionField
from kafkafmt.export.runs import PRIVATE_FOLDER, RunLease
from kafkafmt.export.schemas import merged_schema
from kafkafmt.export.stores import iceberg_settings
from kafkafmt.export.tables import APPEND, DataFile, TableCommit, TableState, TableTraits
from kafkafmt.export.upsert import latest_rows
from kafkafmt.export.upsert_columns import UpsertColumns
from kafkafmt.export.writing import below
from kafkafmt.storage import StoragePath, Storages, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import FileScanTask, Table

    from kafkafmt.export.layout import WriteOptions

RUN = "kafkafmt.run"
_MODE = "kafkafmt.mode"
_ATTEMPTS = 8


class IcebergTable:
    """A table in a catalog. See `kafkafmt.export.tables.TableCommitter`."""

    traits = TableTraits(widens=True)

    def __init__(self, identifier: tuple[str, ...], catalog: str | None, options: Mapping[str, str]) -> None:
        """identifier: namespaces and name. catalog: its name in the configuration of `pyiceberg`, None for the default.

        options: properties of the catalog, which replace those of the configuration. Raises ExportError.
        """
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise ExportError("an Iceberg table needs pyiceberg: pip install 'kafkafmt[lake]'") from None
        self._identifier = identifier
        self._run = ""
        self._lease: RunLease | None = None
        self._fence, self._fence_name = "", EXPORT_FENCE
        self._folder: StoragePath | None = None
        with self.errors():
            try:
                self._catalog: Catalog = load_catalog(catalog, **options)
            except ValueError as error:
                found = one_line(error)
                # The rest of this message names an option of pyiceberg's own command line.
                if found.startswith("URI missing"):
                    found = (
                        "expected a uri such as sqlite:////lake/catalog.db in .pyiceberg.yaml or in the options of"
                        " the destination (--destination-config uri=...), found none"
                    )
                raise ExportError(f"catalog {catalog or 'default'}: {found}") from None

    @property
    def location(self) -> str:
        return shown_name(self._identifier)

    @property
    def data_folder(self) -> StoragePath:
        assert self._folder is not None
        return self._folder / "data"

    def begin(self, run: str) -> None:
        self._run = run
        table = self.open()
        if table is not None:
            self._take(table)

    def begin_maintenance(self, run: str) -> None:
        """Exclude other maintenance until `end`, but no exports. Raises ExportError if there is no table."""
        self._run = run
        table = self.open()
        if table is None:
            namespace, *rest = self._identifier
            hint = ""
            if len(rest) > 1:
                hint = f"; a topic with dots in its name is quoted: {shown_name((namespace, '.'.join(rest)))}"
            raise ExportError(f"{self.location}: expected a table, found none{hint}")
        self._fence_name = MAINTENANCE_FENCE
        self._take(table, _located(table) / PRIVATE_FOLDER / "maintenance")

    def read_state(self, partitions: Collection[TopicPartition]) -> TableState:
        table = self.open()
        return TableState({}) if table is None else self.state_of(table)

    def prepare(
        self, schema: pa.Schema, partitioning: Sequence[PartitionField], state: TableState
    ) -> TableState:
        merged = merged_schema(state.schema, schema, self.location, widens=self.traits.widens)
        if state.schema is None:
            table = self._create(merged, partitioning, state.mode or APPEND)
            self._take(table)
        else:
            if self._lease is None:
                raise self._conflict("another one has created it")
            table = self.require()
            if merged != state.schema:
                with self.errors(), table.update_schema() as update:
                    update.union_by_name(iceberg_fields(merged))
        after = self.state_of(table)
        self._ensure_columns(state, after)
        return after

    def commit(self, commit: TableCommit, state: TableState) -> TableState:
        return self.replace(commit, state, ())

    def upsert(
        self, commit: TableCommit, state: TableState, columns: UpsertColumns, options: WriteOptions
    ) -> TableState:
        from kafkafmt.export.iceberg_rewriting import merged_files

        latest = latest_rows(commit.files, self.data_folder, columns)
        added: list[DataFile] = []
        removed: list[FileScanTask] = []
        if latest is not None:
            table = self.require()
            # The columns of the table, which may be more than those of the plan: rewritten rows keep all of them.
            current = self.state_of(table)
            self._ensure_columns(state, current)
            target = (self.data_folder, current, options)
            with self.errors():
                added, removed = merged_files(f"part-{commit.run}", table, latest, columns, target)
        try:
            after = self.replace(dataclasses.replace(commit, files=added), state, removed)
        except TableConflictError:
            self.abort(added)
            raise
        self.abort(commit.files)
        return after

    def replace(self, commit: TableCommit, state: TableState, removed: Sequence[FileScanTask]) -> TableState:
        """Add the files of a commit and its offsets, and remove files, in one snapshot. Raises TableConflictError.

        removed: data files of the table. If another writer has removed one of them, or rows of it, this is a conflict.
        """
        assert self._lease is not None
        self._lease.ensure_held()
        table = self.require()
        for attempt in range(_ATTEMPTS):
            current = self.state_of(table)
            if commit.files:
                self._ensure_columns(state, current)
                if current.partitioning != state.partitioning:
                    raise self._conflict("it has changed the partitioning")
            for one in commit.offsets:
                if current.offsets.get(one) != state.offsets.get(one):
                    raise self._conflict(
                        f"partition {one}: expected offset {state.offsets.get(one)}, "
                        f"found {current.offsets.get(one)}"
                    )
            if fence_of(table, self._fence_name) != self._fence:
                raise self._conflict("it has begun as this one was suspended")
            with self.errors():
                has_files = not removed or _has_files(table, removed)
            if not has_files:
                raise self._conflict("it has removed a file that is to be replaced, or rows of it")
            try:
                with self.errors():
                    self._commit_once(table, commit, current, removed)
                break
            except TableConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
                table = self.require()
        return self.state_of(self.require())

    def abort(self, files: Sequence[DataFile]) -> None:
        for file in files:
            path = below(self.data_folder, file.path)
            storage_of(path).delete(path)

    def end(self, *, is_known: bool = True) -> None:
        if self._lease is not None:
            self._lease.release(is_known=is_known)
            self._lease = None

    def open(self) -> Table | None:
        """Return the table with its current snapshot; None if there is none. Raises ExportError."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.errors():
            try:
                table = self._catalog.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        self._folder = _located(table)
        return table

    def require(self) -> Table:
        """Return the table with its current snapshot. Raises TableConflictError if there is none."""
        table = self.open()
        if table is None:
            raise TableConflictError(f"{self.location}: the table was deleted meanwhile")
        return table

    def _take(self, table: Table, lease_folder: StoragePath | None = None) -> None:
        folder = self._folder = _located(table)
        self._lease = lease = RunLease(lease_folder or folder, self._run)
        lease.take()
        self._fence = fence_of(self.require(), self._fence_name)
        if lease.dead:
            self._raise_fence()
            with self.errors():
                remove_files_of(lease.dead, self.require(), folder)
        for dead in lease.dead:
            lease.forget(dead)

    def _raise_fence(self) -> None:
        self._fence = self._run
        for attempt in range(_ATTEMPTS):
            try:
                with self.errors():
                    raise_fence(self.require, self._fence_name, self._run)
                return
            except TableConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise

    def _create(self, schema: pa.Schema, partitioning: Sequence[PartitionField], mode: str) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import parse_transform

        with self.errors():
            try:
                if len(self._identifier) > 1:
                    self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
                new = self._catalog.create_table_transaction(
                    self._identifier, schema, properties={_MODE: mode}
                )
                with new as transaction:
                    if partitioning:
                        with transaction.update_spec() as spec:
                            for one in partitioning:
                                spec.add_field(one.column, parse_transform(one.transform), one.name)
                return self._catalog.load_table(self._identifier)
            except TableAlreadyExistsError as error:
                raise self._conflict("another one has created it") from error
            except ValueError as error:
                if "No default path" in str(error):
                    raise ExportError(
                        f"{self.location}: expected a warehouse such as file:///lake among the catalog's properties,"
                        " found none"
                    ) from None
                raise

    def state_of(self, table: Table) -> TableState:
        """Return the state of a loaded table, without a look at the catalog."""
        if table.format_version < 2:
            raise ExportError(
                f"{self.location}: expected a table of format version 2 or later, found {table.format_version}"
            )
        return TableState(
            offsets_of(table),
            arrow_schema(table.schema()),
            self._partitioning_of(table),
            table.metadata.current_snapshot_id,
            table.properties.get(_MODE),
        )

    def _ensure_columns(self, before: TableState, after: TableState) -> None:
        """Raise TableConflictError if columns were renamed or removed: files have the old ones. Others may be new."""
        if before.schema is None or after.schema is None:
            return
        ids = field_ids(after.schema)
        for path, number in field_ids(before.schema).items():
            if ids.get(path) != number:
                raise self._conflict(f"it has renamed or removed the column {path!r}")

    def _partitioning_of(self, table: Table) -> tuple[PartitionField, ...]:
        known = ("identity", "year", "month", "day", "hour")
        columns = {one.field_id: one.name for one in table.schema().fields}
        fields = []
        for one in table.spec().fields:
            transform = str(one.transform)
            if transform not in known:
                raise ExportError(
                    f"{self.location}: partition field {one.name!r}: expected {', '.join(known)}, found {transform}"
                )
            if one.source_id not in columns:
                raise ExportError(
                    f"{self.location}: partition field {one.name!r}: expected a column of the table, found "
                    f"{table.schema().find_column_name(one.source_id)!r}, which is within a column"
                )
            # The type of `transform` has no name at run time.
            named: Any = transform
            fields.append(PartitionField(columns[one.source_id], named, one.name))
        return tuple(fields)

    def _commit_once(
        self, table: Table, commit: TableCommit, state: TableState, removed: Sequence[FileScanTask]
    ) -> None:
        """Commit, or raise CommitFailedException or ValidationException after the manifests were removed."""
        offsets = encoded_offsets({**state.offsets, **commit.offsets})
        properties = {OFFSETS: offsets, SEQUENCE_NUMBER: str(table.metadata.next_sequence_number())}
        with committing(
            table,
            self.require,
            commit.run,
            properties,
            summary={OFFSETS: offsets, RUN: commit.run},
            overwrites=bool(removed),
        ) as producer:
            for file in data_files(table, state.partitioning, commit.files):
                producer.append_data_file(file)
            for task in removed:
                producer.delete_data_file(task.file)

    def _conflict(self, what: str) -> TableConflictError:
        return table_conflict(self.location, what)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of pyiceberg and of its catalogs as ExportError, and a commit that came too late as a conflict.

        Errors that their callers handle stay as they are.
        """
        from pyiceberg import exceptions

        handled = (
            exceptions.NoSuchTableError,
            exceptions.NoSuchNamespaceError,
            exceptions.TableAlreadyExistsError,
        )
        try:
            yield
        except (exceptions.CommitFailedException, exceptions.ValidationException) as error:
            raise self._conflict(one_line(error)) from error
        except (*handled, OSError, ValueError, ExportError):
            raise
        except Exception as error:
            # pyiceberg has no base class of its errors, and passes on those of sqlalchemy and of requests.
            raise ExportError(f"{self.location}: {type(error).__name__}: {one_line(error)}") from error


def _has_files(table: Table, wanted: Sequence[FileScanTask]) -> bool:
    """Return whether a table has data files, with the files of deleted rows that they had."""

    def deletes(task: FileScanTask) -> set[str]:
        return {one.file_path for one in task.delete_files}

    present = {task.file.file_path: deletes(task) for task in table.scan().plan_files()}
    return all(present.get(task.file.file_path) == deletes(task) for task in wanted)


def data_files(
    table: Table, partitioning: Sequence[PartitionField], files: Sequence[DataFile]
) -> Iterator[IcebergFile]:
    """Yield the files as a manifest has them, with the statistics of their footers.

    partitioning: of the table, in its order: the table may have other names for the fields.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.partitioning import partition_record_value
    from pyiceberg.typedef import Record

    schema, spec = table.schema(), table.spec()
    plan = compute_statistics_plan(schema, table.properties)
    ids = parquet_path_to_id_mapping(schema)
    for name in _without_bounds(files):
        plan[ids[name]] = dataclasses.replace(plan[ids[name]], mode=MetricsMode(MetricModeTypes.NONE))
    base = table.location().rstrip("/") + "/data"
    for file in files:
        values = (
            partition_record_value(field, file.partition[one.name], schema)
            for field, one in zip(spec.fields, partitioning, strict=True)
        )
        found = data_file_statistics_from_parquet_metadata(file.footer, plan, ids)
        yield IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{base}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size_in_bytes,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **found.to_serialized_dict(),
        )


def _without_bounds(files: Sequence[DataFile]) -> set[str]:
    """Return the columns of Parquet that have no statistics, or times that Python does not have."""
    found = set()
    for file in files:
        for group in map(file.footer.row_group, range(file.footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if not (column.is_stats_set and _has_bounds(column.statistics)):
                    found.add(column.path_in_schema)
    return found


def _has_bounds(statistics: pq.Statistics) -> bool:
    try:
        return not statistics.has_min_max or None not in (statistics.min, statistics.max)
    except OverflowError:
        return False


def remove_files_of(runs: Iterable[str], table: Table, folder: StoragePath) -> None:
    """Remove data files and manifests of killed runs that no snapshot of the table has."""
    manifests = {
        one.manifest_path: one for snapshot in table.snapshots() for one in snapshot.manifests(table.io)
    }
    used = {
        one.data_file.file_path
        for found in manifests.values()
        for one in found.fetch_manifest_entry(table.io)
    }
    used |= {*manifests, *(one.manifest_list for one in table.snapshots())}
    names = {one.rpartition("/")[2] for one in used}
    marks = [mark for run in runs if _is_run(run) for mark in (run, str(uuid.UUID(run)))]
    for part in (folder / "data", folder / "metadata"):
        storage: Any = storage_of(part)
        with contextlib.suppress(FileNotFoundError):
            for path, _ in list(storage.walk(part)):
                name = path.rpartition("/")[2]
                if name not in names and any(mark in name for mark in marks):
                    storage.delete(below(part, path))


def _is_run(name: str) -> bool:
    """Return whether a name is that of a run, and not of a file that somebody else has put among theirs."""
    try:
        return uuid.UUID(name).hex == name
    except ValueError:
        return False


def _located(table: Table) -> StoragePath:
    """Return the folder of a table, with the settings of its catalog."""
    location = table.location().rstrip("/")
    properties = cast("Mapping[str, str]", table.io.properties)
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return Storages(iceberg_settings(location, properties)).locate(location)
