"""Convert records chunk by chunk (KIP-283, "Message Chunking"). Only one converted chunk is in memory at a time."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.columns.arrays import lend
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.options import ConversionOptions, ConversionStats
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec, check_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.records.base import Records

DEFAULT_CHUNK_SIZE = 512 * 1024  # where throughput peaks: bench/experiments/chunk_size.py
# The output of a chunk may take this many times its source bytes. A chunk that grows more is returned in parts.
_MAX_GROWTH = 1.5
# A chunk that uses less than this share of its buffer is copied, because keeping the chunk would keep the whole buffer.
_LEAST_USED = 0.25
# Converting this many bytes takes about 10 ms, however small the records are.
QUICK_BYTES = 1024 * 1024
# The most bytes that one compressed byte can decompress to, by the codec's format. zstd has no such bound.
_MAX_RATIOS: Mapping[int, int] = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255}
_NO_MEMORY = np.empty(0, np.uint8)


class ChunkMemory:
    """Memory that many conversions share: a buffer to read into, and spare buffers for chunks.

    A send that uses it holds a buffer only while a chunk of its own is partly written. Only one send at a time may make
    a chunk, from the read of its source on. Other threads may give buffers back meanwhile.

    chunk_size: the most source bytes of a chunk. It may be set, and applies to conversions that begin later.
    most_spare_bytes: the most bytes of spare buffers that are kept.
    """

    def __init__(
        self, chunk_size: int = DEFAULT_CHUNK_SIZE, most_spare_bytes: int = 4 * DEFAULT_CHUNK_SIZE
    ) -> None:
        self.chunk_size = chunk_size
        self._source = bytearray()
        self._spare: list[NDArray[np.uint8]] = []
        self._spare_bytes, self._most_spare_bytes = 0, most_spare_bytes
        self._counting = threading.Lock()

    def to_read_into(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes for the source of one chunk. The next chunk gets the same buffer."""
        if len(self._source) < size:
            self._source = bytearray(size)
        return self._source

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer of `size` bytes or more, for a chunk."""
        with self._counting:
            while self._spare:
                buffer = self._spare.pop()
                self._spare_bytes -= len(buffer)
                if size <= len(buffer) <= 2 * size:
                    return buffer
        return np.empty(size, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Keep a buffer for the next chunk, unless enough bytes are kept already."""
        with self._counting:
            if self._spare_bytes + len(buffer) <= self._most_spare_bytes:
                self._spare.append(buffer)
                self._spare_bytes += len(buffer)


class ConvertedChunks:
    """Converts records from `position` on: an iterator over chunks, which are read-only views.

    A chunk is made of at most `chunk_size` source bytes, or of one larger batch. If its output grows beyond 1.5 times
    that, it is returned in parts. Each chunk owns its bytes: its memory is used again only after no reference to the
    chunk is left. With `reuse_memory` all chunks share one buffer, and a view is valid until the next one is requested.

    Raises KafkaFormatError for a batch that is damaged or cannot be converted, after all chunks before it. Then raises
    EOFError, which is also an OSError, if the file of the records has become shorter than their end. Raises ValueError
    if two threads request a chunk at the same time. The conversion adds its statistics to `stats`.

    With `memory` the buffer comes from there, and a view is valid until the next request or `release`. The source and
    working memory of a chunk are freed as soon as it is made. After `release` only the position of the next chunk is
    kept.
    """

    def __init__(
        self,
        records: Records,
        options: ConversionOptions,
        position: int | None = None,
        *,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        stats: ConversionStats | None = None,
        reuse_memory: bool = False,
        memory: ChunkMemory | None = None,
    ) -> None:
        check_int("chunk_size", chunk_size, 1)
        self._records = records
        self._position = self._chunk_position = records.checked_position(position)
        chunk_size = chunk_size if memory is None else min(chunk_size, memory.chunk_size)
        self._chunk_size = min(chunk_size, max(records.size_in_bytes, 1))
        self._stats = ConversionStats() if stats is None else stats
        self._chunk_stats = ConversionStats()
        self._converter = Converter(options, max_output_bytes=self.needed_bytes)
        self._owns_memory = memory is None and not reuse_memory
        self._memory = memory
        self._buffer: NDArray[np.uint8] | None = None
        self._runs: Iterator[BatchRun] | None = None
        self._run: BatchRun | None = None
        self._row = 0
        self._is_over = False  # no whole batch follows
        self._error: KafkaFormatError | None = None
        self._running = threading.Lock()

    def __iter__(self) -> ConvertedChunks:
        return self

    def __next__(self) -> memoryview:
        if not self._running.acquire(blocking=False):
            raise ValueError("chunk iterator already executing")
        try:
            return self._next()
        finally:
            self._running.release()

    def _next(self) -> memoryview:
        try:
            while self._error is None:
                if self._run is None and (self._is_over or not self._read()):
                    if self._position < self._records.end_position:
                        self._records.ensure_reaches(self._records.end_position)
                    raise StopIteration
                if output := self._convert_run():
                    return output
        except KafkaFormatError as error:
            self._error = error
        raise self._records.with_source(self._error) from None

    @property
    def position(self) -> int:
        """The position in the source where the next chunk begins."""
        return self._position

    @property
    def needed_bytes(self) -> int:
        """The bytes of memory that a chunk needs. One large batch may need more."""
        return chunk_memory_bytes(self._chunk_size)

    def read_next(self) -> bool:
        """Read the source of the next chunk; return whether converting it may take more than about 10 ms.

        Source bytes of more than `QUICK_BYTES` are not read; the result is then True, and the caller should make the
        chunk in another thread. Only with `memory`: no other conversion may read into it before this chunk is made.
        """
        if self._error is None and self._run is None and not self._is_over:
            try:
                left = self._records.end_position - self._position
                if min(self._chunk_size, left) > QUICK_BYTES:
                    return True
                if not self._read(QUICK_BYTES):
                    is_large = left > QUICK_BYTES and self._is_large()
                    self._is_over = not is_large
                    return is_large
            except KafkaFormatError as error:
                self._error = error
        if self._error is not None or self._run is None:
            return False
        return may_take_long(self._run.sizes_by_codec())

    def _is_large(self) -> bool:
        """Return whether the next batch is larger than `QUICK_BYTES`."""
        return (self._records.size_at(self._position) or 0) > QUICK_BYTES

    def release(self) -> None:
        """Give the buffer back to `memory`. The next chunk takes another one."""
        if self._memory is not None:
            self._converter.use_memory(_NO_MEMORY)
            self._give_back(self._memory)

    def rewind(self) -> None:
        """Release the current chunk, and convert it again at the next request."""
        self.release()
        self._stats.take_back(self._chunk_stats)
        self._chunk_stats = ConversionStats()
        self._position = self._chunk_position
        self._runs = self._run = self._error = None
        self._is_over = False

    def _give_back(self, memory: ChunkMemory) -> None:
        if self._buffer is not None:
            memory.give_back(self._buffer)
            self._buffer = None

    def _read(self, most_bytes: int = sys.maxsize) -> bool:
        """Read the next run. Returns False if there is none, or if it is one batch of more than `most_bytes`."""
        if self._memory is None:
            if self._runs is None:
                size = self._chunk_size
                self._runs = self._records.runs(self._position, run_bytes=size, reuse_memory=True)
            self._run = next(self._runs, None)
        else:
            source = self._memory.to_read_into(self._chunk_size)
            self._run = self._records.first_run(self._position, self._chunk_size, source, most_bytes)
        self._row = 0
        return self._run is not None

    def _convert_run(self) -> memoryview:
        """Convert the run, or as much of it as the output may hold, and return the output."""
        assert self._run is not None
        run, converter = self._run, self._converter
        self._chunk_position = self._position
        self._take_buffer()
        converter.clear()
        converter.stats = self._chunk_stats = ConversionStats()
        try:
            self._row = converter.convert(run, self._row)
        except KafkaFormatError as error:
            self._error = error
        self._stats.add(self._chunk_stats)
        if self._row == len(run):
            self._position, self._run = run.end_position, None
        else:
            self._position = int(run.index["position"][self._row])
            if self._memory is not None:  # other conversions read into the same memory before the next call
                self._run = None
        if self._owns_memory:
            return self._owned_output()
        if self._memory is not None:
            converter.release()
            if converter.memory is not self._buffer:  # the output of a large batch did not fit into it
                self._give_back(self._memory)
        return converter.output

    def _take_buffer(self) -> None:
        """Take a buffer for the next chunk, unless the converter uses its own."""
        if self._buffer is not None:
            return
        if self._memory is not None:
            self._buffer = self._memory.take(self.needed_bytes)
        elif self._owns_memory:
            self._buffer = lend(self.needed_bytes)
        else:
            return
        self._converter.use_memory(self._buffer)

    def _owned_output(self) -> memoryview:
        """Return the output in memory that the next chunk does not overwrite."""
        output, memory = self._converter.output, self._converter.memory
        if len(output) < _LEAST_USED * len(memory):
            output = memoryview(bytes(output))
            if memory is self._buffer:
                return output
        self._converter.use_memory(_NO_MEMORY)
        self._buffer = None
        return output


def may_take_long(sizes: Mapping[int, int]) -> bool:
    """Return whether converting batches may take more than about 10 ms, by the most that they can decompress to.

    sizes: the bytes of batches by codec, as `BatchRun.sizes_by_codec`.
    """
    return sum(size * _MAX_RATIOS.get(codec, math.inf) for codec, size in sizes.items()) > QUICK_BYTES


def chunk_memory_bytes(chunk_size: int) -> int:
    """Return the bytes of memory that a converted chunk needs. One larger batch may need more."""
    return int(_MAX_GROWTH * chunk_size)
