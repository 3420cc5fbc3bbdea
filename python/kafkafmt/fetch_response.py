"""A fetch response whose size is known before anything in it is converted (KIP-283, "Determining Total Response Size").

It is made of parts in the order of the wire: bytes as they are, records of files that go to a socket by sendfile, and
records that are converted as they are sent. No sockets of its own: a send offers a channel what is next, and goes on
where the channel stopped taking.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from kafkafmt.channel import Channel, write_bytes
from kafkafmt.conversion import ConversionStats
from kafkafmt.converted_chunks import ChunkMemory
from kafkafmt.down_conversion import LazyDownConvertRecords, LazyDownConvertSend
from kafkafmt.records import MemoryRecords, Records

if TYPE_CHECKING:
    from kafkafmt.errors import KafkaFormatError

ResponsePart: TypeAlias = bytes | Records | LazyDownConvertRecords


@dataclass
class SendStats:
    """What was sent: bytes of records that went as they are stored, and as they were converted (padding included).

    errors: what ended the conversion of a part early, so that padding went in its place.
    """

    unconverted_bytes: int = 0
    converted_bytes: int = 0
    conversion: ConversionStats = field(default_factory=ConversionStats)
    errors: list[KafkaFormatError] = field(default_factory=list)


class FetchResponse:
    """The parts of a response, header and metadata among them; records stay readable until all is sent."""

    def __init__(self, parts: Sequence[ResponsePart]) -> None:
        self.parts = [part for part in parts if _size(part)]
        self.size_in_bytes = sum(map(_size, self.parts))

    @property
    def converts(self) -> bool:
        """Is anything in it converted as it is sent?"""
        return any(isinstance(part, LazyDownConvertRecords) for part in self.parts)

    def to_send(self, memory: ChunkMemory | None = None) -> FetchSend:
        """A send of its own; `memory` is for the chunks of all sends of one thread."""
        return FetchSend(self, memory)


class FetchSend:
    """Writes `size_in_bytes` bytes to channels that take what they can; resumes where they stopped.

    Between two calls it holds what is left of one chunk at the most, and what was made beforehand of parts that are
    still to be sent: nothing of those that are, once the response itself is let go.
    """

    def __init__(self, response: FetchResponse, memory: ChunkMemory | None = None) -> None:
        self.stats = SendStats()
        self._parts = deque(response.parts)
        self._remaining = response.size_in_bytes
        self._waiting_bytes = sum(map(_waiting_bytes, response.parts))
        self._memory = memory
        self._position = 0  # in the current part, if that is no conversion
        self._conversion: LazyDownConvertSend | None = None

    @property
    def remaining(self) -> int:
        """Bytes still to be written."""
        return self._remaining

    @property
    def completed(self) -> bool:
        return self._remaining == 0

    @property
    def needed_bytes(self) -> int:
        """The memory that the next `write_to` takes for a chunk; 0 where it takes none."""
        conversion = self._current_conversion()
        return conversion.needed_bytes if conversion is not None else 0

    @property
    def held_bytes(self) -> int:
        """The memory of the chunk of which a part is still to be taken, and of records that were made beforehand."""
        conversion = self._current_conversion()
        return self._waiting_bytes + (conversion.held_bytes if conversion is not None else 0)

    def read_next(self) -> bool:
        """Read what the next `write_to` converts; may that take long? See `ConvertedChunks.read_next`."""
        conversion = self._current_conversion()
        return conversion is not None and conversion.read_next()

    def let_go(self) -> None:
        """Give up the chunk of which a part is still to be taken; see `LazyDownConvertSend.let_go`."""
        if self._conversion is not None:
            self._conversion.let_go()

    def write_to(self, channel: Channel | socket.socket) -> int:
        """Offer the channel what comes next, once; return how many bytes it took, 0 where none or all is written.

        Raises OSError and EOFError where stored records cannot be read any more: the response cannot be ended then.
        """
        if self.completed:
            return 0
        conversion = self._current_conversion()
        if conversion is not None:
            taken = conversion.write_to(channel)
            self.stats.converted_bytes += taken
            if conversion.completed:
                self._end_conversion(conversion)
        else:
            taken = self._write_stored(channel)
        self._remaining -= taken
        return taken

    def _current_conversion(self) -> LazyDownConvertSend | None:
        if self._conversion is None and self._parts and isinstance(self._parts[0], LazyDownConvertRecords):
            self._waiting_bytes -= _waiting_bytes(self._parts[0])
            self._conversion = self._parts[0].to_send(self._memory)
            self._parts.popleft()  # it holds what was converted beforehand
        return self._conversion

    def _end_conversion(self, conversion: LazyDownConvertSend) -> None:
        self.stats.conversion.add(conversion.stats)
        if conversion.error is not None:
            self.stats.errors.append(conversion.error)
        self._conversion = None

    def _write_stored(self, channel: Channel | socket.socket) -> int:
        part = self._parts[0]
        assert not isinstance(part, LazyDownConvertRecords)
        if isinstance(part, Records):
            taken = part.write_to(channel, part.start_position + self._position)
            self.stats.unconverted_bytes += taken
        else:
            is_followed = len(self._parts) > 1
            taken = write_bytes(channel, memoryview(part)[self._position :], is_followed=is_followed)
        self._position += taken
        if self._position == _size(part):
            self._position = 0
            self._waiting_bytes -= _waiting_bytes(self._parts.popleft())
        return taken


def _size(part: ResponsePart) -> int:
    return len(part) if isinstance(part, bytes) else part.size_in_bytes


def _waiting_bytes(part: ResponsePart) -> int:
    """The memory of records that were made before their part is sent."""
    if isinstance(part, LazyDownConvertRecords):
        return part.first_bytes
    return part.size_in_bytes if isinstance(part, MemoryRecords) else 0
