"""What an ordinary consumer gets from a server, and what lies in a log: the two ways to compare a copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, TopicPartition

import kafkafmt as kf
from client.cluster import messages_up_to
from kafkafmt.log import LogDirectory

if TYPE_CHECKING:
    from typing_extensions import Self

SECONDS = 60
V2_HEADER_BYTES = 61


class Read(NamedTuple):
    """One record as librdkafka gives it."""

    timestamp_type: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Reader:
    """librdkafka's consumer. A context manager that closes it."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "earliest",
        }
        self._consumer = Consumer(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def by_offset(self, topic: str, partition: int = 0, end: int = 0) -> dict[int, Read]:
        """The records of a partition, from its start to the end that its isolation level sees.

        end: an offset that it must see: a marker may be written some time after the commit of its transaction.
        """
        where = TopicPartition(topic, partition)
        start, seen = self._consumer.get_watermark_offsets(where, SECONDS)
        end = max(end, seen)
        self._consumer.assign([TopicPartition(topic, partition, start)])
        read = {}
        for m in messages_up_to(end, self._consumer):
            kind, timestamp = m.timestamp()
            assert m.offset() not in read, f"{topic}-{partition}: offset {m.offset()} came twice"
            read[m.offset()] = Read(kind, timestamp, m.key(), m.value(), tuple(m.headers() or ()))
        return read

    def records(self, topic: str, partition: int = 0, end: int = 0) -> list[Read]:
        return list(self.by_offset(topic, partition, end).values())

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)[1])


def end_of(directory: Path, topic: str, partition: int = 0) -> int:
    """Where a partition's log ends; -1 where there is none yet."""
    try:
        return LogDirectory(directory).partition((topic, partition)).end_offset
    except FileNotFoundError:
        return -1


def batches_of(directory: Path, topic: str, partition: int = 0) -> list[kf.RecordBatch]:
    """Those of a partition in a log directory, control batches too."""
    return list(LogDirectory(directory).partition((topic, partition)).batches())


def log_of(directory: Path, topic: str, partition: int) -> bytes:
    """All segments, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted((directory / f"{topic}-{partition}").glob("0*.log")))


def records_section(batch: kf.RecordBatch) -> bytes:
    """What is behind the header of a v2 batch: the records, compressed as they are."""
    return bytes(batch.buffer[V2_HEADER_BYTES:])
