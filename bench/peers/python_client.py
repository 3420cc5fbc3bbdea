"""The record layers of aiokafka and kafka-python, which have one API: `python -m bench.peers.python_client NAME`.

Every work checks the CRC of each batch first, as kafkafmt does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from bench.peers.protocol import Run, Tally, serve

MODULES = {"aiokafka": "aiokafka.record", "kafka-python": "kafka.record"}


class Client:
    """One client's record layer."""

    def __init__(self, name: str) -> None:
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


if __name__ == "__main__":
    client = Client(sys.argv[1])
    serve({"iterate": client.iterate, "build_from_rows": client.build_from_rows})
