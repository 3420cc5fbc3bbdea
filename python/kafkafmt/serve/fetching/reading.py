"""What one partition of a fetch gets: stored records by sendfile, or records converted as they are sent (KIP-283).

Unlike Kafka's: where all that fits the limit converts to nothing (markers, empty batches), reading goes on to the next
batch that converts, since some clients fetch again at once, forever.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kafka.errors import (
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)

from kafkafmt.converted_chunks import may_take_long
from kafkafmt.down_conversion import LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError
from kafkafmt.errors import UnsupportedCompressionTypeError as NoSuchCodecError
from kafkafmt.log.following import FoundBatch
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.records import MemoryRecords, Records, RecordsRange
from kafkafmt.serve.catalog import Partition
from kafkafmt.serve.partition_errors import error_code, leader_epoch_error_code, refusal_code
from kafkafmt.serve.turns import by_steps
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.log.open_segment import OpenSegment
    from kafkafmt.serve.batch_work import BatchWork
    from kafkafmt.serve.memory import Lease
    from kafkafmt.serve.options import ServeOptions
    from kafkafmt.serve.topic_settings import TopicConfigs

SentRecords: TypeAlias = Records | LazyDownConvertRecords

# The newest message format that consumers of a version of Fetch know, where that is not v2 (KIP-32, KIP-98).
_MAGIC = {0: 0, 1: 0, 2: 1, 3: 1}
_ZSTD_VERSION = 10  # the first whose consumers know zstd (KIP-110)
# Of zstd batches that are compressed anew for a client of v2, no more than that at a time: it is done beforehand.
_RECODED_BYTES = 128 * 1024
# What is read to see the header of a batch.
_HEAD_BYTES = 4 * 1024


@dataclass(frozen=True)
class PartitionFetch:
    """What a client wants of a partition; most_bytes is what it and the response have room for.

    gets_one: at least one whole batch, however large (KIP-74).
    """

    offset: int
    most_bytes: int
    gets_one: bool
    version: int
    is_committed: bool
    current_leader_epoch: int = -1


@dataclass
class PartitionAnswer:
    """What it gets: offsets are -1 with an error, as Kafka has it.

    is_followed: the records are those of a segment behind which there are others.
    """

    error_code: int = 0
    high_watermark: int = -1
    stable_offset: int = -1
    start_offset: int = -1
    aborted: list[AbortedTransaction] = field(default_factory=list)
    records: SentRecords | None = None
    is_followed: bool = False

    @property
    def size(self) -> int:
        """Bytes of records, to the byte, before anything is converted."""
        return 0 if self.records is None else self.records.size_in_bytes


class PartitionReader:
    """Reads partitions for fetches, by the endpoint's options."""

    def __init__(self, options: ServeOptions, topics: TopicConfigs, work: BatchWork) -> None:
        self._options = options
        self._topics = topics
        self._work = work

    async def read(self, partition: Partition, fetch: PartitionFetch, lease: Lease) -> PartitionAnswer:
        """The answer for a partition; errors of its log are in it. What is compressed anew is held by the lease."""
        try:
            try:
                return await self._answer(partition, fetch, lease)
            except FileNotFoundError:  # a segment was deleted just now: what is left is looked at
                return await self._answer(partition, fetch, lease)
        except (KafkaFormatError, OSError) as error:
            return PartitionAnswer(error_code(partition, error))

    async def _answer(self, partition: Partition, fetch: PartitionFetch, lease: Lease) -> PartitionAnswer:
        failed = leader_epoch_error_code(partition, fetch.current_leader_epoch)
        if failed:
            return PartitionAnswer(failed)
        log = await partition.follow()
        if fetch.is_committed:
            await partition.follow_transactions()
        if not log.start_offset <= fetch.offset <= log.end_offset:
            return PartitionAnswer(OffsetOutOfRangeError.errno)
        stable_offset = log.stable_offset if fetch.is_committed else log.end_offset
        answer = PartitionAnswer(0, log.end_offset, stable_offset, log.start_offset)
        if fetch.offset == log.end_offset and log.damage is not None:
            raise log.damage
        if fetch.offset < stable_offset and (fetch.most_bytes > 0 or fetch.gets_one):
            await self._read(partition, fetch, answer, lease)
        return answer

    async def _read(
        self, partition: Partition, fetch: PartitionFetch, answer: PartitionAnswer, lease: Lease
    ) -> None:
        found = await self._find(partition, fetch, answer.stable_offset)
        if found is None or (fetch.most_bytes < found.size and not fetch.gets_one):
            return
        opened = found.segment
        answer.is_followed = not opened.segment.is_active
        to_magic = _MAGIC.get(fetch.version, 2)
        if found.magic > to_magic:
            if not self._topics.converts_down(partition.topic_partition.topic):
                answer.error_code = refusal_code(partition, UnsupportedVersionError, fetch.version)
                return
            try:
                answer.records = await self._converted(partition, found, fetch, to_magic)
            except NoSuchCodecError:
                answer.error_code = refusal_code(partition, UnsupportedCompressionTypeError, fetch.version)
            return
        end = min(found.position + max(fetch.most_bytes, found.size), found.end_position)
        end = await by_steps(opened.sound_end_steps(found.position, end))
        known_end = _known_end(opened.between(found.position, end), fetch.version, has_zstd=opened.has_zstd)
        if known_end > found.position:
            answer.records = opened.between(found.position, known_end)
        elif self._options.zstd_fallback is None:
            answer.error_code = refusal_code(partition, UnsupportedCompressionTypeError, fetch.version)
            return
        else:
            end = min(end, found.position + max(found.size, _RECODED_BYTES))
            head = opened.between(found.position, end)
            answer.records = await self._recoded(head, self._options.zstd_fallback, fetch, lease)
        if fetch.is_committed:
            answer.aborted = partition.log.aborted_transactions(fetch.offset, opened, end)

    async def _find(
        self, partition: Partition, fetch: PartitionFetch, stable_offset: int
    ) -> FoundBatch | None:
        """The first batch, and in its segment the end of what may be read."""
        log = partition.log
        found = await by_steps(log.find_steps(fetch.offset))
        if found is None or stable_offset == log.end_offset:
            return found
        limit = await by_steps(log.find_steps(stable_offset))
        if limit is None or limit.segment is not found.segment:
            return found
        return found._replace(end_position=limit.position) if limit.position > found.position else None

    async def _converted(
        self, partition: Partition, found: FoundBatch | None, fetch: PartitionFetch, to_magic: int
    ) -> LazyDownConvertRecords | None:
        """Records from the first batch on that converts to something; None where none does up to the log's end."""
        while found is not None:
            opened = found.segment
            position = opened.passed.get((to_magic, fetch.offset), found.position)
            while True:
                size = (
                    found.size
                    if position == found.position
                    else opened.batch_size(position, found.end_position)
                )
                if size is None:
                    break
                end = min(position + max(fetch.most_bytes, size), found.end_position)
                convert = partial(
                    LazyDownConvertRecords,
                    opened.between(position, end),
                    to_magic,
                    fetch.offset,
                    chunk_size=self._options.chunk_bytes,
                    zstd_fallback=self._options.zstd_fallback,
                )
                # It converts the first batch that is not empty then.
                is_quick = _is_quick(opened, position, end, fetch.offset)
                converted = convert() if is_quick else await self._work.convert(convert)
                if converted.passed_position is None:
                    return converted
                position = converted.passed_position
                opened.remember_passed((to_magic, fetch.offset), position)
            found = await by_steps(partition.log.find_behind_steps(opened))
        return None

    async def _recoded(
        self, records: RecordsRange, codec: Codec, fetch: PartitionFetch, lease: Lease
    ) -> MemoryRecords | None:
        """Batches with another codec; their format stays v2. None where there is no memory for them now.

        The first partition of a fetch waits for it.
        """
        size, held = records.size_in_bytes, lease.held
        if fetch.gets_one:
            await lease.acquire(size)
        elif not lease.try_acquire(size):
            return None
        recoded = (await self._work.convert(partial(records.recompress, codec))).records
        lease.resize(held + recoded.size_in_bytes)
        return recoded


def _is_quick(opened: OpenSegment, position: int, end: int, offset: int) -> bool:
    """Is the first batch one that is converted, and in some milliseconds?"""
    with contextlib.suppress(KafkaFormatError):
        run = opened.run_at(position, end, run_bytes=_HEAD_BYTES)
        if run is not None:
            rows = run.index[:1]
            is_converted = (rows["count"] > 0) & ~rows["is_control"] & (rows["last_offset"] >= offset)
            return bool(is_converted.all()) and not may_take_long(rows)
    return False


def _known_end(records: RecordsRange, version: int, *, has_zstd: bool) -> int:
    """Where the first batch begins that consumers of this version of Fetch do not know; the end without one."""
    to_magic, knows_zstd = _MAGIC.get(version, 2), version >= _ZSTD_VERSION
    if to_magic == 2 and (knows_zstd or not has_zstd):
        return records.end_position
    with contextlib.suppress(KafkaFormatError):
        for run in records.runs(reuse_memory=True):
            rows = run.index
            is_foreign = (rows["magic"] > to_magic) | ((rows["codec"] == Codec.ZSTD) & (not knows_zstd))
            if is_foreign.any():
                return int(rows["position"][is_foreign.argmax()])
    return records.end_position
