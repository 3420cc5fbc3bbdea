"""Convert batches from one message format or codec to another, into one output buffer.

Down to v1 or v0, as Kafka's RecordsUtil.downConvert:
- control batches are dropped, and so are records below the first offset in uncompressed batches;
- batches whose format is old enough are copied;
- a compressed batch becomes one wrapper with the same codec and all its records.

Up to v2, the only format that brokers of version 4 accept:
- a wrapper becomes a batch with the same codec;
- single messages are gathered into batches.

To a codec, if the options have one:
- a batch becomes one batch, and single messages are gathered into wrappers;
- a v2 batch that keeps its format keeps all header fields except size, codec and CRC;
- control batches and batches without records are never compressed.

One kernel call converts a whole run down, and calls the codecs of compressed batches. All other conversions locate the
records and encode them again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from _kafkafmt.records.convert import DONE, NEEDS_ROOM, RunConverter
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.encode import encode_messages, encode_records, seal_batch, wrap_messages
from _kafkafmt.wire.layout import MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.convert.options import ConversionOptions, ConversionStats, target_codec
from kafkafmt.errors import InvalidRecordError, KafkaFormatError, UnsupportedCompressionTypeError
from kafkafmt.records.batch import seal
from kafkafmt.records.decoding import Payload, ascending_offsets, locate
from kafkafmt.records.runs import with_batch
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# Single messages are gathered into batches of this size, the default `batch.size` of producers.
GATHERED_BATCH_BYTES = 16 * 1024
# Above every format, so that the kernel copies all batches. Used if batches keep their formats.
_OWN_MAGIC = 127
_MAX_SPARE_BYTES = 64 * 1024 * 1024


@lru_cache(maxsize=64)
def _codec_functions(
    codec: Codec | None, zstd_fallback: Codec | None, level: int | None
) -> dict[int, tuple[Any, int, Any]]:
    """Return for each codec: the function that decompresses, the target codec, and the function that compresses.

    A codec without a target, such as zstd without a fallback, is missing.
    """
    functions: dict[int, tuple[Any, int, Any]] = {}
    for number, implementation in codecs.CODECS.items():
        target = target_codec(number, codec, zstd_fallback)
        if target is not None:
            compress = codecs.CODECS[target].compress
            if level is not None:
                compress = _at_level(compress, level)
            functions[int(number)] = implementation.decompress, int(target), compress
    return functions


def _at_level(compress: Callable[..., bytes], level: int) -> Callable[..., bytes]:
    """Return `compress` with a fixed level, for kernels, which pass none."""
    return lambda data, _, magic: compress(data, level, magic)


def _refuse(codec: int, to_magic: int) -> NoReturn:
    if codec != Codec.ZSTD:
        raise codecs.unsupported_error(codec, to_magic)
    message = f"message format v{to_magic} has no zstd: expected another codec or a zstd_fallback, found zstd"
    raise UnsupportedCompressionTypeError(message)


class Converter:
    """Converts batches and appends them to its output. `clear()` empties the output and keeps its memory.

    With `max_output_bytes`, `convert` stops before the output takes more bytes than that. Two kinds of batches may
    exceed it: the first one, and one whose located records are encoded again, because its size is not known before.
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
        self._to_magic = _OWN_MAGIC if options.to_magic is None else options.to_magic
        self._kernel = RunConverter(
            self._to_magic,
            options.first_offset,
            _codec_functions(options.codec, options.zstd_fallback, options.level),
            partial(_refuse, to_magic=self._to_magic),
            options.max_decompressed_bytes,
            verify=options.verify,
            max_output=max_output_bytes,
        )
        self.use_memory(np.empty(0, np.uint8))

    def use_memory(self, memory: NDArray[np.uint8]) -> None:
        """Write the output into `memory`. If the output does not fit, the converter allocates memory of its own."""
        self._memory, self._view = memory, memory.data.toreadonly()
        self._kernel.use_memory(memory)

    def release(self) -> None:
        """Free everything except the output: the source and the working memory."""
        self._kernel.release()

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The memory that contains the output: that of `use_memory`, unless it was too small."""
        return self._memory

    @property
    def output(self) -> memoryview:
        """The batches converted since the last `clear()`, read-only. Conversions after a `clear()` overwrite them."""
        return self._view[: self._kernel.position]

    def clear(self) -> None:
        """Discard the output, and keep its memory for the next chunk."""
        self._kernel.position = 0

    def convert(self, run: BatchRun, first: int = 0, stop: int | None = None) -> int:
        """Convert batches `first` to `stop` (exclusive) of a run; return the number of the next batch to convert.

        That is `stop`, or less if the output is full. An empty output accepts one batch at least. Raises
        KafkaFormatError for a batch that is damaged or cannot be converted; the batches before it are in the output.
        """
        started = self.options.clock()
        kernel, stats = self._kernel, self.stats
        records, temporary_bytes = kernel.records, kernel.temporary_bytes
        stop = len(run) if stop is None else stop
        kernel.start(run, first, first)
        try:
            for number in (*self._recoded(run, first, stop), stop):
                if kernel.next < number and not self._convert_by_kernel(run, number):
                    break
                if kernel.next == number < stop:
                    if self._is_full(1):
                        break
                    self._convert_located(run, kernel.next, stop)
        except KafkaFormatError as error:
            if error.position is None:  # a codec raised it, and a codec does not know the position
                raise with_batch(error, run, kernel.next) from None
            raise
        finally:
            stats.records_converted += kernel.records - records
            stats.temporary_memory_bytes += kernel.temporary_bytes - temporary_bytes
            stats.seconds += self.options.clock() - started
        return kernel.next

    def _convert_by_kernel(self, run: BatchRun, stop: int) -> bool:
        """Convert the batches up to row `stop`. Returns False if the output is full before."""
        kernel = self._kernel
        kernel.start(run, kernel.next, stop)
        if not self._is_bounded:
            self._reserve(kernel.room())
        while (outcome := kernel.convert()) != DONE:
            if self._is_full(kernel.needed if outcome == NEEDS_ROOM else 1):
                return False
            if outcome == NEEDS_ROOM:
                self._reserve(kernel.needed)
            else:
                self._convert_located(run, kernel.next, kernel.stop)
        return True

    def _is_full(self, more: int) -> bool:
        position = self._kernel.position
        return position > 0 and position + more > self._max_output_bytes

    def _recoded(self, run: BatchRun, first: int, stop: int) -> list[int]:
        """Return the numbers of the batches that are compressed again here.

        Excluded are batches that the kernel converts down, those it may copy, and those that are converted up.
        """
        if self.options.codec is None:
            return []
        rows = run.index[first:stop]
        is_plain = rows["codec"] == Codec.NONE
        goes_up = (rows["magic"] < 2) & (self._to_magic == 2)
        stays_plain = is_plain & (rows["is_control"] | (rows["count"] == 0))
        is_ours = (is_plain | (rows["magic"] <= self._to_magic)) & ~goes_up & ~stays_plain
        recoded = (is_ours & (rows["codec"] != self.options.codec)).nonzero()[0] + first
        numbers: list[int] = recoded.tolist()
        return numbers

    def expect(self, size: int) -> None:
        """Reserve memory for an output of about `size` bytes in all, and 3 % more."""
        if size > len(self._memory):
            self._reserve(size + size // 32 - self._kernel.position)

    def _reserve(self, more: int) -> None:
        """Make room for `more` bytes."""
        used = self._kernel.position
        size = used + more
        if size <= len(self._memory):
            return
        if not used:
            self.use_memory(np.empty(0, np.uint8))  # free the old memory before allocating more
        if self._is_bounded:  # all at once, because growing needs the old and the new memory together
            size = max(size, self._max_output_bytes)
        else:
            size = max(size, min(2 * len(self._memory), size + _MAX_SPARE_BYTES))
        grown = np.empty(size, np.uint8)
        grown[:used] = self._memory[:used]
        self.use_memory(grown)

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        self._reserve(len(data))
        start = self._kernel.position
        self._memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
        self._kernel.position += len(data)

    def _convert_located(self, run: BatchRun, number: int, stop: int) -> None:
        """Convert a batch, or as many single messages as one batch may hold."""
        row, end = run.index[number], number + 1
        magic, is_compressed = int(row["magic"]), bool(row["codec"])
        if magic == 2 <= self._to_magic:
            self._recode_batch(run, number)
        elif is_compressed and magic <= self._to_magic != 2 and self.options.codec:
            self._recode_wrapper(run, number)
        else:
            if magic < 2 and not is_compressed:
                end = number + _count_that_fits(run.index[number:stop], GATHERED_BATCH_BYTES)
            if self._to_magic == 2:
                self._convert_up(run, number, end)
            else:
                self._convert_to_messages(run, number, end)
        self._kernel.skip_to(end)

    def _locate(self, run: BatchRun, first: int, stop: int) -> LocatedRecords:
        options = self.options
        return locate(run, first, stop, verify=options.verify, limit=options.max_decompressed_bytes)

    def _decompress(self, run: BatchRun, number: int) -> Payload:
        if self.options.verify:
            run.ensure_valid(number, number + 1)
        row, limit = run.index[number], self.options.max_decompressed_bytes
        return codecs.decompress(int(row["codec"]), run.payload(number), limit=limit, magic=int(row["magic"]))

    def _compress(self, codec: int, data: Payload, magic: int) -> Payload:
        return codecs.compress(codec, data, level=self.options.level, magic=magic) if codec else data

    def _recode_batch(self, run: BatchRun, number: int) -> None:
        """Compress a v2 batch with another codec. Its records are not read."""
        header = run.index[number : number + 1].copy()
        row = header[0]
        base_offset, last_offset, count = int(row["base_offset"]), int(row["last_offset"]), int(row["count"])
        if not 0 <= last_offset - base_offset < 2**31:
            message = f"last offset: expected {base_offset} or less than 2^31 more, found {last_offset}"
            raise with_batch(InvalidRecordError(message), run, number)
        records = self._decompress(run, number) if count else b""
        codec = int(self.options.codec or 0) if count and not row["is_control"] else 0
        row["codec"] = codec
        batch = bytearray(RECORD_BATCH_OVERHEAD)
        batch += self._compress(codec, records, 2)
        seal_batch(batch, header)
        self._count(int(row["size"]), count, RECORD_BATCH_OVERHEAD + len(records))
        self._append(batch)

    def _recode_wrapper(self, run: BatchRun, number: int) -> None:
        """Compress a wrapper with another codec. Its messages stay unchanged."""
        header = run.index[number : number + 1].copy()
        row, messages = header[0], self._decompress(run, number)
        count = len(LocatedRecords(run, number, number + 1, [messages], verify=self.options.verify))
        row["codec"] = self.options.codec
        self._count(int(row["size"]), count, _wrapper_overhead(int(row["magic"])) + len(messages))
        self._append(wrap_messages(self._compress(int(row["codec"]), messages, int(row["magic"])), header))

    def _convert_to_messages(self, run: BatchRun, first: int, stop: int) -> None:
        """Convert a batch or single messages to one wrapper, or to single messages if there is no codec."""
        located = self._locate(run, first, stop)
        header = run.index[first : first + 1].copy()
        row, offsets, start = header[0], located.offsets(), 0
        magic = min(int(row["magic"]), self._to_magic)
        codec = self.options.codec_of(int(row["codec"]))
        if row["codec"] == Codec.NONE and magic < row["magic"]:
            start = located.first_at_or_above(self.options.first_offset)
        if codec is None or start == len(offsets):
            return
        if codec != Codec.NONE:
            ascending_offsets(located, run, first)
            if offsets[start] < 0:
                message = f"offset of a message in a wrapper: expected 0 or more, found {offsets[start]}"
                raise with_batch(InvalidRecordError(message), run, first)
        if row["timestamp_type"] != TimestampType.LOG_APPEND_TIME:
            row["max_timestamp"] = located.timestamps()[start:].max()
        row["magic"], row["codec"], row["last_offset"] = magic, codec, offsets[-1]
        base = int(offsets[start]) if magic == 1 and codec != Codec.NONE else 0
        messages = encode_messages(located, start, len(offsets), magic, int(row["timestamp_type"]), base)
        overhead = _wrapper_overhead(magic) if codec != Codec.NONE else 0
        self._count(_size_of(run, first, stop), len(offsets) - start, overhead + len(messages))
        self.stats.partial_messages += located.partial_messages
        if codec == Codec.NONE:
            self._append(messages)
        else:
            self._append(wrap_messages(self._compress(codec, messages, magic), header))

    def _convert_up(self, run: BatchRun, first: int, stop: int) -> None:
        """Convert a wrapper or single messages to one v2 batch."""
        located = self._locate(run, first, stop)
        offsets, timestamps = ascending_offsets(located, run, first), located.timestamps()
        batch = encode_records(located, 0, len(located), int(offsets[0]), int(timestamps[0]))
        self._count(_size_of(run, first, stop), len(located), len(batch))
        self.stats.partial_messages += located.partial_messages
        header = run.index[first : first + 1].copy()
        header["base_offset"], header["last_offset"] = offsets[0], offsets[-1]
        header["base_timestamp"], header["max_timestamp"] = timestamps[0], timestamps.max()
        header["count"] = len(located)
        codec = Codec(int(header["codec"][0])) if self.options.codec is None else self.options.codec
        self._append(seal(batch, header, codec, self.options.level))

    def _count(self, source_bytes: int, records: int, converted_bytes: int) -> None:
        self.stats.records_converted += records
        self.stats.temporary_memory_bytes += source_bytes + converted_bytes


def _wrapper_overhead(magic: int) -> int:
    return MESSAGE_OVERHEAD_V1 if magic == 1 else MESSAGE_OVERHEAD_V0


def _size_of(run: BatchRun, first: int, stop: int) -> int:
    return int(run.index["size"][first:stop].sum())


def _count_that_fits(rows: NDArray[np.void], max_bytes: int) -> int:
    """Return how many of the first messages, from their index rows, can be in one batch of `max_bytes`; at least 1.

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
