"""Batches from one message format into another, into one output buffer that is used again.

Down to v1 or v0 as Kafka's RecordsUtil.downConvert does it: control batches are dropped, and of uncompressed
batches the records below the first offset; batches that are old enough are copied; a compressed batch stays
one batch with the same codec, all its records kept. Up to v2, which is all that brokers of version 4 take:
a wrapper becomes a batch with the same codec; messages that stand alone are gathered into batches.

One kernel call takes a whole run down, compressed batches included, for which it calls their codecs; what it
leaves, wrappers and what goes up, is located record by record and encoded anew.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from _kafkafmt.convert import DONE, NEEDS_ROOM, RunConverter
from _kafkafmt.encode import encode_messages, encode_records, wrap_messages
from _kafkafmt.layout import MESSAGE_OVERHEAD_V0
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
        if self.zstd_fallback is not None and self.zstd_fallback not in set(Codec) - {Codec.ZSTD}:
            raise ValueError(f"zstd_fallback: expected a codec other than zstd, found {self.zstd_fallback!r}")
        if self.max_decompressed_bytes < 0:
            raise ValueError(
                f"max_decompressed_bytes: expected 0 or more, found {self.max_decompressed_bytes}"
            )


def _ways(options: ConversionOptions) -> dict[int, tuple[Any, int, Any]]:
    """By codec how a batch is decompressed, which codec it gets, and how it is compressed; no zstd below v2."""
    ways: dict[int, tuple[Any, int, Any]] = {}
    for codec, implementation in codecs.CODECS.items():
        target = options.zstd_fallback if codec == Codec.ZSTD else codec
        if target is not None:
            ways[int(codec)] = implementation.decompress, int(target), codecs.CODECS[target].compress
    return ways


def _refuse(codec: int, to_magic: int) -> NoReturn:
    if codec != Codec.ZSTD:
        raise codecs.unsupported_error(codec, to_magic)
    message = f"message format v{to_magic} has no zstd: expected another codec or a zstd_fallback, found zstd"
    raise UnsupportedCompressionTypeError(message)


class Converter:
    """Appends converted batches to its output; `clear()` makes room for the next ones in the same memory.

    With `max_output_bytes` `convert` stops short before the output takes more than that, but for one batch:
    the first, or one that was converted by way of located records, whose size is not known before.
    """

    def __init__(
        self,
        options: ConversionOptions,
        stats: ConversionStats | None = None,
        *,
        max_output_bytes: int = sys.maxsize,
    ) -> None:
        self.options = options
        self.stats = ConversionStats() if stats is None else stats
        self._max_output_bytes = max_output_bytes
        self._is_bounded = max_output_bytes < sys.maxsize
        self._kernel = RunConverter(
            options.to_magic,
            options.first_offset,
            _ways(options),
            partial(_refuse, to_magic=options.to_magic),
            options.max_decompressed_bytes,
            verify=options.verify,
            max_output=max_output_bytes,
        )
        self._use_memory(np.empty(0, np.uint8))

    def _use_memory(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._view = memory, memory.data.toreadonly()
        self._kernel.use_memory(memory)

    @property
    def output(self) -> memoryview:
        """What was converted since `clear()`, read-only; overwritten by the next conversion after that."""
        return self._view[: self._kernel.position]

    def clear(self) -> None:
        self._kernel.position = 0

    def convert(self, run: BatchRun, first: int = 0, stop: int | None = None) -> int:
        """Convert batches `first` to `stop` of a run; return the row behind the last one.

        That is `stop`, or less where the output is full, which an empty one never is. Where a batch is
        damaged or cannot be converted, its error is raised with the batches before it in the output.
        """
        started = self.options.clock()
        kernel, stats = self._kernel, self.stats
        records, temporary_bytes = kernel.records, kernel.temporary_bytes
        kernel.start(run, first, len(run) if stop is None else stop)
        try:
            if not self._is_bounded:
                self._reserve(kernel.room())
            while (outcome := kernel.convert()) != DONE:
                if kernel.position and self._is_full(outcome):
                    break
                if outcome == NEEDS_ROOM:
                    self._reserve(kernel.needed)
                else:
                    self._convert_with_codec(run, kernel.next, kernel.stop)
        except KafkaFormatError as error:
            if error.position is None:  # it came from a codec, which does not know whose payload it had
                raise describe(error, run, kernel.next) from None
            raise
        finally:
            stats.records_converted += kernel.records - records
            stats.temporary_memory_bytes += kernel.temporary_bytes - temporary_bytes
            stats.seconds += self.options.clock() - started
        return kernel.next

    def _is_full(self, outcome: int) -> bool:
        more = self._kernel.needed if outcome == NEEDS_ROOM else 1
        return self._kernel.position + more > self._max_output_bytes

    def expect(self, size: int) -> None:
        """Reserve memory for an output of about `size` bytes in all, a little spare added."""
        if size > len(self._memory):
            self._reserve(size + size // 32 - self._kernel.position)

    def _reserve(self, more: int) -> None:
        """Make room for `more` bytes."""
        used = self._kernel.position
        size = used + more
        if size <= len(self._memory):
            return
        if not used:
            self._use_memory(np.empty(0, np.uint8))  # what is not kept is freed before more is taken
        if self._is_bounded:  # all at once: while it grew there would be two
            size = max(size, self._max_output_bytes)
        else:
            size = max(size, min(2 * len(self._memory), size + _MOST_SPARE_BYTES))
        grown = np.empty(size, np.uint8)
        grown[:used] = self._memory[:used]
        self._use_memory(grown)

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        self._reserve(len(data))
        start = self._kernel.position
        self._memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
        self._kernel.position += len(data)

    def _convert_with_codec(self, run: BatchRun, number: int, stop: int) -> None:
        """Convert a wrapper, or what goes up into one v2 batch."""
        end = number + 1
        if self.options.to_magic < 2:
            self._convert_wrapper(run, number)
        else:
            if run.index["codec"][number] == Codec.NONE:
                end = number + _gathered(run.index[number:stop], UP_CONVERTED_BATCH_BYTES)
            self._convert_up(run, number, end)
        self._kernel.skip_to(end)

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
