"""Plans what a fetch gets of one partition: stored records for sendfile, or records converted while sent (KIP-283).

Unlike Kafka: if everything within the limit converts to no records (markers, empty batches), reading continues up to
the next batch that converts to some. An empty answer would make some clients fetch again at once, forever.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import (
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)

from kafkafmt.convert.chunks import may_take_long
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError
from kafkafmt.errors import UnsupportedCompressionTypeError as NoSuchCodecError
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.tail import FoundBatch
from kafkafmt.records.base import Records
from kafkafmt.records.range import RecordsRange
from kafkafmt.serve.partition import Partition
from kafkafmt.serve.partition_errors import error_code, leader_epoch_error_code, refusal_code
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from kafkafmt._util.steps import Steps
    from kafkafmt.log.open_segment import OpenSegment
    from kafkafmt.serve.options import ServeOptions
    from kafkafmt.serve.topic_settings import TopicConfigs
    from kafkafmt.server.batch_work import BatchWork

# By version of Fetch, the newest message format that its consumers support, if that is not v2 (KIP-32, KIP-98).
_MAGIC = {0: 0, 1: 0, 2: 1, 3: 1}
_ZSTD_VERSION = 10  # the first whose consumers support zstd (KIP-110)


class PartitionFetch(NamedTuple):
    """What a client fetches from a partition. max_bytes: the limit, from the partition's and the response's.

    gets_one: return at least one whole batch, however large (KIP-74).
    compresses: compress records whose size is known only after that. Otherwise they are `uncompressed` in the answer.
    """

    offset: int
    max_bytes: int
    gets_one: bool
    version: int
    is_committed: bool
    current_leader_epoch: int = -1
    compresses: bool = True


@dataclass
class PartitionAnswer:
    """The answer for a partition. If it has an error, offsets are -1, as in Kafka.

    is_followed: the records are from a segment that has others after it.
    uncompressed: the stored records from which a chunk would be compressed. They are no part of the answer.
    """

    error_code: int = 0
    high_watermark: int = -1
    stable_offset: int = -1
    start_offset: int = -1
    aborted: list[AbortedTransaction] = field(default_factory=list)
    records: Records | None = None
    is_followed: bool = False
    uncompressed: Records | None = None

    @property
    def size(self) -> int:
        """Return the exact size of the records in bytes. It is known before the records are converted."""
        return 0 if self.records is None else self.records.size_in_bytes

    @property
    def source_size(self) -> int:
        """Return the size of the stored records in bytes, which `min_bytes` of a fetch is about, as in Kafka."""
        records = self.uncompressed if self.records is None else _stored(self.records)
        return 0 if records is None else records.size_in_bytes


class _Uncompressed(NamedTuple):
    """Stored records from which a chunk would be compressed."""

    records: RecordsRange


class FetchPlanner:
    """Plans the records that a fetch gets of a partition, by the endpoint's options.

    Converts the first batch; a whole chunk if the records get another codec.
    """

    def __init__(self, options: ServeOptions, topics: TopicConfigs, work: BatchWork) -> None:
        self._options = options
        self._topics = topics
        self._work = work

    async def plan(self, partition: Partition, fetch: PartitionFetch) -> PartitionAnswer:
        """Return the answer for a partition, with errors of its log as codes."""
        try:
            try:
                return await self._plan(partition, fetch)
            except FileNotFoundError:  # a segment was just deleted: read what is left
                return await self._plan(partition, fetch)
        except (KafkaFormatError, OSError) as error:
            return PartitionAnswer(error_code(partition, error))

    async def _plan(self, partition: Partition, fetch: PartitionFetch) -> PartitionAnswer:
        failed = await leader_epoch_error_code(partition, fetch.current_leader_epoch)
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
        if fetch.offset < stable_offset and (fetch.max_bytes > 0 or fetch.gets_one):
            await self._add_records(partition, fetch, answer)
        return answer

    async def _add_records(
        self, partition: Partition, fetch: PartitionFetch, answer: PartitionAnswer
    ) -> None:
        found = await self._find(partition, fetch, answer.stable_offset)
        if found is None or (fetch.max_bytes < found.size and not fetch.gets_one):
            return
        answer.is_followed = not found.segment.segment.is_active
        try:
            records = await self._records(partition, found, fetch)
        except (UnsupportedVersionError, UnsupportedCompressionTypeError) as refused:
            answer.error_code = refusal_code(partition, type(refused), fetch.version)
            return
        if isinstance(records, _Uncompressed):
            answer.uncompressed = records.records
            return
        answer.records = records
        if fetch.is_committed and records is not None:
            end = _stored(records).end_position
            answer.aborted = partition.log.aborted_transactions(fetch.offset, found.segment, end)

    async def _records(
        self, partition: Partition, found: FoundBatch, fetch: PartitionFetch
    ) -> Records | _Uncompressed | None:
        """Return the records from a batch on, in what this version of Fetch supports; None if there are none.

        Raises UnsupportedVersionError of Kafka if a batch within the limit is too new and its topic is not converted,
        as Kafka does, and UnsupportedCompressionTypeError of Kafka if the first batch has a codec without a substitute.
        """
        to_magic = _MAGIC.get(fetch.version, 2)
        converts = to_magic == 2 or self._topics.converts_down(partition.topic_partition.topic)
        if found.magic > to_magic:
            if not converts:
                raise UnsupportedVersionError
            try:
                return await self._converted(partition, found, fetch, to_magic)
            except NoSuchCodecError:
                raise UnsupportedCompressionTypeError from None
        opened, position = found.segment, found.position
        end = min(position + max(fetch.max_bytes, found.size), found.end_position)
        is_recompressed = found.row["codec"] == Codec.ZSTD and fetch.version < _ZSTD_VERSION
        if is_recompressed:
            if self._options.zstd_fallback is None:
                raise UnsupportedCompressionTypeError
            if not fetch.compresses:
                return await _uncompressed(partition, opened, position, end, found.size)
            end = min(end, position + max(self._options.chunk_bytes, found.size))
        if not opened.is_known_sound(position, end):
            end = await partition.run(opened.sound_end_steps(position, end))
        if to_magic < 2:
            old_end = await partition.run(
                _end_steps(opened, position, end, lambda rows: rows["magic"] <= to_magic)
            )
            if old_end < end and not converts:
                raise UnsupportedVersionError
            end = old_end
        if is_recompressed:
            end = await partition.run(_end_steps(opened, position, end, _has_zstd))
            return await self._recompressed(partition, opened.between(position, end), fetch, to_magic)
        if opened.has_zstd and fetch.version < _ZSTD_VERSION:
            end = await partition.run(_end_steps(opened, position, end, lambda rows: ~_has_zstd(rows)))
        return opened.between(position, end)

    async def _find(
        self, partition: Partition, fetch: PartitionFetch, stable_offset: int
    ) -> FoundBatch | None:
        """Return the first batch, and the end of what may be read of its segment; None if nothing may be read."""
        log = partition.log
        found = await partition.run(log.find_steps(fetch.offset))
        if found is None or stable_offset == log.end_offset:
            return found
        limit = await partition.run(log.find_steps(stable_offset))
        if limit is None or limit.segment.segment != found.segment.segment:
            return found
        return found._replace(end_position=limit.position) if limit.position > found.position else None

    async def _converted(
        self, partition: Partition, found: FoundBatch | None, fetch: PartitionFetch, to_magic: int
    ) -> LazyDownConvertRecords | _Uncompressed | None:
        """Return records, beginning with the first batch that converts to some; None if no batch does."""
        options = self._options
        codec = options.downconversion_codec
        while found is not None:
            opened = found.segment
            position = opened.passed.get((to_magic, fetch.offset), found.position)
            while True:
                size = (
                    found.size
                    if position == found.position
                    else await partition.call(partial(opened.batch_size, position, found.end_position))
                )
                if size is None:
                    break
                end = min(position + max(fetch.max_bytes, size), found.end_position)
                if codec is not None and not fetch.compresses:
                    return await _uncompressed(partition, opened, position, end, size)
                convert = partial(
                    LazyDownConvertRecords,
                    opened.between(position, end),
                    to_magic,
                    fetch.offset,
                    topic_partition=partition.topic_partition,
                    chunk_size=options.chunk_bytes,
                    zstd_fallback=options.zstd_fallback if codec is None else None,
                    limit_bytes=fetch.max_bytes,
                    codec=codec,
                )
                # The constructor converts the first batch that results in records; with a codec the first chunk.
                is_first = position == found.position and codec is None
                is_quick = is_first and not partition.is_remote and _is_quick(found.row, fetch.offset)
                converted = convert() if is_quick else await self._work.convert(convert)
                if converted.passed_position is None:
                    return converted
                position = converted.passed_position
                opened.remember_passed((to_magic, fetch.offset), position)
            found = await partition.run(partition.log.find_after_steps(opened))
        return None

    async def _recompressed(
        self, partition: Partition, records: RecordsRange, fetch: PartitionFetch, to_magic: int
    ) -> LazyDownConvertRecords:
        """Return zstd batches with another codec: those of one chunk, within the limits. They keep their format."""
        return await self._work.convert(
            partial(
                LazyDownConvertRecords,
                records,
                to_magic,
                topic_partition=partition.topic_partition,
                chunk_size=self._options.chunk_bytes,
                limit_bytes=fetch.max_bytes,
                codec=self._options.zstd_fallback,
            )
        )


async def _uncompressed(
    partition: Partition, opened: OpenSegment, position: int, end: int, first_size: int
) -> _Uncompressed:
    """Return stored records, to be compressed later. Raises KafkaFormatError if their first batch is damaged."""
    await partition.run(opened.sound_end_steps(position, position + first_size))
    return _Uncompressed(opened.between(position, end))


def _stored(records: Records) -> Records:
    """Return the stored records of those in an answer."""
    return records.source if isinstance(records, LazyDownConvertRecords) else records


def _is_quick(row: np.void, offset: int) -> bool:
    """Does a batch convert to records, by its index row, and within some milliseconds?"""
    is_converted = row["count"] > 0 and not row["is_control"] and row["last_offset"] >= offset
    return bool(is_converted) and not may_take_long({int(row["codec"]): int(row["size"])})


def _has_zstd(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    has_zstd: NDArray[np.bool_] = rows["codec"] == Codec.ZSTD
    return has_zstd


def _end_steps(
    opened: OpenSegment, position: int, end: int, matches: Callable[[NDArray[np.void]], NDArray[np.bool_]]
) -> Steps[int]:
    """Return where the first batch begins whose index row does not match; `end` without one."""
    with contextlib.suppress(KafkaFormatError):
        while (run := (yield from opened.run_steps(position, end))) is not None:
            rows = run.index
            differs = ~matches(rows)
            if differs.any():
                return int(rows["position"][differs.argmax()])
            position = run.end_position
            del run, rows  # they may hold a large batch
            yield None
    return end
