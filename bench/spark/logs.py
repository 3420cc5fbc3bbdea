"""The logs that are read: uncompressed records with keys of 16 bytes, made by kafkafmt into build/bench/spark.

A partition is one block of batches again and again, its offsets going on: a batch's base offset is outside its CRC.
A size is a number of partitions, so that one folder serves for all sizes.
"""

from __future__ import annotations

import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import BUILD
from bench.segments import MIB, json_value
from kafkafmt import BinaryColumn, MemoryRecords, build_batches
from kafkafmt.log import PartitionLogWriter

GENERATION = 1  # to be raised with every change of what is generated
ROOT = BUILD / "spark"
KEY_SIZE = 16
BATCH_BYTES = 16 * 1024
GIB = 1024 * MIB
PARTITION_BYTES = GIB // 2

_BLOCK_BYTES = 32 * MIB
_POOL = 4096
_FIRST_TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class Topic:
    """Values of `value_size` bytes, in partitions of `partition_bytes`."""

    value_size: int
    partition_bytes: int = PARTITION_BYTES
    segment_bytes: int = GIB

    @property
    def name(self) -> str:
        return f"values-{self.value_size}-{self.partition_bytes // MIB}-{GENERATION}"

    def partition(self, number: int) -> Path:
        return ROOT / "logs" / f"{self.name}-{number}"

    def stored(self, partitions: int) -> list[Path]:
        """The folders of the first partitions, made where they are absent."""
        block = None
        for number in range(partitions):
            if not self.partition(number).exists():
                block = block or _Block(self.value_size)
                self._write(block, self.partition(number))
        return [self.partition(number) for number in range(partitions)]

    def _write(self, block: _Block, folder: Path) -> None:
        """All of the folder or nothing of it."""
        partial = folder.with_name(f"writing-{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        with PartitionLogWriter(partial, segment_bytes=self.segment_bytes) as writer:
            for number in range(self.partition_bytes // _BLOCK_BYTES):
                writer.append(block.at(number * block.records))
        partial.rename(folder)

    def count(self) -> int:
        """How many partitions there are."""
        number = 0
        while self.partition(number).exists():
            number += 1
        return number

    def remove_beyond(self, partitions: int) -> None:
        """Remove those that are more."""
        for number in range(partitions, self.count()):
            shutil.rmtree(self.partition(number))


class _Block:
    """Batches that are to be written again and again."""

    def __init__(self, value_size: int) -> None:
        chosen = random.Random(value_size)
        pool = [json_value(chosen, value_size) for _ in range(_POOL)]
        keys = [b"customer-%07d" % chosen.randrange(10**7) for _ in range(_POOL)]
        self.records = _BLOCK_BYTES // (KEY_SIZE + value_size)
        batches = build_batches(
            _FIRST_TIMESTAMP + 3 * np.arange(self.records),
            _repeated(keys, self.records),
            _repeated(pool, self.records),
            batch_size=BATCH_BYTES,
        )
        self.data = bytearray(b"".join(batches))
        index = MemoryRecords(self.data).index()
        self._offsets = index["base_offset"].astype(np.int64)
        self._positions = index["position"].astype(np.int64)

    def at(self, offset: int) -> bytearray:
        """The batches, the first of which begins at `offset`."""
        for position, base in zip(self._positions.tolist(), (self._offsets + offset).tolist(), strict=True):
            struct.pack_into(">q", self.data, position, base)
        return self.data


def _repeated(pool: list[bytes], count: int) -> BinaryColumn:
    size = len(pool[0])
    data = np.resize(np.frombuffer(b"".join(pool), np.uint8), count * size)
    return BinaryColumn(np.arange(count + 1) * size, data, None)
