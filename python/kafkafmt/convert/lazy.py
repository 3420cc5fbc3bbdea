"""Lazy down-conversion in bounded memory, with a size that is committed beforehand (KIP-283).

A response must state its size before its records are converted. The committed size is S_pre = max(size of the source,
size of the first converted batch). If the converted records are smaller, padding follows: a message that declares more
bytes than are left. If they are larger, they are cut, and the consumer fetches the rest. The conversion makes one chunk
at a time, and each chunk is written before the next is made. With a limit for the response, the promise is the exact
size where that is cheap to know (`exact_size.py`).

Two things differ from Kafka. Batches before the first one with a result are skipped once; Kafka sends that first batch
twice. A batch after the first chunk that cannot be converted leads to padding; Kafka fails if more than one chunk is
left.
"""

from __future__ import annotations

import socket
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from _kafkafmt.batches.scan import scan
from _kafkafmt.records.converted_size import first_kept
from _kafkafmt.records.encode import padding_header
from _kafkafmt.wire.layout import LOG_OVERHEAD
from _kafkafmt.wire.views import SharedBytes
from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE, ChunkMemory, ConvertedChunks, chunk_memory_bytes
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.exact_size import Promise, is_worthwhile, walk
from kafkafmt.convert.options import ConversionOptions, ConversionStats
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.base import Records
from kafkafmt.records.channel import Channel, SizedSend, TruncatedFileError, raise_truncated, write_bytes
from kafkafmt.records.range import RecordsRange
from kafkafmt.records.runs import chunk_ranges
from kafkafmt.types import CodecLike, TopicPartition, check_int

if TYPE_CHECKING:
    import numpy as np

    from _kafkafmt.batches.scan import BatchRun

_FILLER = bytes(16 * 1024)
# A run that is read to find the first batch with a result has at most this many bytes.
_FIRST_BYTES = 64 * 1024
_NOTHING = memoryview(b"")
_NO_CHUNK = SharedBytes(b"")


class LazyDownConvertRecords(Records):
    """Records that are converted while they are sent (KIP-283, "Message Chunking").

    They are `Records` in the older format, or with another codec, of `size_in_bytes` bytes, padded or cut. Nothing is
    converted but the first batch, until their bytes are read or written. There are three ways to them:

    - `write_to(channel, position, length)` writes a range of the bytes, and the methods that read batches and records
      read them. One chunk is kept meanwhile. So going on from where the last call ended is cheap, and going back
      converts again from the start. A batch after the first one that cannot be converted is padding here.
    - `to_send()` writes the same bytes, for protocols that state the size first. Sends can share memory.
    - `chunks()` yields all converted records and nothing else, whatever their length.

    A chunk is made of whole batches of at most `chunk_size` source bytes, or of one larger batch. The source must stay
    readable, and a file open, until all is sent.

    zstd_fallback: the codec for zstd batches that are converted below v2. With None such a batch is an error, as in
    Kafka. If it is the first batch, creating this object raises the error. Otherwise padding replaces it and all
    batches after it.

    limit_bytes: the most bytes that the consumer accepts. With None `size_in_bytes` is the KIP's estimate. With a
    number it is the exact size if that is cheap to know. Batches that would exceed the limit are left out then, except
    the first one, and the result is neither padded nor cut.

    codec: compress the records with it (KIP-283, "Rejected Alternatives: Compression"). Their size is known only after
    that. So these are the records of the first chunk alone, which is converted here, and `size_in_bytes` is exact. The
    chunk ends after the batch with which it exceeds one and a half times `chunk_size`, or before it exceeds the limit.

    Attributes:
        source: the records that are converted.
        to_magic: the format that they are converted to.
        first_offset: records below it are left out of uncompressed batches.
        start_position: 0; `end_position` is `size_in_bytes`.

    Creating this object converts the first batch. It raises UnsupportedCompressionTypeError, or another
    KafkaFormatError, if that batch cannot be converted.
    """

    def __init__(
        self,
        records: Records,
        to_magic: int,
        first_offset: int = 0,
        *,
        topic_partition: TopicPartition | None = None,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        zstd_fallback: CodecLike | None = None,
        verify: bool = True,
        limit_bytes: int | None = None,
        codec: CodecLike | None = None,
    ) -> None:
        if not isinstance(records, Records):
            raise TypeError(
                f"records: expected MemoryRecords, FileRecords or other Records, found {type(records).__name__}"
            )
        check_int("to_magic", to_magic)
        check_int("chunk_size", chunk_size)
        if chunk_size < 1:
            raise ValueError(f"chunk_size: expected 1 or more, found {chunk_size}")
        if limit_bytes is not None:
            check_int("limit_bytes", limit_bytes, 0)
        self.source = records
        self.to_magic = to_magic
        self.first_offset = first_offset
        self.chunk_size = chunk_size
        self.is_remote = records.is_remote
        self._options = ConversionOptions(
            to_magic,
            first_offset,
            zstd_fallback,
            verify,
            max_decompressed_bytes=records.max_decompressed_bytes,
            codec=codec,
        )
        self._limit_bytes = limit_bytes
        self._first, self._first_stats = b"", ConversionStats()
        # Where the first batch with a result begins, and where the batch after it begins. The end if there is none.
        self._start = self._rest_position = records.start_position
        first = self._convert_first()
        self._converts, self._first_end = bool(self._first), self._rest_position
        if first is None:
            size = LOG_OVERHEAD if self._rest_position > records.start_position else 0
            self._sent_end = records.end_position
        else:
            size, self._sent_end = self._promise(first)
        place = records.topic_partition if topic_partition is None else topic_partition
        super().__init__(0, size, place, records.max_decompressed_bytes)
        self._sent = deque[_SentBytes](maxlen=1)  # the one that was read last, unless a thread reads it

    def __repr__(self) -> str:
        options = self._options
        fallback = (
            f", zstd_fallback={options.zstd_fallback.name}" if options.zstd_fallback is not None else ""
        )
        return (
            f"LazyDownConvertRecords({self.source!r}, to_magic={options.to_magic}, "
            f"first_offset={options.first_offset}{fallback}, size_in_bytes={self.size_in_bytes})"
        )

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes that `to_send()` writes: S_pre of KIP-283, "Determining Total Response Size".

        It is the size of the source, or of the first converted batch if that is larger. It is 12, the size of a header,
        if no batch of the source becomes a batch of the result, as with control batches only. The chunks of `chunks()`
        may have fewer or more bytes. With a limit or a codec it may be the exact size.
        """
        return super().size_in_bytes

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the chunk that was read last."""
        return {**self.__dict__, "_sent": deque(maxlen=1)}

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
        """Return `size` converted bytes from `position`, or fewer at the end. `memory` is not used.

        Raises ValueError for a position or a size below 0, and OSError or EOFError if the source cannot be read.
        """
        check_int("position", position, 0)
        check_int("size", size, 0)
        parts = []
        while size > 0 and len(data := self._bytes_at(position)[:size]):
            parts.append(data)
            position, size = position + len(data), size - len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Offer a channel the bytes of one chunk, from `position`; return how many it took (KIP-283, "writeTo").

        Raises ValueError for a position outside of these records, and OSError or EOFError if the source cannot be read.
        """
        position, end = self._range(position, length)
        taken = write_bytes(channel, self._bytes_at(position)[: end - position])
        if position + taken == self.end_position:
            self._sent.clear()
        return taken

    def _bytes_at(self, position: int) -> memoryview:
        """Return the rest of a chunk from `position` on; nothing at the end."""
        try:
            sent = self._sent.pop()
        except IndexError:  # nothing was read, or another thread reads it
            sent = _SentBytes(self)
        if position < sent.start_position:
            sent = _SentBytes(self)
        data = sent.at(position)
        self._sent.append(sent)
        return data

    @property
    def passed_position(self) -> int | None:
        """The position after these records if no batch has a result, so that a send is padding only; else None."""
        return None if self._converts else self._rest_position

    @property
    def first_bytes(self) -> int:
        """The bytes of the first converted batch that are in memory."""
        return len(self._first)

    def forget_first(self) -> None:
        """Free the first converted batch. The next send converts it again. The time that it took still counts."""
        if self._first:
            self._first, self._rest_position = b"", self._start
            self._first_stats = ConversionStats(seconds=self._first_stats.seconds)

    def first_again(self, stats: ConversionStats) -> bytes:
        """Convert what was converted beforehand once more, after `forget_first`. Returns the same bytes.

        The conversion adds its statistics to `stats`. Raises KafkaFormatError, and OSError or EOFError if the source
        cannot be read.
        """
        converter = Converter(self._options, stats, max_output_bytes=self._most_first_bytes)
        size = self._first_end - self._start
        try:
            run = next(self.source.runs(self._start, run_bytes=size, reuse_memory=True), None)
            if run is None:
                self.source.ensure_reaches(self._first_end)
                raise_truncated(self._start, size)
            converter.convert(run)
        except KafkaFormatError as error:
            raise self.source.with_source(error) from None
        return bytes(converter.output)

    @property
    def _most_first_bytes(self) -> int:
        """The most bytes that are converted beforehand, if the first batch is not larger. Without a codec: no limit."""
        if self._options.codec is None:
            return sys.maxsize
        most_bytes = chunk_memory_bytes(self.chunk_size)
        return most_bytes if self._limit_bytes is None else min(most_bytes, max(self._limit_bytes, 1))

    def _convert_first(self) -> np.void | None:
        """Convert the first batch with a result; with a codec, all of its chunk. Return its index row, or None."""
        to_magic, first_offset, codec = self.to_magic, self.first_offset, self._options.codec
        run_bytes = min(self.chunk_size, _FIRST_BYTES) if codec is None else self.chunk_size
        converter = Converter(self._options, self._first_stats, max_output_bytes=self._most_first_bytes)
        try:
            for run in self.source.runs(run_bytes=run_bytes, reuse_memory=True):
                passed = number = 0
                while (number := first_kept(run, number, to_magic, first_offset)) < len(run):
                    self._check_passed(run, passed, number)
                    stop = _convert(converter, run, number, number + 1 if codec is None else len(run))
                    row: np.void = run.index[number].copy()
                    last = run.index[stop - 1]
                    self._start = int(row["position"])
                    self._rest_position = int(last["position"]) + int(last["size"])
                    if len(converter.output):
                        self._first = bytes(converter.output)
                        if codec is not None and self._limit_bytes is not None:
                            self._first = _within(self._first, self._limit_bytes)
                        return row
                    passed = number = stop
                self._check_passed(run, passed, len(run))
                self._start = self._rest_position = run.end_position
        except KafkaFormatError as error:
            raise self.source.with_source(error) from None
        return None

    def _promise(self, first: np.void) -> Promise:
        """Return the bytes that are promised, and where the records of the source end that are converted for them.

        With a codec and a limit, the last converted batches may be left out.
        """
        source, size, limit_bytes = self.source, len(self._first), self._limit_bytes
        if self._options.codec is not None:
            return Promise(size, self._rest_position)
        if limit_bytes is None or not is_worthwhile(source, first, size, self.first_offset):
            return Promise(max(source.size_in_bytes, size), source.end_position)
        return walk(source, self._rest_position, size, self.to_magic, self.first_offset, limit_bytes)

    def _check_passed(self, run: BatchRun, first: int, stop: int) -> None:
        """Check the CRCs of batches that are skipped by their headers alone."""
        if self._options.verify and first < stop:
            run.ensure_valid(first, stop)

    def chunks(
        self, reuse_memory: bool = False, *, stats: ConversionStats | None = None
    ) -> Iterator[memoryview]:
        """Iterate the converted records, chunk by chunk, for a target that needs no size beforehand.

        The chunks are whole batches, without cut and without padding. Their total length may be more or less than
        `size_in_bytes`.

        Each chunk is a read-only view that owns its bytes. With `reuse_memory` all chunks share one buffer, and each is
        valid until the next one is requested. The conversion adds its statistics to `stats`. Raises KafkaFormatError
        for a batch that is damaged or cannot be converted, after all chunks before it.
        """
        stats = ConversionStats() if stats is None else stats
        first, rest = self.started(stats, reuse_memory=reuse_memory)
        if first:
            yield first
        yield from rest

    def started(
        self, stats: ConversionStats, memory: ChunkMemory | None = None, *, reuse_memory: bool = False
    ) -> tuple[memoryview, ConvertedChunks]:
        """Return the first converted batch, empty if it is not in memory, and the chunks after it.

        See `ConvertedChunks` for the arguments.
        """
        stats.add(self._first_stats)
        return memoryview(self._first), self.rest(stats, memory, reuse_memory=reuse_memory)

    def rest(
        self, stats: ConversionStats, memory: ChunkMemory | None = None, *, reuse_memory: bool = False
    ) -> ConvertedChunks:
        """Return the chunks after the first converted batch, or all chunks if that is not in memory."""
        records = self.source
        if self._sent_end < records.end_position:
            records = RecordsRange(records, records.start_position, self._sent_end, records._run_filter)
        return ConvertedChunks(
            records,
            self._options,
            self._rest_position if self._converts else records.end_position,
            chunk_size=self.chunk_size,
            stats=stats,
            reuse_memory=reuse_memory,
            memory=memory,
        )

    def to_send(self, memory: ChunkMemory | None = None) -> LazyDownConvertSend:
        """Return a send that writes exactly `size_in_bytes` bytes: converted records that are cut or padded.

        Each send converts again, so that records can be sent more than once. memory: many sends may share it; then a
        send holds memory only for the chunk that is partly written.
        """
        return LazyDownConvertSend(self, memory)


def _convert(converter: Converter, run: BatchRun, number: int, stop: int) -> int:
    """Convert batches, up to one that cannot be converted if others are before it. Return the number of the next one.

    Raises KafkaFormatError for the first batch.
    """
    try:
        return converter.convert(run, number, stop)
    except KafkaFormatError as error:
        if not len(converter.output) or error.position is None:
            raise
        return int(run.index["position"].searchsorted(error.position))


def _within(converted: bytes, limit_bytes: int) -> bytes:
    """Return as many of the first converted batches as fit into the limit, and one at least."""
    sizes = scan(converted)[0].index["size"]
    _, stop = next(chunk_ranges(sizes, limit_bytes))
    return converted[: int(sizes[:stop].sum())]


class _SentBytes:
    """The bytes that a send writes, by their position. One chunk is kept; only later positions can be asked for."""

    def __init__(self, records: LazyDownConvertRecords) -> None:
        self._send = records.to_send()
        self._chunk = _NO_CHUNK
        self.start_position = 0  # of the chunk

    def at(self, position: int) -> memoryview:
        """Return the rest of a chunk from `position` on; nothing at the end."""
        while position >= self.start_position + len(self._chunk) and not self._send.completed:
            self._send.write_to(self)
        return self._chunk.part(position - self.start_position, len(self._chunk))

    def write(self, data: memoryview, /) -> int:
        """Keep a chunk, which owns its bytes."""
        self.start_position += len(self._chunk)
        self._chunk = SharedBytes(data)
        return len(data)


class LazyDownConvertSend(SizedSend):
    """Writes `size_in_bytes` bytes to a channel, over as many calls of `write_to` as it needs.

    `error` is the KafkaFormatError that ended the conversion early, or None. In that case padding replaces the rest. A
    consumer that fetches the rest gets the error at once. Any other error, such as a failed read of the source, is
    raised by `write_to`, and again by each later call.
    """

    def __init__(self, records: LazyDownConvertRecords, memory: ChunkMemory | None = None) -> None:
        self.stats = ConversionStats()
        self.error: KafkaFormatError | None = None
        super().__init__(records.size_in_bytes)
        self._pending, chunks = records.started(self.stats, memory)
        self._pending = self._pending[: self._remaining]
        # Set while the pending bytes are those that were converted beforehand, and not a chunk.
        self._records = records if len(self._pending) else None
        self._first_bytes = records.first_bytes
        self._chunks: ConvertedChunks | None = chunks
        self._taken = 0  # bytes already written of the pending ones, also after these were released
        self._failure: Exception | None = None

    @property
    def needed_bytes(self) -> int:
        """The bytes of memory that the next `write_to` needs for a chunk; 0 if none. A large batch may need more."""
        if self._chunks is None or len(self._pending):
            return 0
        return self._chunks.needed_bytes if self._records is None else self._first_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of memory of the chunk that is partly written; 0 if there is none."""
        if self._chunks is None or not len(self._pending):
            return 0
        return memoryview(self._pending.obj).nbytes

    def write_to(self, channel: Channel | socket.socket) -> int:
        """Offer the channel the rest of the current chunk, or the next chunk; return how many bytes it took.

        Returns 0 if it took none, or if all bytes are written. Raises OSError or EOFError if the source cannot be read.
        """
        if self.completed:
            return 0
        self.convert_next()
        taken = write_bytes(channel, self._pending)
        self._pending = self._pending[taken:]
        self._remaining -= taken
        self._taken += taken
        if not len(self._pending):
            self._pending = _NOTHING  # an empty view of the chunk would keep it alive
            self._taken, self._records = 0, None
            if self._chunks is not None:
                self._chunks.release()
                if self.completed:
                    self._chunks = None
        return taken

    def read_next(self) -> bool:
        """Read the source of the next chunk; return whether converting it may take long; see `ConvertedChunks`."""
        if not self.needed_bytes or self._chunks is None:
            return False
        return self._records is not None or self._chunks.read_next()

    def convert_next(self) -> None:
        """Make the next chunk, unless one is pending. `write_to` calls this, too.

        May be called in another thread while no other method of this send runs. Raises as `write_to` does.
        """
        if not self.completed and not len(self._pending):
            self._pending = self._next()[self._taken :][: self._remaining]

    def release_chunk(self) -> None:
        """Release the memory of the chunk that is partly written, for other sends.

        The next `write_to` converts the chunk again, to the same bytes: a TLS socket accepts no fewer than it was
        offered before.
        """
        if not self.held_bytes or self._chunks is None:
            return
        self._pending = _NOTHING
        if self._records is not None:
            self._records.forget_first()
        else:
            self._chunks.rewind()

    def _next(self) -> memoryview:
        if self._failure is not None:
            raise self._failure
        if self._chunks is None:
            return memoryview(_FILLER)
        try:
            return next(self._chunks) if self._records is None else self._first_again(self._records)
        except StopIteration:
            if self._taken:  # padding cannot follow a part of a message
                message = (
                    f"file truncated: expected a batch at position {self._chunks.position}, found its end"
                )
                self._failure = TruncatedFileError(message)
                raise self._failure from None
        except KafkaFormatError as error:
            if self._taken:
                self._failure = error
                raise
            self.error = error
        except Exception as failure:  # a failed read, not damaged data: padding must not replace the rest
            self._failure = failure
            raise
        self._chunks.release()
        self._chunks = None
        return memoryview(padding_header(self._remaining) + _FILLER)

    def _first_again(self, records: LazyDownConvertRecords) -> memoryview:
        """Return what was converted beforehand. Its records are counted already, the time is not."""
        stats = ConversionStats()
        first = records.first_again(stats)
        self.stats.seconds += stats.seconds
        return memoryview(first)
