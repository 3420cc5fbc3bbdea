"""The logs that are read: uncompressed records with keys of 16 bytes, made by kafkafmt into build/bench/spark.

A partition is one block of batches again and again, its offsets going on: a batch's base offset is outside its CRC.
The values of a block are a pool of 4096, or random bytes, each of them once. Then each block of a partition is new.
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

GENERATION = 2  # to be raised with every change of what is generated
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
    """Values of `value_size` bytes, in partitions of `partition_bytes`. is_unique: each value is there once."""

    value_size: int
    partition_bytes: int = PARTITION_BYTES
    segment_bytes: int = GIB
    is_unique: bool = False

    @property
    def name(self) -> str:
        kind = "unique" if self.is_unique else "values"
        return f"{kind}-{self.value_size}-{self.partition_bytes // MIB}-{GENERATION}"

    def partition(self, number: int) -> Path:
        return ROOT / "logs" / f"{self.name}-{number}"

    def stored(self, partitions: int) -> list[Path]:
        """The folders of the first partitions, made where they are absent."""
        block = None
        for number in range(partitions):
            if not self.partition(number).exists():
                block = block or _Block(self.value_size, self._pool(0))
                self._write(number, block)
        return [self.partition(number) for number in range(partitions)]

    def _write(self, partition: int, block: _Block) -> None:
        """All of the folder or nothing of it."""
        folder = self.partition(partition)
        partial = folder.with_name(f"writing-{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        blocks = self.partition_bytes // _BLOCK_BYTES
        with PartitionLogWriter(partial, segment_bytes=self.segment_bytes) as writer:
            for number in range(blocks):
                if self.is_unique and (partition or number):
                    block = _Block(self.value_size, self._pool(partition * blocks + number))
                writer.append(block.at(number * block.records))
        partial.rename(folder)

    def _pool(self, seed: int) -> BinaryColumn:
        """The values that a block repeats."""
        if self.is_unique:
            count = _records(self.value_size)
            data = np.frombuffer(np.random.default_rng(seed).bytes(count * self.value_size), np.uint8)
            return BinaryColumn(np.arange(count + 1) * self.value_size, data, None)
        chosen = random.Random(self.value_size)
        return _repeated(
            [json_value(chosen, self.value_size) for _ in range(_POOL)], _records(self.value_size)
        )

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

    def __init__(self, value_size: int, values: BinaryColumn) -> None:
        chosen = random.Random(value_size)
        keys = [b"customer-%07d" % chosen.randrange(10**7) for _ in range(_POOL)]
        self.records = _records(value_size)
        batches = build_batches(
            _FIRST_TIMESTAMP + 3 * np.arange(self.records),
            _repeated(keys, self.records),
            values,
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


def _records(value_size: int) -> int:
    return _BLOCK_BYTES // (KEY_SIZE + value_size)


def _repeated(pool: list[bytes], count: int) -> BinaryColumn:
    size = len(pool[0])
    data = np.resize(np.frombuffer(b"".join(pool), np.uint8), count * size)
    return BinaryColumn(np.arange(count + 1) * size, data, None)
