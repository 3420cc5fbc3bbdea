"""Conversion chunk by chunk (KIP-283, "Message Chunking"): a run of batches at a time, of which the outcome is held."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.arrays import lend
from kafkafmt.conversion import ConversionOptions, ConversionStats
from kafkafmt.converter import Converter
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import Records

DEFAULT_CHUNK_SIZE = 512 * 1024  # where throughput peaks: bench/experiments/chunk_size.py
# Converted, a chunk seldom takes more than this many times its size; where it does, it is handed out in parts.
_MOST_GROWTH = 1.5
# A chunk of a smaller part of its memory is copied out of it: who keeps the chunk would keep all of that.
_LEAST_USED = 0.25
# So much is converted in some 10 ms, however small the records are.
_QUICK_BYTES = 1024 * 1024
# What a byte decompresses to at the most, by the format of the codec; zstd has no such bound.
_MOST_RATIOS = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255}
_NO_MEMORY = np.empty(0, np.uint8)


class ChunkMemory:
    """Memory that conversions of one thread take turns with: to read into, and spare buffers for chunks.

    For many sends at once: a send then holds a buffer only while a chunk of its own waits to be taken.

    chunk_size: the most source bytes of a chunk, for conversions that begin from now on; may be set.
    """

    def __init__(
        self, chunk_size: int = DEFAULT_CHUNK_SIZE, most_spare_bytes: int = 4 * DEFAULT_CHUNK_SIZE
    ) -> None:
        self.chunk_size = chunk_size
        self._source = bytearray()
        self._spare: list[NDArray[np.uint8]] = []
        self._spare_bytes, self._most_spare_bytes = 0, most_spare_bytes

    def to_read_into(self, size: int) -> bytearray:
        """For the source of one chunk; the next one gets the same."""
        if len(self._source) < size:
            self._source = bytearray(size)
        return self._source

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer of `size` bytes or more, for a chunk."""
        while self._spare:
            buffer = self._spare.pop()
            self._spare_bytes -= len(buffer)
            if size <= len(buffer) <= 2 * size:
                return buffer
        return np.empty(size, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        if self._spare_bytes + len(buffer) <= self._most_spare_bytes:
            self._spare.append(buffer)
            self._spare_bytes += len(buffer)


class ConvertedChunks:
    """Records from `position` on in another format or codec, chunk by chunk: an iterator over read-only views.

    A chunk is made of at most `chunk_size` source bytes, or one batch; one that grows beyond what its output may take
    comes in parts. Each chunk owns its bytes: its memory is used again only after nothing refers to the chunk any more.
    With `reuse_memory` all chunks share one buffer, and each view is valid until the next one is asked for.

    Raises, with all before it handed out, for a batch that is damaged or cannot be converted; and ValueError if another
    thread asks for a chunk while one is made. `stats` is added to as the conversion goes on.

    With `memory` the buffer is one of that, and a view is valid until `release`, too. Nothing is held between `release`
    and the next chunk but the place of that.
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
        self._records = records
        self._position = records.start_position if position is None else position
        self._chunk_position = self._position
        chunk_size = chunk_size if memory is None else min(chunk_size, memory.chunk_size)
        self._chunk_size = min(chunk_size, max(records.size_in_bytes, 1))
        self._converter = Converter(options, stats, max_output_bytes=self.needed_bytes)
        self._owns_memory = memory is None and not reuse_memory
        self._memory = memory
        self._buffer: NDArray[np.uint8] | None = None
        self._runs = records.runs(position, run_bytes=self._chunk_size, reuse_memory=True)
        self._run: BatchRun | None = None
        self._row = 0
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
                if self._run is None and not self._read():
                    raise StopIteration
                if output := self._convert_run():
                    return output
        except KafkaFormatError as error:
            self._error = error
        raise self._records.described(self._error) from None

    @property
    def needed_bytes(self) -> int:
        """The memory that a chunk takes, that of one large batch excepted."""
        return chunk_memory_bytes(self._chunk_size)

    def read_next(self) -> bool:
        """Read what the next chunk is made of; may converting that take long?

        See `may_take_long`. Only with `memory`, of which no other conversion is to read before the chunk is made.
        """
        if self._error is None and self._run is None:
            try:
                self._read()
            except KafkaFormatError as error:
                self._error = error
        if self._error is not None or self._run is None:
            return False
        return may_take_long(self._run.index)

    def release(self) -> None:
        """Give the memory back until the next chunk is asked for."""
        if self._memory is not None:
            self._converter.use_memory(_NO_MEMORY)
            self._give_back(self._memory)

    def rewind(self) -> None:
        """Release, and convert the same chunk again when the next one is asked for. Only with `memory`."""
        self.release()
        self._position, self._run, self._error = self._chunk_position, None, None

    def _give_back(self, memory: ChunkMemory) -> None:
        if self._buffer is not None:
            memory.give_back(self._buffer)
            self._buffer = None

    def _read(self) -> bool:
        """Go on with the next run; False where there is none."""
        if self._memory is None:
            self._run = next(self._runs, None)
        else:
            self._chunk_position = self._position
            source = self._memory.to_read_into(self._chunk_size)
            self._run = self._records.first_run(self._position, self._chunk_size, source)
        self._row = 0
        return self._run is not None

    def _convert_run(self) -> memoryview:
        """A chunk of the run, or a part of one where it grows beyond what its output may take."""
        assert self._run is not None
        run, converter = self._run, self._converter
        self._take_buffer()
        converter.clear()
        try:
            self._row = converter.convert(run, self._row)
        except KafkaFormatError as error:
            self._error = error
        if self._row == len(run):
            self._position, self._run = run.end_position, None
        elif self._memory is not None:  # others read into the same memory before this goes on
            self._position, self._run = int(run.index["position"][self._row]), None
        if self._owns_memory:
            return self._owned_output()
        if self._memory is not None and converter.memory is not self._buffer:  # a large batch has outgrown it
            self._give_back(self._memory)
        return converter.output

    def _take_buffer(self) -> None:
        """Have memory for the next chunk, where it is not the converter's own."""
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
        """What was converted, in memory that the next chunk is not written to."""
        output, memory = self._converter.output, self._converter.memory
        if len(output) < _LEAST_USED * len(memory):
            output = memoryview(bytes(output))
            if memory is self._buffer:
                return output
        self._converter.use_memory(_NO_MEMORY)
        self._buffer = None
        return output


def may_take_long(rows: NDArray[np.void]) -> bool:
    """Whether converting batches may take more than some 10 ms, by their headers: for what they may decompress to."""
    sizes = np.bincount(rows["codec"], weights=rows["size"])
    most = sum(size * _MOST_RATIOS.get(Codec(codec), math.inf) for codec, size in enumerate(sizes) if size)
    return bool(most > _QUICK_BYTES)


def chunk_memory_bytes(chunk_size: int) -> int:
    """The memory that a converted chunk takes, but for that of one batch that is larger."""
    return int(_MOST_GROWTH * chunk_size)
