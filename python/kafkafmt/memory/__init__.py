"""One memory budget, divided from the top down (Memory Management in Kafka Streams)."""

from kafkafmt.memory.partition_group import PartitionGroup
from kafkafmt.memory.record_queue import RecordQueue, Taken

__all__ = ["PartitionGroup", "RecordQueue", "Taken"]
