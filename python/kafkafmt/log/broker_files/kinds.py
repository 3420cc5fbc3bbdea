"""All files beside segments: which reader each name has, and the fields of its rows.

A reader returns objects. Rows are dictionaries with the fields of the file's kind, for tables, JSON and Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt._util.directory_lock import LOCK_FILE, LockState, lock_state
from kafkafmt._util.uuids import uuid_text
from kafkafmt.columns.fields import Field, arrow_table
from kafkafmt.log.broker_files.cluster_files import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    QUORUM_STATE,
    clean_shutdown,
    meta_properties,
    quorum_state,
)
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.broker_files.index_files import offset_index, time_index, transaction_index
from kafkafmt.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    leader_epochs,
    offset_checkpoint,
)
from kafkafmt.log.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafkafmt.log.partition_metadata import topic_id
from kafkafmt.log.producer_snapshots import SnapshotEntry, producer_snapshot
from kafkafmt.log.segment import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from kafkafmt.storage import AnyPath, StoragePath, storage_path

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex

Row = Mapping[str, Any]


@dataclass(frozen=True)
class BrokerFileKind:
    """A kind of file that a broker keeps beside segments.

    names: the names of such files; one that begins with `*` is a suffix. noun: what a row is. fields: of a row. rows:
    reads a file; raises BrokerFileError if it is malformed, and OSError.
    """

    names: Sequence[str]
    noun: str
    fields: Sequence[Field]
    rows: Callable[[StoragePath], Iterable[Row]]

    def has(self, name: str) -> bool:
        """Whether a file of this name is of this kind."""
        return any(name.endswith(one[1:]) if one[0] == "*" else name == one for one in self.names)


def kind_of(name: str) -> BrokerFileKind | None:
    """Return the kind of a file by its name; None for any other name."""
    return next((kind for kind in BROKER_FILE_KINDS if kind.has(name)), None)


def is_like_known_name(pattern: str) -> bool:
    """Whether a name, or a pattern as `*-checkpoint`, may be that of a file of one of the kinds."""
    names = (name.replace("*", segment_file_name(0, "")) for name in known_names())
    return kind_of(pattern) is not None or any(fnmatchcase(name, pattern) for name in names)


def known_names() -> list[str]:
    """Return the names of all kinds of files; one that begins with `*` is a suffix."""
    return [name for kind in BROKER_FILE_KINDS for name in kind.names]


def broker_file_rows(path: AnyPath) -> Iterator[Row]:
    """Read a file that a broker keeps beside segments, by its name. Yields its rows as dictionaries.

    Raises ValueError for an unknown name, BrokerFileError for a malformed file, and OSError.
    """
    located, kind = _located(path)
    return iter(kind.rows(located))


def broker_file_table(path: AnyPath) -> pa.Table:
    """Read a file that a broker keeps beside segments, by its name. Returns its rows as an Arrow table.

    Raises as `broker_file_rows`, and ImportError without pyarrow.
    """
    located, kind = _located(path)
    return arrow_table(kind.fields, kind.rows(located))


def _located(path: AnyPath) -> tuple[StoragePath, BrokerFileKind]:
    located = storage_path(path)
    kind = kind_of(located.name)
    if kind is None:
        raise ValueError(f"{path}: expected one of these names: {', '.join(known_names())}")
    return located, kind


def _offset_index_rows(path: StoragePath) -> Iterator[Row]:
    index: OffsetIndex = offset_index(path)
    for relative_offset, position in index.entries.tolist():
        yield {"offset": index.base_offset + relative_offset, "position": position}


def _time_index_rows(path: StoragePath) -> Iterator[Row]:
    index: TimeIndex = time_index(path)
    for timestamp, relative_offset in index.entries.tolist():
        yield {"timestamp": timestamp, "offset": index.base_offset + relative_offset}


def _transaction_rows(path: StoragePath) -> Iterator[Row]:
    found: list[AbortedTransaction] = transaction_index(path)
    return (one._asdict() for one in found)


def _snapshot_rows(path: StoragePath) -> Iterator[Row]:
    found: list[SnapshotEntry] = producer_snapshot(path)
    return (one._asdict() for one in found)


def _leader_epoch_rows(path: StoragePath) -> Iterator[Row]:
    return (one._asdict() for one in leader_epochs(path))


def _offset_rows(path: StoragePath) -> Iterator[Row]:
    for (topic, partition), offset in offset_checkpoint(path).items():
        yield {"topic": topic, "partition": partition, "offset": offset}


def _topic_id_rows(path: StoragePath) -> list[Row]:
    return [{"topic_id": uuid_text(topic_id(path))}]


def _meta_rows(path: StoragePath) -> list[Row]:
    return [_with_texts(meta_properties(path)._asdict(), "directory_id")]


def _quorum_rows(path: StoragePath) -> list[Row]:
    row = _with_texts(quorum_state(path)._asdict(), "voted_directory_id")
    return [{**row, "voters": None if row["voters"] is None else list(row["voters"])}]


def _clean_shutdown_rows(path: StoragePath) -> list[Row]:
    return [clean_shutdown(path)._asdict()]


def _lock_rows(path: StoragePath) -> list[Row]:
    size = path.stat().st_size
    if size:
        raise BrokerFileError(f"expected an empty file, found {size} bytes", path=str(path))
    state = lock_state(path) if isinstance(path, Path) else LockState(None, None)
    return [state._asdict()]


def _with_texts(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {**row, name: None if row[name] is None else uuid_text(row[name])}


BROKER_FILE_KINDS = (
    BrokerFileKind(
        (f"*{OFFSET_INDEX_SUFFIX}",),
        "entry",
        (Field("offset", "int64"), Field("position", "int32")),
        _offset_index_rows,
    ),
    BrokerFileKind(
        (f"*{TIME_INDEX_SUFFIX}",),
        "entry",
        (Field("timestamp", "int64"), Field("offset", "int64")),
        _time_index_rows,
    ),
    BrokerFileKind(
        (f"*{TRANSACTION_INDEX_SUFFIX}",),
        "aborted transaction",
        (
            Field("producer_id", "int64"),
            Field("first_offset", "int64"),
            Field("last_offset", "int64"),
            Field("last_stable_offset", "int64"),
        ),
        _transaction_rows,
    ),
    BrokerFileKind(
        (f"*{SNAPSHOT_SUFFIX}",),
        "producer",
        (
            Field("producer_id", "int64"),
            Field("producer_epoch", "int32"),
            Field("last_sequence", "int32"),
            Field("last_offset", "int64"),
            Field("offset_delta", "int32"),
            Field("timestamp", "int64"),
            Field("coordinator_epoch", "int32"),
            Field("transaction_first_offset", "int64"),
        ),
        _snapshot_rows,
    ),
    BrokerFileKind(
        (LEADER_EPOCH_CHECKPOINT,),
        "leader epoch",
        (Field("epoch", "int32"), Field("start_offset", "int64")),
        _leader_epoch_rows,
    ),
    BrokerFileKind(
        OFFSET_CHECKPOINTS,
        "partition",
        (Field("topic", "string"), Field("partition", "int32"), Field("offset", "int64")),
        _offset_rows,
    ),
    BrokerFileKind((PARTITION_METADATA,), "topic id", (Field("topic_id", "string"),), _topic_id_rows),
    BrokerFileKind(
        (META_PROPERTIES,),
        "node",
        (
            Field("version", "int32"),
            Field("cluster_id", "string"),
            Field("node_id", "int32"),
            Field("directory_id", "string"),
        ),
        _meta_rows,
    ),
    BrokerFileKind(
        (QUORUM_STATE,),
        "state",
        (
            Field("version", "int32"),
            Field("leader_id", "int32"),
            Field("leader_epoch", "int32"),
            Field("voted_id", "int32"),
            Field("voted_directory_id", "string"),
            Field("cluster_id", "string"),
            Field("applied_offset", "int64"),
            Field("voters", "list<int32>"),
        ),
        _quorum_rows,
    ),
    BrokerFileKind(
        (CLEAN_SHUTDOWN,),
        "shutdown",
        (Field("version", "int32"), Field("broker_epoch", "int64")),
        _clean_shutdown_rows,
    ),
    BrokerFileKind(
        (LOCK_FILE,), "lock", (Field("is_held", "boolean"), Field("process_id", "int32")), _lock_rows
    ),
)
