"""Lazy down-conversion in bounded memory, of a size committed beforehand (KIP-283).

A response must state its size before anything is converted. So S_pre = max(size of the source, size of the
first batch once converted) is promised: what converts to less is padded with a message that claims more than
what is left, what converts to more is cut, and the consumer fetches on from there. Conversion goes chunk by
chunk, each one written before the next is made, in one output buffer.

Unlike Kafka's own: batches in front of the first that converts to something are passed over once and for all
(Kafka sends that first batch twice), and what cannot be converted behind the first chunk leads to padding
wherever it stands (Kafka fails when more than one chunk is left).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from _kafkafmt.encode import padding_header
from _kafkafmt.layout import LOG_OVERHEAD
from kafkafmt.channel import Channel, write_bytes
from kafkafmt.conversion import ConversionOptions, ConversionStats
from kafkafmt.converted_chunks import DEFAULT_CHUNK_SIZE, ChunkMemory, ConvertedChunks
from kafkafmt.converter import Converter
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records import Records
from kafkafmt.types import Codec, CodecLike, TopicPartition, check_int

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

_FILLER = memoryview(bytes(16 * 1024))
# What is read to find the first batch that converts to something.
_FIRST_BYTES = 64 * 1024
_NOTHING = memoryview(b"")


class LazyDownConvertRecords:
    """Records that are converted as they are sent (KIP-283, "Message Chunking").

    `to_send()` is for protocols that state the size first: it writes `size_in_bytes` bytes, with padding or a cut.
    `chunks()` hands out all that is converted and nothing else, whatever its length.

    A chunk is made of whole batches of at most `chunk_size` source bytes, at least one, however large. The
    source must stay readable, and a file open, until all is sent.

    zstd_fallback: the codec that zstd batches get below v2; None is Kafka's way: an error where the first
    batch is one, padding in its place and in place of all behind it where a later one is.

    Raises UnsupportedCompressionTypeError, or whatever is wrong with it, for the first batch to convert.
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
    ) -> None:
        if not isinstance(records, Records):
            raise TypeError(
                f"records: expected MemoryRecords, FileRecords or other Records, found {type(records).__name__}"
            )
        check_int("to_magic", to_magic)
        check_int("chunk_size", chunk_size)
        if chunk_size < 1:
            raise ValueError(f"chunk_size: expected 1 or more, found {chunk_size}")
        self.records = records
        self.topic_partition = topic_partition if topic_partition is not None else records.topic_partition
        self.chunk_size = chunk_size
        self._options = ConversionOptions(
            to_magic,
            first_offset,
            zstd_fallback,
            verify,
            max_decompressed_bytes=records.max_decompressed_bytes,
        )
        self._first, self._first_stats = b"", ConversionStats()
        # Where the first batch that converts to something begins, and where the next one does: at the end where none.
        self._start = self._rest_position = records.start_position
        self._convert_first()
        self._converts = bool(self._first)
        if self._converts:
            self._size = max(records.size_in_bytes, len(self._first))
        else:
            self._size = LOG_OVERHEAD if self._rest_position > records.start_position else 0

    def __repr__(self) -> str:
        options = self._options
        fallback = (
            f", zstd_fallback={options.zstd_fallback.name}" if options.zstd_fallback is not None else ""
        )
        return (
            f"LazyDownConvertRecords({self.records!r}, to_magic={options.to_magic}, "
            f"first_offset={options.first_offset}{fallback}, size_in_bytes={self.size_in_bytes})"
        )

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes that `to_send()` writes, committed beforehand: S_pre of KIP-283.

        It is the size of the source, or of the first converted batch if that is larger ("Determining Total Response
        Size"). It is not the length of what `chunks()` hands out, which may be less or more.
        """
        return self._size

    @property
    def passed_position(self) -> int | None:
        """Where reading goes on if no batch here converts to anything, so that a send is padding alone; else None."""
        return None if self._converts else self._rest_position

    @property
    def first_bytes(self) -> int:
        """What is held of what was converted to learn the size."""
        return len(self._first)

    def forget_first(self) -> None:
        """Hold nothing that was converted to learn the size: a send converts the first batch again."""
        if self._first:
            self._first, self._rest_position = b"", self._start
            self._first_stats = ConversionStats()

    def _convert_first(self) -> None:
        """Find the first batch that converts to something."""
        converter = Converter(self._options, self._first_stats)
        try:
            for run in self.records.runs(run_bytes=min(self.chunk_size, _FIRST_BYTES), reuse_memory=True):
                passed = 0
                for number in self._may_yield(run):
                    self._check_passed(run, passed, number)
                    passed = number + 1
                    converter.convert(run, number, number + 1)
                    self._start = int(run.index["position"][number])
                    self._rest_position = self._start + int(run.index["size"][number])
                    if len(converter.output):
                        self._first = bytes(converter.output)
                        return
                self._check_passed(run, passed, len(run))
                self._start = self._rest_position = run.end_position
        except KafkaFormatError as error:
            raise self.records.described(error) from None

    def _check_passed(self, run: BatchRun, first: int, stop: int) -> None:
        """Batches are passed over for what their headers say: so the headers must be right."""
        if self._options.verify:
            run.ensure_valid(first, stop)

    def _may_yield(self, run: BatchRun) -> list[int]:
        """Row numbers of the batches that conversion does not drop as a whole for what their header says."""
        rows, options = run.index, self._options
        if options.to_magic == 2:
            return list(range(len(run)))
        ascends = rows["base_offset"] <= rows["last_offset"]  # or the header lies
        below = (rows["codec"] == Codec.NONE) & ascends & (rows["last_offset"] < options.first_offset)
        dropped = rows["is_control"] | (rows["count"] == 0) | below
        yields = ~dropped | (rows["magic"] <= options.to_magic)
        return [int(number) for number in yields.nonzero()[0]]

    def chunks(
        self, stats: ConversionStats | None = None, *, reuse_memory: bool = False
    ) -> Iterator[memoryview]:
        """Iterate what is converted, chunk by chunk: for a target that needs no size beforehand.

        The chunks are whole batches, without cut and without padding. Their lengths add up to more or less than
        `size_in_bytes`, which is the number of bytes that a send writes: see `to_send`.

        Each chunk is a read-only view that owns its bytes. With `reuse_memory` all share one buffer, and each is valid
        until the next one is asked for. Raises, with all before it handed out, for a batch that is damaged or cannot
        be converted. `stats` is added to as the conversion goes on.
        """
        stats = ConversionStats() if stats is None else stats
        first, rest = self.started(stats, reuse_memory=reuse_memory)
        if first:
            yield first
        yield from rest

    def started(
        self, stats: ConversionStats, memory: ChunkMemory | None = None, *, reuse_memory: bool = False
    ) -> tuple[memoryview, ConvertedChunks]:
        """What is converted already, which may be nothing, and the chunks behind it; see `ConvertedChunks`."""
        stats.add(self._first_stats)
        position = self._rest_position if self._converts else self.records.end_position
        rest = ConvertedChunks(
            self.records,
            self._options,
            position,
            chunk_size=self.chunk_size,
            stats=stats,
            reuse_memory=reuse_memory,
            memory=memory,
        )
        return memoryview(self._first), rest

    def to_send(self, memory: ChunkMemory | None = None) -> LazyDownConvertSend:
        """Return a send that writes exactly `size_in_bytes` bytes: what does not fit is cut, what lacks is padding.

        Each send converts anew, so that records can be sent more than once.

        With `memory`, which the sends of one thread may share, it holds what waits to be taken and nothing else.
        """
        return LazyDownConvertSend(self, memory)


class LazyDownConvertSend:
    """Writes `size_in_bytes` bytes to channels that take what they can; resumes where they stopped.

    `error` is what ended the conversion early, where something did: padding was sent in place of the rest,
    and a consumer that fetches on from there meets the error at once. Any other error, of reading the source
    say, is raised by `write_to`, and again by each call after it.
    """

    def __init__(self, records: LazyDownConvertRecords, memory: ChunkMemory | None = None) -> None:
        self.stats = ConversionStats()
        self.error: KafkaFormatError | None = None
        self._remaining = records.size_in_bytes
        self._memory = memory
        self._pending, chunks = records.started(self.stats, memory)
        self._pending = self._pending[: self._remaining]
        # While what is pending was converted already, and is no chunk.
        self._records = records if len(self._pending) else None
        self._chunks: ConvertedChunks | None = chunks
        self._taken = 0  # of what is pending, or was before it was let go
        self._failure: Exception | None = None

    @property
    def remaining(self) -> int:
        """Bytes still to be written."""
        return self._remaining

    @property
    def completed(self) -> bool:
        return self._remaining == 0

    @property
    def needed_bytes(self) -> int:
        """The memory that the next `write_to` takes for a chunk, that of one large batch excepted; 0: it takes none."""
        if self._chunks is None or len(self._pending):
            return 0
        return self._chunks.needed_bytes

    @property
    def held_bytes(self) -> int:
        """The memory of the chunk of which a part is still to be taken."""
        if self._chunks is None or not len(self._pending):
            return 0
        return memoryview(self._pending.obj).nbytes

    def write_to(self, channel: Channel | socket.socket) -> int:
        """Offer the channel what is left of the current chunk, or the next one; return how many bytes it took.

        0 where it took none, or all is written.
        """
        if self.completed:
            return 0
        if not len(self._pending):
            self._pending = self._next()[self._taken :][: self._remaining]
        taken = write_bytes(channel, self._pending)
        self._pending = self._pending[taken:]
        self._remaining -= taken
        self._taken += taken
        if not len(self._pending):
            self._pending = _NOTHING  # an empty view would hold the chunk
            self._taken, self._records = 0, None
            if self._chunks is not None:
                self._chunks.release()
                if self.completed:
                    self._chunks = None
        return taken

    def read_next(self) -> bool:
        """Read what the next `write_to` converts; may that take long? See `ConvertedChunks.read_next`."""
        return bool(self.needed_bytes) and self._chunks is not None and self._chunks.read_next()

    def let_go(self) -> None:
        """Give up the chunk of which a part is still to be taken: it is converted again for the next `write_to`.

        For others that wait for the memory. Only with `memory`.
        """
        if not self.held_bytes or self._chunks is None:
            return
        self._pending = _NOTHING
        if self._records is not None:
            self._records.forget_first()
            self._chunks = self._records.started(self.stats, self._memory)[1]
            self._records = None
        else:
            self._chunks.rewind()

    def _next(self) -> memoryview:
        if self._failure is not None:
            raise self._failure
        if self._chunks is None:
            return _FILLER
        try:
            return next(self._chunks)
        except StopIteration:
            pass
        except KafkaFormatError as error:
            self.error = error
        except Exception as failure:  # of reading, not of the data: nothing may be sent in place of the rest
            self._failure = failure
            raise
        self._chunks.release()
        self._chunks = None
        return memoryview(padding_header(self._remaining))
