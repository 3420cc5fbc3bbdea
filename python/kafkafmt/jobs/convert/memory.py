"""What a conversion may hold, out of one number for all processes (Memory Management in Kafka Streams, "Summary").

A process is a thread of the plan. Of its share the allocator's part and the chunk come off first; the rest is for the
one batch that is converted at a time, which is held several times over: as it is stored, decompressed, in the other
format, compressed again, and in the output. So the largest batch is a fraction of the rest, and no larger one is begun.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from kafkafmt.memory import MemoryPlan, MemoryPlanError
from kafkafmt.sizes import at_least_text, size_text

MIB = 1024 * 1024
# What a process takes beside its batches: arenas of the allocator, modules that are loaded late, file indexes.
RESERVED_BYTES = 8 * MIB
# A chunk is held as it is read, and one and a half times as it is written; its index is as large at the most.
_CHUNK_COPIES = 4
# How many times its size a batch is held at the most: measured with incompressible records of 10 bytes and more. Below
# v2 a small record takes several times the bytes that it takes in v2.
_COPIES, _COPIES_BELOW_V2 = 7, 10
# The largest batch that brokers take by default; and what fewer processes are begun for, so that it fits.
_LEAST_BATCH_BYTES, _GOOD_BATCH_BYTES = MIB, 16 * MIB


class ConvertMemoryError(ValueError):
    """Less memory than a conversion needs; the message says how much would do."""


@dataclass(frozen=True)
class ConvertMemory:
    """`total_bytes` for `jobs` processes. to_magic, chunk_size: as those of ConvertOptions.

    Raises ConvertMemoryError where there is not room for a batch of 1 MiB in each process.
    """

    total_bytes: int
    jobs: int
    to_magic: int | None
    chunk_size: int

    def __post_init__(self) -> None:
        try:
            self._plan(self.total_bytes)
        except MemoryPlanError as error:
            jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
            raise ConvertMemoryError(
                f"memory: expected {at_least_text(error.least_total_bytes)} or more for {jobs}, so that each converts "
                f"batches of 1M, found {size_text(self.total_bytes)}"
            ) from None

    @classmethod
    def divided(cls, total_bytes: int, cores: int, to_magic: int | None, chunk_size: int) -> ConvertMemory:
        """A job a core, or fewer, so that large batches have room in each."""
        for jobs in range(cores, 1, -1):
            with suppress(ConvertMemoryError):
                memory = cls(total_bytes, jobs, to_magic, chunk_size)
                if memory.max_batch_bytes >= _GOOD_BATCH_BYTES:
                    return memory
        return cls(total_bytes, 1, to_magic, chunk_size)

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch, stored or decompressed, that a process converts."""
        return self._plan(self.total_bytes).usable_bytes // self._copies

    def enough_for(self, batch_bytes: int) -> int:
        """The total with which a batch of so many bytes could be converted."""
        return self._plan(self.total_bytes).least_total_for(self._copies * batch_bytes)

    @property
    def _copies(self) -> int:
        return _COPIES_BELOW_V2 if self.to_magic in (0, 1) else _COPIES

    def _plan(self, total_bytes: int) -> MemoryPlan:
        """The usable rest of a process is for the batch at hand; what reads it is Consumer, what writes it Producer."""
        return MemoryPlan(
            total_bytes,
            self.jobs,
            producer_bytes=_CHUNK_COPIES // 2 * self.chunk_size,
            consumer_bytes=_CHUNK_COPIES // 2 * self.chunk_size,
            reserved_bytes=self.jobs * RESERVED_BYTES,
            least_batch_bytes=self._copies * _LEAST_BATCH_BYTES,
        )
