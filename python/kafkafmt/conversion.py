"""Batches from one message format into another, into one output buffer that is used again.

Down to v1 or v0 as Kafka's RecordsUtil.downConvert does it: control batches are dropped, and of uncompressed
batches the records below the first offset; batches that are old enough are copied; a compressed batch stays
one batch with the same codec, all its records kept. Up to v2, which is all that brokers of version 4 take:
a wrapper becomes a batch with the same codec; messages that stand alone are gathered into batches.

Uncompressed batches go through one kernel call for a whole run; each compressed batch through its codec.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.convert import DONE, NEEDS_CODEC, NEEDS_ROOM, RunConverter
from _kafkafmt.encode import encode_messages, encode_records, wrap_messages
from _kafkafmt.layout import MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1
from kafkafmt import codecs
from kafkafmt.batch import seal
from kafkafmt.decoding import ascending_offsets, describe, locate
from kafkafmt.errors import KafkaFormatError, UnsupportedCompressionTypeError
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.decode import LocatedRecords
    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import MemoryRecords

# Messages that stand alone are gathered into v2 batches of this size: the default `batch.size` of producers.
UP_CONVERTED_BATCH_BYTES = 16 * 1024
_MOST_SPARE_BYTES = 64 * 1024 * 1024


@dataclass
class ConversionStats:
    """What a conversion cost (KIP-188's and KIP-283's figures).

    records_converted: records rewritten into the target format; those copied unchanged do not count.
    temporary_memory_bytes: sizes of the source batches plus, uncompressed, of what was made of them.
    seconds: time spent converting.
    """

    records_converted: int = 0
    temporary_memory_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: ConversionStats) -> None:
        self.records_converted += other.records_converted
        self.temporary_memory_bytes += other.temporary_memory_bytes
        self.seconds += other.seconds


@dataclass(frozen=True)
class ConvertedRecords:
    """The outcome of an eager conversion."""

    records: MemoryRecords
    stats: ConversionStats


@dataclass(frozen=True)
class ConversionOptions:
    """How to convert.

    to_magic: 0, 1 or 2.
    first_offset: records below it are left out of uncompressed batches that are converted down.
    zstd_fallback: the codec that zstd batches get below v2, which has no zstd; None is Kafka's way, an error.
    verify: check the CRC of every batch, of those that are copied too.
    max_decompressed_bytes: the most that one batch may decompress to.
    clock: seconds, for the statistics.
    """

    to_magic: int
    first_offset: int = 0
    zstd_fallback: Codec | None = None
    verify: bool = True
    max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        if self.to_magic not in (0, 1, 2):
            raise ValueError(f"to_magic: expected 0, 1 or 2, found {self.to_magic!r}")
        if self.zstd_fallback == Codec.ZSTD:
            raise ValueError("zstd_fallback: expected a codec other than zstd")


class Converter:
    """Appends converted batches to its output; `clear()` makes room for the next ones in the same memory.

    With `max_output_bytes` `convert` stops short before the output takes more memory than that, but for one
    batch: the first, and one that had to be compressed to know its size.
    """

    def __init__(
        self,
        options: ConversionOptions,
        stats: ConversionStats | None = None,
        *,
        max_output_bytes: int | None = None,
    ) -> None:
        self.options = options
        self.stats = ConversionStats() if stats is None else stats
        self._max_output_bytes = max_output_bytes
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._messages: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._size = 0

    @property
    def output(self) -> memoryview:
        """What was converted since `clear()`, read-only; overwritten by the next conversion after that."""
        return self._memory[: self._size].data.toreadonly()

    def clear(self) -> None:
        self._size = 0

    def convert(self, run: BatchRun, first: int = 0, stop: int | None = None) -> int:
        """Convert batches `first` to `stop` of a run; return the row behind the last one.

        That is `stop`, or less where the output is full, which an empty one never is. Where a batch is
        damaged or cannot be converted, its error is raised with the batches before it in the output.
        """
        stop = len(run) if stop is None else stop
        options = self.options
        started = options.clock()
        kernel = RunConverter(
            run, first, options.to_magic, options.first_offset, verify=options.verify, position=self._size
        )
        kernel.use_scratch(self._messages)
        try:
            self._reserve(kernel.room(stop), self._max_output_bytes)
            while (outcome := kernel.convert(self._memory, stop)) != DONE:
                self._size = kernel.position
                if self._size and self._is_full(outcome):
                    break
                if outcome == NEEDS_CODEC:
                    self._convert_with_codec(kernel, stop)
                    kernel.position = self._size
                else:
                    self._reserve(kernel.room(kernel.next + 1))
        finally:
            self._size = kernel.position
            self.stats.records_converted += kernel.records
            self.stats.temporary_memory_bytes += kernel.temporary_bytes
            self.stats.seconds += options.clock() - started
        return kernel.next

    def _is_full(self, outcome: int) -> bool:
        if self._max_output_bytes is None:
            return False
        return outcome == NEEDS_ROOM or self._size >= self._max_output_bytes

    def expect(self, size: int) -> None:
        """Reserve memory for an output of about `size` bytes in all, a little spare added."""
        if size > len(self._memory):
            self._reserve(size + size // 32 - self._size)

    def _reserve(self, more: int, most: int | None = None) -> None:
        """Make room for `more` bytes, or for as many as `most` bytes of output leave."""
        size = self._size + more
        if most is not None:
            size = min(size, most)
        if size <= len(self._memory):
            return
        kept = self._memory[: self._size]
        if not self._size:
            self._memory = kept  # what is not kept is freed before more is taken
        spare = 0 if self._max_output_bytes is not None else _MOST_SPARE_BYTES
        grown = np.empty(max(size, min(2 * len(self._memory), size + spare)), np.uint8)
        grown[: self._size] = kept
        self._memory = grown

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        self._reserve(len(data))
        self._memory[self._size : self._size + len(data)] = np.frombuffer(data, np.uint8)
        self._size += len(data)

    def _convert_with_codec(self, kernel: RunConverter, stop: int) -> None:
        """Convert the next batch of a run, and those that go into one batch with it."""
        run, number = kernel.run, kernel.next
        if self.options.to_magic == 2:
            is_plain = run.index["codec"][number] == Codec.NONE
            stop = (
                number + _gathered(run.index[number:stop], UP_CONVERTED_BATCH_BYTES)
                if is_plain
                else number + 1
            )
            self._convert_up(run, number, stop)
            kernel.next = stop
        elif run.index["magic"][number] < 2:
            self._convert_wrapper(run, number)
            kernel.next = number + 1
        else:
            self._convert_batch(kernel)

    def _convert_batch(self, kernel: RunConverter) -> None:
        """A compressed v2 batch into a wrapper around messages, or into plain messages."""
        payload, codec, count = kernel.payload()
        if not count:
            kernel.next += 1
            return
        options, to_codec = self.options, codec
        try:
            if codec == Codec.ZSTD:
                to_codec = self._instead_of_zstd()
            records = codecs.decompress(codec, payload, limit=options.max_decompressed_bytes)
        except KafkaFormatError as error:
            raise describe(error, kernel.run, kernel.next) from None
        is_wrapped = to_codec != Codec.NONE
        messages = kernel.convert_payload(records, is_wrapped=is_wrapped)
        if messages is None:
            self._messages = np.empty(kernel.room_for_payload(len(records)), np.uint8)
            kernel.use_scratch(self._messages)
            messages = kernel.convert_payload(records, is_wrapped=is_wrapped)
            assert messages is not None
        if is_wrapped:
            compressed = codecs.compress(to_codec, messages, magic=options.to_magic)
            self._reserve(len(compressed) + MESSAGE_OVERHEAD_V1)
            kernel.wrap(compressed, to_codec, self._memory)
            self._size = kernel.position
        else:
            self._append(messages)
            kernel.next += 1

    def _instead_of_zstd(self) -> Codec:
        options = self.options
        if options.zstd_fallback is None:
            message = (
                f"message format v{options.to_magic} has no zstd: expected another codec or a zstd_fallback"
            )
            raise UnsupportedCompressionTypeError(f"{message}, found zstd")
        return options.zstd_fallback

    def _locate(self, run: BatchRun, first: int, stop: int) -> LocatedRecords:
        options = self.options
        return locate(run, first, stop, verify=options.verify, limit=options.max_decompressed_bytes)

    def _convert_wrapper(self, run: BatchRun, number: int) -> None:
        """A v1 wrapper into a v0 wrapper with the same codec."""
        located = self._locate(run, number, number + 1)
        header = run.index[number : number + 1].copy()
        header["magic"] = magic = self.options.to_magic
        header["last_offset"] = located.offsets()[-1]
        messages = encode_messages(located, 0, len(located), magic, TimestampType.NO_TIMESTAMP)
        self._count(run, number, number + 1, len(located), len(messages))
        self._append(wrap_messages(codecs.compress(int(header["codec"][0]), messages, magic=magic), header))

    def _convert_up(self, run: BatchRun, first: int, stop: int) -> None:
        """A wrapper, or messages that stand alone, into one v2 batch."""
        located = self._locate(run, first, stop)
        offsets, timestamps = ascending_offsets(located, run, first), located.timestamps()
        batch = encode_records(located, 0, len(located), int(offsets[0]), int(timestamps[0]))
        self._count(run, first, stop, len(located), len(batch))
        header = run.index[first : first + 1].copy()
        header["base_offset"], header["last_offset"] = offsets[0], offsets[-1]
        header["base_timestamp"], header["max_timestamp"] = timestamps[0], timestamps.max()
        header["count"] = len(located)
        self._append(seal(batch, header, Codec(int(header["codec"][0]))))

    def _count(self, run: BatchRun, first: int, stop: int, records: int, converted_bytes: int) -> None:
        self.stats.records_converted += records
        self.stats.temporary_memory_bytes += int(run.index["size"][first:stop].sum()) + converted_bytes


def _gathered(rows: NDArray[np.void], max_bytes: int) -> int:
    """How many of the messages at the head of `rows`, none of them compressed, one v2 batch can hold.

    A batch has one timestamp type, one append time, and offsets that ascend within 2^31.
    """
    rows = rows[: max(1, max_bytes // MESSAGE_OVERHEAD_V0)]
    fits = (rows["magic"] < 2) & (rows["codec"] == 0) & (rows["timestamp_type"] == rows["timestamp_type"][0])
    if rows["timestamp_type"][0] == TimestampType.LOG_APPEND_TIME:
        fits &= rows["max_timestamp"] == rows["max_timestamp"][0]
    offsets = rows["last_offset"]
    fits[1:] &= (np.diff(offsets) > 0) & (offsets[1:] - offsets[0] <= np.iinfo(np.int32).max)
    fits &= rows["size"].cumsum() <= max_bytes
    fits[0] = True
    return len(fits) if fits.all() else int(fits.argmin())
