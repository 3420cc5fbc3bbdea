"""Divide the memory of a conversion over its processes (Memory Management in Kafka Streams, "Summary").

A process is a thread of the plan. The allocator's part and the chunk are taken from its share first. The rest is for
the one batch that is converted at a time. This batch exists in several copies: stored, decompressed, converted,
compressed again, and in the output. So the largest allowed batch is a fraction of the rest.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from kafkafmt._util.sizes import MIB
from kafkafmt.memory.division import Division, Part
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.storage import READ_AHEAD

# The bytes of a process beside its batches: arenas of the allocator, modules that are loaded late, file indexes.
RESERVED_BYTES = 8 * MIB
# A chunk is in memory as read, and 1.5 times as written; its index is at most as large as a chunk.
_CHUNK_COPIES = 4
# The most copies of a batch in memory, measured with incompressible records of 10 bytes and more. Below v2 a small
# record has several times its size in v2.
_COPIES, _COPIES_BELOW_V2 = 7, 10
# The largest batch that brokers accept by default, and the batch size for which fewer processes are started.
_LEAST_BATCH_BYTES, _GOOD_BATCH_BYTES = MIB, 16 * MIB


@dataclass(frozen=True)
class ConvertMemory:
    """`total_bytes` for `jobs` processes. to_magic, chunk_size: as those of ConvertOptions.

    is_remote: the source is remote, so that each process reads ahead. most_jobs: if the total decides on the number of
    jobs, the highest one.

    Raises MemoryPlanError if a batch of 1 MiB has no room in each process.
    """

    total_bytes: int
    jobs: int
    to_magic: int | None
    chunk_size: int
    is_remote: bool = False
    most_jobs: int | None = None

    def __post_init__(self) -> None:
        self._division.ensure_rest(self._copies * _LEAST_BATCH_BYTES, f"batches of 1M in {self.each_job}")

    @classmethod
    def divided(
        cls, total_bytes: int, cores: int, to_magic: int | None, chunk_size: int, *, is_remote: bool = False
    ) -> ConvertMemory:
        """Divide the total over one job for each core, or over fewer, so that batches of 16 MiB fit into each."""
        for jobs in range(cores, 1, -1):
            with suppress(MemoryPlanError):
                memory = cls(total_bytes, jobs, to_magic, chunk_size, is_remote, cores)
                if memory.max_batch_bytes >= _GOOD_BATCH_BYTES:
                    return memory
        return cls(total_bytes, 1, to_magic, chunk_size, is_remote, cores)

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch, stored or decompressed, that a process converts."""
        return self._division.rest_bytes // self._copies

    @property
    def read_ahead_bytes(self) -> int:
        """The bytes that a process may read ahead from a remote source."""
        return READ_AHEAD.of(self._division.share_bytes)

    def least_total(self, batch_bytes: int) -> int:
        """Return a total that allows a batch of `batch_bytes`, which is too large now.

        It is the least one for these jobs; or for more jobs, if the total decides and would start more.
        """
        needed = self._copies * batch_bytes
        least = self._division.least_total(needed)
        for jobs in range(self.jobs + 1, (self.most_jobs or 0) + 1):
            least = -(-least // MIB) * MIB  # as a message shows it
            if self._redivided(least).max_batch_bytes >= batch_bytes:
                break
            least = replace(self._division_of(jobs), total_bytes=least).least_total(needed)
        return least

    def _redivided(self, total_bytes: int) -> ConvertMemory:
        cores = self.most_jobs or self.jobs
        return self.divided(total_bytes, cores, self.to_magic, self.chunk_size, is_remote=self.is_remote)

    @property
    def each_job(self) -> str:
        """The processes, in the words of error messages."""
        return "1 job" if self.jobs == 1 else f"each of {self.jobs} jobs"

    @property
    def _copies(self) -> int:
        return _COPIES_BELOW_V2 if self.to_magic in (0, 1) else _COPIES

    @property
    def _division(self) -> Division:
        """The division of the total; the rest is for the batch that is being converted."""
        return self._division_of(self.jobs)

    def _division_of(self, jobs: int) -> Division:
        chunk = _CHUNK_COPIES // 2 * self.chunk_size
        return Division(
            self.total_bytes,
            jobs,
            reserved=(Part("processes", jobs * RESERVED_BYTES),),
            parts=(Part("reading", chunk), Part("writing", chunk), *([READ_AHEAD] if self.is_remote else [])),
        )
