"""The record layers of aiokafka and kafka-python, which have one API: `python -m bench.peers.python_client NAME`.

Every work that reads checks the CRC of each batch first, as kafkafmt does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from bench.peers import accumulating
from bench.peers.protocol import Prepare, Run, Tally, serve

MODULES = {"aiokafka": "aiokafka.record", "kafka-python": "kafka.record"}
CODECS = {"none": 0, "lz4": 3}


class Client:
    """One client's record layer."""

    def __init__(self, name: str) -> None:
        self.name = name
        module = MODULES[name]
        self._records: Any = importlib.import_module(f"{module}.memory_records").MemoryRecords
        self._builder: Any = importlib.import_module(f"{module}.default_records").DefaultRecordBatchBuilder

    def _batches(self, data: bytes) -> Iterator[Any]:
        records = self._records(data)
        while records.has_next():
            yield records.next_batch()

    def iterate(self, data: bytes) -> Run:
        def run() -> Tally:
            count = size = 0
            for batch in self._batches(data):
                if not batch.validate_crc():
                    raise AssertionError("CRC")
                for record in batch:
                    key, value = record.key, record.value
                    count += 1
                    size += len(value) + (len(key) if key is not None else 0)
            return Tally(count, size)

        return run

    def build_from_rows(self, data: bytes) -> Run:
        batches = [
            [(record.timestamp, record.key, record.value) for record in batch]
            for batch in self._batches(data)
        ]

        def run() -> Tally:
            count = produced = 0
            for rows in batches:
                builder = self._builder(
                    magic=2,
                    compression_type=0,
                    is_transactional=0,
                    producer_id=-1,
                    producer_epoch=-1,
                    base_sequence=-1,
                    batch_size=1 << 20,
                )
                for offset, (timestamp, key, value) in enumerate(rows):
                    builder.append(offset, timestamp, key, value, [])
                count += len(rows)
                produced += len(builder.build())
            return Tally(count, produced)

        return run

    def accumulate(self, codec: int) -> Prepare:
        """kafka-python's producer between `send` and its sockets: each full batch is drained at once."""
        from kafka.producer.record_accumulator import RecordAccumulator

        def prepare(data: bytes) -> Run:
            rows = accumulating.rows_of(self._batches(data))
            cluster = accumulating.cluster()

            def run() -> Tally:
                accumulator = RecordAccumulator(
                    compression_attrs=codec, linger_ms=accumulating.LINGER_MS, delivery_timeout_ms=120_000
                )
                produced = 0
                for partition, timestamp, key, value in rows:
                    _, is_full, _, _ = accumulator.append(partition, timestamp, key, value, [])
                    if is_full:
                        produced += _drained(accumulator, cluster)
                accumulator.begin_flush()
                while accumulator.has_undrained():
                    produced += _drained(accumulator, cluster)
                return Tally(len(rows), produced)

            return run

        return prepare

    def works(self) -> dict[str, Prepare]:
        works = {"iterate": self.iterate, "build_from_rows": self.build_from_rows}
        if self.name == "kafka-python":
            for name, codec in CODECS.items():
                works[f"accumulate_{name}"] = self.accumulate(codec)
        return works


def _drained(accumulator: Any, cluster: Any) -> int:
    """Drain what is ready, as acknowledged at once; returns its bytes."""
    produced = 0
    nodes, _, _ = accumulator.ready(cluster)
    for batches in accumulator.drain(cluster, nodes, accumulating.MAX_REQUEST_BYTES).values():
        for batch in batches:
            produced += batch.records.size_in_bytes()
            batch.complete(0, -1)
            accumulator.deallocate(batch)
    return produced


if __name__ == "__main__":
    serve(Client(sys.argv[1]).works())
