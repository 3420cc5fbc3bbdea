"""What the engine and the formats of tables share: the state of a table, its data files, and the committer.

An export of a table has these steps, all but the fourth in one process:

1. `begin`: exclude other exports of the table, and remove what killed ones have left.
2. `read_state`: the next offset of each partition, and the columns.
3. `prepare`: create the table, or add the columns that are new.
4. Tasks write data files below `data_folder`. No reader of the table sees them.
5. `commit`: the files become rows of the table, and the offsets its state, in one step. Or `abort`: they are removed.

A process may be killed at any point. Until `commit` has taken effect, the table has the old rows and the old offsets;
then it has the new ones. So the next export continues exactly where the table ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kafkafmt.export.errors import ExportArgumentError, ensure_choice

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kafkafmt.export.layout import WriteOptions
    from kafkafmt.export.partitioning import PartitionField, PartitionValue
    from kafkafmt.export.upsert_columns import UpsertColumns
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

APPEND, UPSERT = "append", "upsert"
FORMATS = ("parquet", "delta", "iceberg")


@dataclass(frozen=True)
class DataFile:
    """A complete and durable Parquet file that a task has written.

    path: relative to the `data_folder` of the committer, with `/`. partition: by name of the partition field; the value
    of a time transform is Iceberg's ordinal: years, months, days or hours since the epoch. footer: the metadata of the
    file, with the statistics of its columns. undecoded: keys and values that could not be decoded. It can be pickled.
    """

    path: str
    rows: int
    size_in_bytes: int
    partition: Mapping[str, PartitionValue]
    footer: pq.FileMetaData = field(repr=False, compare=False)
    undecoded: int = 0


@dataclass(frozen=True)
class TableState:
    """The state of a table.

    offsets: the next offset to export, by partition of the topic. schema: the columns; None if there is no table yet.
    Data files are written with exactly this schema, with the metadata of its fields (the field ids of Iceberg).
    partitioning: in order. version: identifies the state for `commit`; its meaning is the format's. mode: append or
    upsert, as the table was created; None if it does not tell.
    """

    offsets: Mapping[TopicPartition, int]
    schema: pa.Schema | None = None
    partitioning: tuple[PartitionField, ...] = ()
    version: int | str | None = None
    mode: str | None = None


@dataclass(frozen=True)
class TableCommit:
    """What a run has done to a table: its files, and the next offsets of all partitions that it has read to an end.

    run: the name of the run, which is part of the names of all of its files.
    """

    run: str
    files: Sequence[DataFile]
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class TableTraits:
    """What distinguishes the data files of a format.

    has_time: a column can have a time of day. has_partition_columns: data files have the columns of identity partition
    fields. has_hive_folders: readers take the values of partitions from the names of folders, as `country=CH`.
    staged_suffix: what the names of data files end with until they are committed; empty if nobody finds them by their
    names. widens: a column can get a wider type.
    """

    has_time: bool = True
    has_partition_columns: bool = True
    has_hive_folders: bool = False
    staged_suffix: str = ""
    widens: bool = False


class TableCommitter(Protocol):
    """One table of a format, for one run."""

    @property
    def location(self) -> str:
        """The table, for messages."""
        ...

    @property
    def data_folder(self) -> StoragePath:
        """The folder that the paths of data files are relative to. Known after `prepare`."""
        ...

    @property
    def traits(self) -> TableTraits:
        """What distinguishes the data files of the format."""
        ...

    def begin(self, run: str) -> None:
        """Exclude other exports until `end`, and remove the files of killed runs. Nothing else is removed.

        Raises TableConflictError if another export of the table is running, and OSError.
        """
        ...

    def read_state(self, partitions: Collection[TopicPartition]) -> TableState:
        """Return the state of the table, with the offsets of at least those of the given partitions that it knows.

        Other writers of the table must not lose the offsets: compaction, clean-up of its log, expiry of snapshots.
        """
        ...

    def prepare(
        self, schema: pa.Schema, partitioning: Sequence[PartitionField], state: TableState
    ) -> TableState:
        """Create the table, or add columns and widen types, and return the new state with the schema of its files.

        A new table gets the mode of `state`.

        Raises SchemaConflictError, before anything is changed, for a type that the table cannot hold; ExportError for
        another partitioning than that of the table; TableConflictError if the state is no longer that of the table.
        """
        ...

    def commit(self, commit: TableCommit, state: TableState) -> TableState:
        """Make the files visible and the offsets the state of the table, in one step, and return the new state.

        Without files only the offsets change. Raises TableConflictError, with nothing committed, if the table has other
        offsets for one of the partitions than `state`. Changes that other writers made in between are kept.
        """
        ...

    def abort(self, files: Sequence[DataFile]) -> None:
        """Remove files of this run that are not committed."""
        ...

    def end(self, *, is_known: bool = True) -> None:
        """Let other exports begin. Does nothing if it was called before, or without `begin`.

        is_known: whether it is known if this run was committed. If not, the next export handles this run as a killed
        one: it removes the files that are not those of the table.
        """
        ...


@runtime_checkable
class UpsertingTable(Protocol):
    """A table whose rows can be replaced: what a `TableCommitter` has, too, if its format can."""

    def upsert(
        self, commit: TableCommit, state: TableState, columns: UpsertColumns, options: WriteOptions
    ) -> TableState:
        """Merge the last row of each key in the files with the table, commit the offsets with it, and remove the files.

        options: of the files of the table.
        Raises TableConflictError as `commit`, and ExportError for a record without a key.
        """
        ...


@dataclass(frozen=True)
class Destination:
    """Where tables are created.

    target: a folder or URI, or the name of a namespace in a catalog, where a part that has dots is in backquotes.
    format: parquet, delta or iceberg. options: of the format's library, as `storage_options` of `deltalake` or the
    properties of a catalog of `pyiceberg`. one_table: all topics are in one table, at the target itself, and not each
    in a table of its name below it. catalog: the name of the catalog of Iceberg in the configuration of `pyiceberg`;
    None for the default.

    Raises ExportArgumentError for an unknown format, and for a catalog of another format.
    """

    target: str = field(repr=False)  # a URI may have credentials
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    one_table: bool = False
    catalog: str | None = None

    def __post_init__(self) -> None:
        ensure_choice("format", self.format, FORMATS)
        if self.catalog is not None and self.format != "iceberg":
            raise ExportArgumentError(f"catalog: expected format iceberg, found {self.format}")
