"""The plan of an export: which offsets of which topics go to which table, and in which tasks. Made by the driver."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from kafkafmt._util.sizes import MIB
from kafkafmt.decode.payloads import UndeterminedTypeError
from kafkafmt.export.checking import ensure_destination
from kafkafmt.export.errors import (
    ExportError,
    NoRecordsError,
    OffsetsGoneError,
    SchemaConflictError,
    TableConflictError,
    ensure_choice,
    ensure_count,
)
from kafkafmt.export.formats import open_table
from kafkafmt.export.layout import FileLayout, WriteOptions
from kafkafmt.export.partitioning import (
    PartitionField,
    ensure_partition_types,
    ensure_partitioned,
    parse_partitioning,
)
from kafkafmt.export.schemas import (
    ensure_same_names,
    flattened,
    is_flattened,
    merged_schema,
    scan_columns,
    table_schema,
)
from kafkafmt.export.tables import APPEND, UPSERT, TableCommit, UpsertingTable
from kafkafmt.export.tasks import ExportTask, joined
from kafkafmt.export.upsert import upsert_schema
from kafkafmt.export.upsert_columns import UpsertColumns
from kafkafmt.scanning.tasks import OffsetRange

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from kafkafmt.export.tables import DataFile, Destination, TableCommitter, TableState
    from kafkafmt.scanning.tasks import ScanTask
    from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

MODES = (APPEND, UPSERT)
ON_OFFSETS_GONE = ("fail", "continue")
# A task reads at least this, so that a small run writes few files.
_LEAST_TASK_BYTES = 16 * MIB
# A task reads at most this many times the target size, so that the work is divided among processes.
_MOST_FILES_A_TASK = 4


class ScanSource(Protocol):
    """What an export needs of a scan."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def is_whole(self) -> bool:
        """Whether the scan ends where its source does."""
        ...

    def present_ends(self) -> Mapping[TopicPartition, int]:
        """Return where the partitions end in the source now. One that is gone is left out."""
        ...

    @property
    def folders(self) -> Sequence[Path]:
        """The local folders that it reads."""
        ...

    def ensure_readable(self) -> None:
        """Raise KafkaFormatError if damage hides the end of a partition, so that `ranges` may lack records of it."""
        ...

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets that the scan reads, by partition. The ends are fixed at the first call."""
        ...

    def continuing(
        self, ranges: Mapping[TopicPartition, OffsetRange], known: pa.Schema, *, keeps_types: bool = False
    ) -> ScanSource:
        """Return the scan of these offsets alone. Types that are inferred have the fields of the columns `known`.

        keeps_types: types of schemas that ids of records select have them with their types, too.
        """
        ...

    def of_topic(self, topic: str) -> ScanSource:
        """Return the scan of one topic, with the schema of its own records."""
        ...

    def tasks(self, split_bytes: int) -> Sequence[ScanTask]: ...


@dataclass(frozen=True)
class ExportOptions:
    """How topics are exported.

    partition_by: of a new table: columns, and year, month, day or hour of timestamps, as "topic, day(timestamp)".
    flatten: whether each field of a decoded value becomes a column.
    on_offsets_gone: what to do if the source lacks the offset at which the table ends: fail, or continue at the next
        offset that the source has or gets.
    processes: the number of processes that run the tasks.
    mode: append; or upsert: the table has the latest row of each key, and records without a value remove it.
    write: how files are written.

    Raises ExportArgumentError, in one line, for invalid values, and TypeError for `processes` that is no integer.
    """

    partition_by: str | tuple[PartitionField, ...] = ()
    flatten: bool = True
    on_offsets_gone: Literal["fail", "continue"] = "fail"
    processes: int = 1
    mode: Literal["append", "upsert"] = "append"
    write: WriteOptions = field(default_factory=WriteOptions)

    def __post_init__(self) -> None:
        for name, allowed in (("mode", MODES), ("on_offsets_gone", ON_OFFSETS_GONE)):
            ensure_choice(name, getattr(self, name), allowed)
        ensure_count("processes", self.processes)
        _ = self.partition_fields

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """The fields of `partition_by`. Raises ExportArgumentError for text that is no partitioning."""
        given = self.partition_by
        return given if not isinstance(given, str) else parse_partitioning(given) if given else ()


@dataclass(frozen=True)
class ExportPlan:
    """The export of one table: what one run does. Its tasks may run in any processes, in any order.

    topic: None for a table of all topics. ranges: the offsets that the run exports, by partition; the ends become the
    state of the table. gone: offsets that the source no longer had. write: how files are written. upserts: of mode
    upsert, else None.
    """

    topic: str | None
    run: str
    table: TableCommitter
    state: TableState
    ranges: Mapping[TopicPartition, OffsetRange]
    tasks: Sequence[ExportTask]
    gone: Mapping[TopicPartition, OffsetRange]
    write: WriteOptions
    upserts: UpsertColumns | None = None

    def commit(self, files: Sequence[DataFile]) -> TableState:
        """Commit the files of all tasks, and let other exports begin.

        Raises TableConflictError, after the files were removed. After another error it is not known whether the files
        were committed: none is removed, and the next export of the table handles this run as a killed one.
        """
        is_known = False
        ends = {one: wanted.end for one, wanted in self.ranges.items()}
        ordered = sorted(files, key=lambda file: file.path)
        try:
            after = self._committed(TableCommit(self.run, ordered, ends))
            is_known = True
            return after
        except TableConflictError:
            self.table.abort(files)
            is_known = True
            raise
        finally:
            self.table.end(is_known=is_known)

    def _committed(self, commit: TableCommit) -> TableState:
        if not commit.files and all(
            self.state.offsets.get(one) == end for one, end in commit.offsets.items()
        ):
            return self.state
        if self.upserts is None:
            return self.table.commit(commit, self.state)
        assert isinstance(self.table, UpsertingTable)
        return self.table.upsert(commit, self.state, self.upserts, self.write)

    def abort(self, files: Sequence[DataFile], *, has_ended: bool = True) -> None:
        """Remove the files of tasks that have ended, and let other exports begin.

        has_ended: whether all tasks have. If not, the next export removes what they still write.
        """
        is_known = False
        try:
            self.table.abort(files)
            is_known = has_ended
        finally:
            self.table.end(is_known=is_known)


@dataclass(frozen=True)
class TablePreview:
    """What an export would do to a table: for --dry-run. columns: after the export; new: those that it adds."""

    topic: str | None
    location: str
    ranges: Mapping[TopicPartition, OffsetRange]
    columns: pa.Schema
    new: Sequence[str]
    size_in_bytes: int


def sources_of(
    scan: ScanSource, destination: Destination, options: ExportOptions
) -> Iterator[tuple[str | None, ScanSource]]:
    """Yield the part of a scan for each table, with its topic; None for a table of all topics.

    Raises ExportError, before the first one, for a destination that `ensure_destination` refuses.
    """
    ensure_destination(destination, options.mode, scan.folders)
    ranges = scan.ranges()
    if destination.one_table:
        yield None, scan
        return
    for topic in sorted({one.topic for one in ranges}):
        yield topic, scan.of_topic(topic)


def plan_table(
    topic: str | None, scan: ScanSource, destination: Destination, options: ExportOptions
) -> ExportPlan:
    """Plan the export of a table, whose lease this takes: `commit` or `abort` the plan.

    topic: None for a table of all topics. Raises TableConflictError if another export is running, NoRecordsError if
    nothing tells the columns of a new table, SchemaConflictError, OffsetsGoneError, ExportError, and what the scan
    raises.
    """
    run = uuid.uuid4().hex
    table = open_table(destination, topic)
    try:
        table.begin(run)
        state, rest, gone = _rest(table, scan, options)
        named = _named(topic, scan)
        scan, columns = _scan_of_rest(named, scan, rest, table, state, options)
        is_flat = is_flattened(scan.schema, flatten=options.flatten)
        fields = _partitioning(table, columns, state, options)
        upserts = _upserts(table, columns, state, options, is_flat=is_flat)
        if rest or state.schema is None:
            state = table.prepare(columns, fields, replace(state, mode=options.mode))
        assert state.schema is not None
        layout = FileLayout(
            table.data_folder,
            state.schema,
            state.partitioning,
            frozenset()
            if table.traits.has_partition_columns
            else frozenset(one.column for one in state.partitioning if one.transform == "identity"),
            is_flat,
            table.traits.has_hive_folders,
            table.traits.staged_suffix,
        )
        if upserts is not None:
            layout = FileLayout(table.data_folder, upsert_schema(state.schema), flattened=is_flat)
        tasks = [
            ExportTask(run, number, parts, layout, options.write)
            for number, parts in enumerate(_groups(scan, options) if rest else ())
        ]
    except BaseException:
        table.end()
        raise
    return ExportPlan(topic, run, table, state, rest, tasks, gone, options.write, upserts)


def preview_table(
    topic: str | None, scan: ScanSource, destination: Destination, options: ExportOptions
) -> TablePreview:
    """Return what an export of a table would do. Changes nothing. Raises as `plan_table`."""
    table = open_table(destination, topic)
    state, rest, _ = _rest(table, scan, options)
    named = _named(topic, scan)
    try:
        scan, columns = _scan_of_rest(named, scan, rest, table, state, options)
    except NoRecordsError:
        return TablePreview(topic, table.location, rest, scan_columns(None, flatten=options.flatten), (), 0)
    _partitioning(table, columns, state, options)
    _upserts(table, columns, state, options, is_flat=is_flattened(scan.schema, flatten=options.flatten))
    merged = merged_schema(state.schema, columns, table.location, widens=table.traits.widens)
    known = [] if state.schema is None else state.schema.names
    size = sum(part.size_in_bytes for part in scan.tasks(options.write.target_file_bytes)) if rest else 0
    return TablePreview(
        topic, table.location, rest, merged, [one for one in merged.names if one not in known], size
    )


def _rest(
    table: TableCommitter, scan: ScanSource, options: ExportOptions
) -> tuple[TableState, dict[TopicPartition, OffsetRange], dict[TopicPartition, OffsetRange]]:
    """Return the state of the table, the offsets that it lacks, and those of them that the source no longer has."""
    ranges = scan.ranges()
    scan.ensure_readable()
    state = table.read_state(ranges)
    rest, gone, beyond = {}, {}, {}
    for one, (start, end) in sorted(ranges.items()):
        following = state.offsets.get(one)
        if following is None:
            rest[one] = OffsetRange(start, end)
        elif following < start:
            if options.on_offsets_gone == "fail":
                raise OffsetsGoneError(
                    f"{table.location}: partition {one}: expected offset {following}, with which the table continues, "
                    f"found {start} as the first one: the records between are not in the source, or are before the "
                    "time at which the scan begins"
                )
            gone[one] = OffsetRange(following, start)
            rest[one] = OffsetRange(start, end)
        elif following < end:
            rest[one] = OffsetRange(following, end)
        elif following > end:
            beyond[one] = following
    if beyond and options.on_offsets_gone == "fail" and scan.is_whole:
        _ensure_there(table, scan, beyond)
    return state, rest, gone


def _ensure_there(table: TableCommitter, scan: ScanSource, following: Mapping[TopicPartition, int]) -> None:
    """Raise OffsetsGoneError if the source ends before offsets at which the table continues.

    The ends of the scan were fixed before the state of the table was read. Another export may have committed later
    records in between. So the present ends of the source count, which are read after the state.
    """
    ends = scan.present_ends()
    for one, offset in following.items():
        end = ends.get(one, scan.ranges()[one].end)
        if offset > end:
            raise OffsetsGoneError(
                f"{table.location}: partition {one}: expected offset {offset}, with which the table continues, "
                f"found {end} as the end: the topic was created anew or truncated, the source is an older copy, or "
                "the table has records of a transaction that is still open: isolation read_uncommitted continues it"
            )


def _named(topic: str | None, scan: ScanSource) -> str:
    """Return the topics of a table, for messages."""
    return topic if topic is not None else ", ".join(sorted({one.topic for one in scan.ranges()}))


def _scan_of_rest(
    named: str,
    scan: ScanSource,
    rest: Mapping[TopicPartition, OffsetRange],
    table: TableCommitter,
    state: TableState,
    options: ExportOptions,
) -> tuple[ScanSource, pa.Schema]:
    """Return the scan of the offsets that the table lacks, and its columns in a table.

    Types that are inferred have the columns of the table. A schema whose type the table cannot get is read with the
    types of the table. Raises NoRecordsError if a new table has no records to infer types from.
    """
    where, known = table.location, scan_columns(state.schema, flatten=options.flatten)
    found = scan.continuing(rest, known)
    try:
        _ = found.schema
    except UndeterminedTypeError as error:
        if state.schema is None:
            raise NoRecordsError(f"{where}: {error}", where) from error
        raise
    columns = _columns(named, found, table, state, options)
    try:
        merged_schema(state.schema, columns, where, widens=table.traits.widens)
    except SchemaConflictError as error:
        kept = scan.continuing(rest, known, keeps_types=True)
        same = _columns(named, kept, table, state, options)
        if same == columns:  # no ids select the types: they are wanted
            return found, columns
        _LOG.warning("the table keeps its types, and values that they cannot hold are errors: %s", error)
        return kept, same
    return found, columns


def _columns(
    named: str, scan: ScanSource, table: TableCommitter, state: TableState, options: ExportOptions
) -> pa.Schema:
    columns = scan.schema
    is_flat = is_flattened(columns, flatten=options.flatten)
    if state.schema is not None:
        ensure_same_names(state.schema, columns, table.location, is_flat=is_flat)
    if is_flat:
        columns = flattened(columns, named, is_new=state.schema is None)
    return table_schema(columns, named, has_time=table.traits.has_time)


def _partitioning(
    table: TableCommitter, columns: pa.Schema, state: TableState, options: ExportOptions
) -> tuple[PartitionField, ...]:
    """Return the partitioning of the table. Raises ExportError if another one is asked for, or it is not possible."""
    wanted = options.partition_fields
    if state.schema is None:
        ensure_partitioned(columns, wanted, table.location)
        ensure_partition_types(columns, wanted, table.location)
        return wanted
    if wanted and wanted != state.partitioning:
        asked = ", ".join(map(str, wanted))
        found = (
            f"with {', '.join(map(str, state.partitioning))}" if state.partitioning else "without partitions"
        )
        raise ExportError(f"{table.location}: expected partitions by {asked}, found a table {found}")
    merged = merged_schema(state.schema, columns, table.location, widens=table.traits.widens)
    ensure_partitioned(merged, state.partitioning, table.location)
    return state.partitioning


def _upserts(
    table: TableCommitter, columns: pa.Schema, state: TableState, options: ExportOptions, *, is_flat: bool
) -> UpsertColumns | None:
    """Return the columns of mode upsert; None for mode append.

    Raises ExportError if the table has another mode: then it has, or would get, several rows of a key.
    """
    if state.mode not in (None, options.mode):
        raise ExportError(
            f"{table.location}: expected mode {state.mode}, with which the table was created, found {options.mode}"
        )
    if options.mode == APPEND:
        return None
    upserts = UpsertColumns(is_flat)
    upserts.ensure(columns, table.location)
    return upserts


def _groups(scan: ScanSource, options: ExportOptions) -> list[list[ScanTask]]:
    target = options.write.target_file_bytes
    parts = scan.tasks(target)
    total = sum(part.size_in_bytes for part in parts)
    share = -(-total // max(options.processes, 1))
    most = min(max(share, min(target, _LEAST_TASK_BYTES)), _MOST_FILES_A_TASK * target)
    if parts and max(part.size_in_bytes for part in parts) > most:
        parts = scan.tasks(most)
    # Parts are not cut exactly. A task with a little more is better than a last one that runs alone.
    return joined(parts, most + most // 8)


def with_memory(options: ExportOptions, limit_bytes: int) -> ExportOptions:
    """Return the options with row groups and kept rows that fit into a limit of the memory of all processes."""
    share = limit_bytes // options.processes
    group = min(max(share // 8, MIB), options.write.row_group_bytes)
    return replace(options, write=replace(options.write, row_group_bytes=group, buffered_bytes=2 * group))
