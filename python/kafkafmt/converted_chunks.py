"""Conversion chunk by chunk (KIP-283, "Message Chunking"): a run of batches at a time, of which the outcome is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.conversion import ConversionOptions, ConversionStats
from kafkafmt.converter import Converter
from kafkafmt.errors import KafkaFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import Records

DEFAULT_CHUNK_SIZE = 512 * 1024  # where throughput peaks: bench/experiments/chunk_size.py
# Converted, a chunk seldom takes more than this many times its size; where it does, it is handed out in parts.
_MOST_GROWTH = 1.5
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
    comes in parts. Each view is valid until the next one is asked for, or `release`. Raises, with all before it
    handed out, for a batch that is damaged or cannot be converted. `stats` is added to as the conversion goes on.

    With `memory` nothing is held between `release` and the next chunk but the place of that.
    """

    def __init__(
        self,
        records: Records,
        options: ConversionOptions,
        position: int | None = None,
        *,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        stats: ConversionStats | None = None,
        memory: ChunkMemory | None = None,
    ) -> None:
        self._records = records
        self._position = records.start_position if position is None else position
        self._chunk_position = self._position
        chunk_size = chunk_size if memory is None else min(chunk_size, memory.chunk_size)
        self._chunk_size = min(chunk_size, max(records.size_in_bytes, 1))
        self._converter = Converter(options, stats, max_output_bytes=self.needed_bytes)
        self._memory = memory
        self._buffer: NDArray[np.uint8] | None = None
        self._runs = records.runs(position, run_bytes=self._chunk_size, reuse_memory=True)
        self._run: BatchRun | None = None
        self._row = 0
        self._error: KafkaFormatError | None = None

    def __iter__(self) -> ConvertedChunks:
        return self

    def __next__(self) -> memoryview:
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
        if self._memory is not None and self._buffer is None:
            self._buffer = self._memory.take(self.needed_bytes)
            converter.use_memory(self._buffer)
        converter.clear()
        try:
            self._row = converter.convert(run, self._row)
        except KafkaFormatError as error:
            self._error = error
        if self._row == len(run):
            self._position, self._run = run.end_position, None
        elif self._memory is not None:  # others read into the same memory before this goes on
            self._position, self._run = int(run.index["position"][self._row]), None
        output = converter.output
        if self._memory is not None and converter.memory is not self._buffer:  # a large batch has outgrown it
            self._give_back(self._memory)
        return output


def chunk_memory_bytes(chunk_size: int) -> int:
    """The memory that a converted chunk takes, but for that of one batch that is larger."""
    return int(_MOST_GROWTH * chunk_size)
