"""How the files of a table are written, and where. Both can be pickled, for processes that write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt._util.sizes import MIB
from kafkafmt.export.errors import ensure_choice, ensure_count

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.export.partitioning import PartitionField
    from kafkafmt.storage import StoragePath


COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")


@dataclass(frozen=True)
class WriteOptions:
    """How Parquet files are written. It can be pickled.

    target_file_bytes: a file ends when it has reached this size. row_group_bytes: of Arrow data in memory, at most.
    compression: zstd, snappy, lz4, gzip or none. buffered_bytes: the most Arrow data that a task keeps for all open
    files.

    Raises ExportArgumentError for invalid values, and TypeError for sizes that are no integers.
    """

    target_file_bytes: int = 128 * MIB
    row_group_bytes: int = 32 * MIB
    compression: str = "zstd"
    buffered_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        for name in ("target_file_bytes", "row_group_bytes", "buffered_bytes"):
            ensure_count(name, getattr(self, name))
        ensure_choice("compression", self.compression, COMPRESSIONS)

    @property
    def group_bytes(self) -> int:
        """The Arrow data of a row group. A file ends after a whole one, so it is not larger than a file."""
        return min(self.row_group_bytes, self.target_file_bytes)


@dataclass(frozen=True)
class FileLayout:
    """The files of a table, as its committer wants them. It can be pickled.

    folder: `data_folder` of the committer. schema: of the files, which rows are converted to. partitioning: of the
    table. leaves_out: columns that the files do not have, because the folders have them. flattened: whether the fields
    of the column `value` are columns. has_hive_folders: whether readers take the values of partitions from the names of
    folders. suffix: what the names of the files have after the path of a `DataFile`, until they are committed.
    """

    folder: StoragePath
    schema: pa.Schema
    partitioning: tuple[PartitionField, ...] = ()
    leaves_out: frozenset[str] = frozenset()
    flattened: bool = False
    has_hive_folders: bool = True
    suffix: str = ""
