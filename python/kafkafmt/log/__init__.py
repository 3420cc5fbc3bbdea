"""Read and write log directories as a broker does: partitions, segments and their indexes.

>>> import tempfile
>>> from kafkafmt.build.builder import RecordBatchBuilder
>>> builder = RecordBatchBuilder(base_offset=170)
>>> builder.append(1_700_000_000_000, b"user-1", b"visit")
>>> with tempfile.TemporaryDirectory() as folder:
...     with PartitionLogWriter(f"{folder}/page-views-0") as writer:
...         writer.append(builder.build())
...     log = LogDirectory(folder).partition(("page-views", 0))
...     [segment.path.name for segment in log.segments()], [record.offset for record in log.records()]
(['00000000000000000170.log'], [170])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafkafmt.log.appender import LogAppender
from kafkafmt.log.broker_files.cluster_files import (
    CleanShutdown,
    MetaProperties,
    QuorumState,
    clean_shutdown,
    meta_properties,
    quorum_state,
)
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.broker_files.index_files import offset_index, time_index, transaction_index
from kafkafmt.log.broker_files.kinds import broker_file_rows, broker_file_table
from kafkafmt.log.checkpoints import LeaderEpoch, leader_epochs, offset_checkpoint
from kafkafmt.log.damage import Damage, find_damage
from kafkafmt.log.directory import LogDirectory
from kafkafmt.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TimestampOffset
from kafkafmt.log.log_snapshot import LogPosition
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.partition_metadata import topic_id
from kafkafmt.log.producer_snapshots import SnapshotEntry, producer_snapshot
from kafkafmt.log.segment import Segment, SegmentRecords
from kafkafmt.log.splitting import split_points
from kafkafmt.log.tail import LogTail
from kafkafmt.log.writer import PartitionLogWriter, SegmentWriter, remove_stale_temporaries

if TYPE_CHECKING:
    from kafkafmt.log.internal_topics.groups import CommittedOffset, Group, GroupMember
    from kafkafmt.log.internal_topics.metadata.cluster import ClusterMetadata
    from kafkafmt.log.internal_topics.metadata.reader import cluster_metadata
    from kafkafmt.log.internal_topics.offsets import ConsumerOffsets, consumer_offsets
    from kafkafmt.log.internal_topics.open_transactions import OpenTransaction
    from kafkafmt.log.internal_topics.transactions import (
        LogTransaction,
        Transactions,
        TransactionState,
        transactions,
    )

# The modules of names that are imported at their first use: the schemas of internal topics take 80 ms.
_READERS = {
    "ClusterMetadata": "metadata.cluster",
    "CommittedOffset": "groups",
    "ConsumerOffsets": "offsets",
    "Group": "groups",
    "GroupMember": "groups",
    "LogTransaction": "transactions",
    "OpenTransaction": "open_transactions",
    "TransactionState": "transactions",
    "Transactions": "transactions",
    "cluster_metadata": "metadata.reader",
    "consumer_offsets": "offsets",
    "transactions": "transactions",
}

__all__ = [
    "AbortedTransaction",
    "BrokerFileError",
    "CleanShutdown",
    "ClusterMetadata",
    "CommittedOffset",
    "ConsumerOffsets",
    "Damage",
    "Group",
    "GroupMember",
    "LeaderEpoch",
    "LogAppender",
    "LogDirectory",
    "LogPosition",
    "LogTail",
    "LogTransaction",
    "MetaProperties",
    "OffsetIndex",
    "OpenTransaction",
    "PartitionLog",
    "PartitionLogWriter",
    "QuorumState",
    "Segment",
    "SegmentRecords",
    "SegmentWriter",
    "SnapshotEntry",
    "TimeIndex",
    "TimestampOffset",
    "TransactionState",
    "Transactions",
    "broker_file_rows",
    "broker_file_table",
    "clean_shutdown",
    "cluster_metadata",
    "consumer_offsets",
    "find_damage",
    "leader_epochs",
    "meta_properties",
    "offset_checkpoint",
    "offset_index",
    "producer_snapshot",
    "quorum_state",
    "remove_stale_temporaries",
    "split_points",
    "time_index",
    "topic_id",
    "transaction_index",
    "transactions",
]


def __getattr__(name: str) -> Any:
    """Import a reader of internal topics."""
    if name in _READERS:
        return getattr(import_module(f"kafkafmt.log.internal_topics.{_READERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
