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
from kafkafmt.converter import Converter
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec, TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import Records

DEFAULT_CHUNK_SIZE = 512 * 1024  # where throughput peaks: bench/experiments/chunk_size.py
# Converted, a chunk seldom takes more than this many times its size; where it does, it is handed out in parts.
_MOST_GROWTH = 1.5
_FILLER = memoryview(bytes(16 * 1024))


def converted_chunks(
    records: Records,
    options: ConversionOptions,
    position: int | None = None,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    stats: ConversionStats | None = None,
) -> Iterator[memoryview]:
    """Records from `position` on in another format or codec, chunk by chunk: read-only views, of whole batches.

    A chunk is made of at most `chunk_size` source bytes, or one batch. Each view is valid until the next one is
    asked for. Raises, with all before it handed out, for a batch that is damaged or cannot be converted. `stats`
    is added to as the conversion goes on.
    """
    most = int(_MOST_GROWTH * min(chunk_size, records.size_in_bytes))
    converter = Converter(options, stats, max_output_bytes=most)
    try:
        for run in records.runs(position, run_bytes=chunk_size, reuse_memory=True):
            yield from _convert_run(converter, run)
    except KafkaFormatError as error:
        raise records.described(error) from None


def _convert_run(converter: Converter, run: BatchRun) -> Iterator[memoryview]:
    """A chunk; in parts where it grows beyond what its output may take."""
    row = 0
    while row < len(run):
        converter.clear()
        try:
            row = converter.convert(run, row)
        except KafkaFormatError:
            if output := converter.output:
                yield output
            raise
        if output := converter.output:
            yield output


class LazyDownConvertRecords:
    """Records that are converted as they are sent (KIP-283, "Message Chunking").

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
        zstd_fallback: Codec | None = None,
        verify: bool = True,
    ) -> None:
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
        self._first, self._rest_position, self._first_stats = self._convert_first()
        if self._first:
            self._size = max(records.size_in_bytes, len(self._first))
        else:
            self._size = LOG_OVERHEAD if self._rest_position else 0

    @property
    def size_in_bytes(self) -> int:
        """S_pre: what a send writes, to the byte (KIP-283, "Determining Total Response Size")."""
        return self._size

    def _convert_first(self) -> tuple[bytes, int, ConversionStats]:
        """The first batch that converts to something, and where the batch behind it begins (0: no batch)."""
        converter = Converter(self._options)
        position = 0
        try:
            for run in self.records.runs(run_bytes=self.chunk_size, reuse_memory=True):
                passed = 0
                for number in self._may_yield(run):
                    self._check_passed(run, passed, number)
                    passed = number + 1
                    converter.convert(run, number, number + 1)
                    position = int(run.index["position"][number] + run.index["size"][number])
                    if len(converter.output):
                        return bytes(converter.output), position, converter.stats
                self._check_passed(run, passed, len(run))
                position = run.end_position
        except KafkaFormatError as error:
            raise self.records.described(error) from None
        return b"", position, converter.stats

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

    def chunks(self, stats: ConversionStats | None = None) -> Iterator[memoryview]:
        """What is converted, chunk by chunk, without cut or padding: read-only views.

        Each view is valid until the next one is asked for. Raises, with all before it handed out, for a batch
        that is damaged or cannot be converted. `stats` is added to as the conversion goes on.
        """
        stats = ConversionStats() if stats is None else stats
        stats.add(self._first_stats)
        if not self._first:
            return
        yield memoryview(self._first)
        yield from converted_chunks(
            self.records, self._options, self._rest_position, chunk_size=self.chunk_size, stats=stats
        )

    def to_send(self) -> LazyDownConvertSend:
        """A send of its own: it converts anew, so that records can be sent more than once."""
        return LazyDownConvertSend(self)


class LazyDownConvertSend:
    """Writes `size_in_bytes` bytes to channels that take what they can; resumes where they stopped.

    `error` is what ended the conversion early, where something did: padding was sent in place of the rest,
    and a consumer that fetches on from there meets the error at once. Any other error, of reading the source
    say, is raised by `write_to`, and again by each call after it.
    """

    def __init__(self, records: LazyDownConvertRecords) -> None:
        self.stats = ConversionStats()
        self.error: KafkaFormatError | None = None
        self._remaining = records.size_in_bytes
        self._chunks: Iterator[memoryview] | None = records.chunks(self.stats)
        self._pending = memoryview(b"")
        self._failure: Exception | None = None

    @property
    def remaining(self) -> int:
        """Bytes still to be written."""
        return self._remaining

    @property
    def completed(self) -> bool:
        return self._remaining == 0

    def write_to(self, channel: Channel | socket.socket) -> int:
        """Offer the channel what is left of the current chunk, or the next one; return how many bytes it took.

        0 where it took none, or all is written.
        """
        if self.completed:
            return 0
        if not len(self._pending):
            self._pending = self._next()[: self._remaining]
        taken = write_bytes(channel, self._pending)
        self._pending = self._pending[taken:]
        self._remaining -= taken
        if self.completed:
            self._chunks = None
        return taken

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
        self._chunks = None
        return memoryview(padding_header(self._remaining))
