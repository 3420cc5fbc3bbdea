"""Merge partitions by time, cache entries and store them, within a memory budget (Memory Management in Kafka Streams).

A `PartitionGroup` buffers raw batches and returns their records in the order of their timestamps. Caches and RocksDB
stores are in `kafkafmt.streams.cache` and `kafkafmt.streams.store`.
"""

from kafkafmt.streams.merged import Merged
from kafkafmt.streams.partition_group import PartitionGroup
from kafkafmt.streams.record_queue import RecordQueue, RecordSlice
from kafkafmt.streams.timestamps import TimestampError, json_timestamp

__all__ = ["Merged", "PartitionGroup", "RecordQueue", "RecordSlice", "TimestampError", "json_timestamp"]
