"""A fetch response with a size that is known before records are converted (KIP-283, "Determining Total Response Size").

Its parts are in the order of the wire: bytes; stored records, which a socket gets by sendfile; and records that are
converted while they are sent. This module has no sockets: a send offers a channel the next bytes, and continues where
the channel stopped.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from kafkafmt.convert.chunks import ChunkMemory
from kafkafmt.convert.lazy import LazyDownConvertRecords, LazyDownConvertSend
from kafkafmt.convert.options import ConversionStats
from kafkafmt.records.base import MemoryRecords, Records
from kafkafmt.records.channel import Channel, SizedSend, write_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.errors import KafkaFormatError

# Writing so many parts takes some milliseconds at most.
_PARTS_AT_ONCE = 256

ResponsePart: TypeAlias = bytes | Records


@dataclass
class SendStats:
    """Statistics of a send.

    unconverted_bytes: bytes of records that were sent as they are stored.
    converted_bytes: bytes of records that were converted, including padding.
    conversion: statistics of the conversions that ended.
    records_by_topic: the records that these converted, by topic; "" if the records do not tell theirs.
    errors: the errors that ended the conversion of a part early, so that padding replaced its rest.
    """

    unconverted_bytes: int = 0
    converted_bytes: int = 0
    conversion: ConversionStats = field(default_factory=ConversionStats)
    records_by_topic: dict[str, int] = field(default_factory=dict)
    errors: list[KafkaFormatError] = field(default_factory=list)


class FetchResponse:
    """The parts of a response, including header and metadata. Records must stay readable until all is sent.

    Attributes:
        size_in_bytes: the bytes of all parts.
        converts: whether a part is converted while it is sent.
    """

    def __init__(self, parts: Sequence[ResponsePart | Buffer]) -> None:
        self.parts: list[ResponsePart] = []
        self.size_in_bytes = 0
        self.converts = False
        for part in map(_as_part, parts):
            if size := _size(part):
                self.parts.append(part)
                self.size_in_bytes += size
                self.converts = self.converts or isinstance(part, LazyDownConvertRecords)

    def to_send(self, memory: ChunkMemory | None = None) -> FetchSend:
        """Return a new send of this response. memory: memory for chunks, which many sends may share."""
        return FetchSend(self, memory)


class FetchSend(SizedSend):
    """Writes `size_in_bytes` bytes to a channel, over as many calls of `write_to` as it needs.

    Between two calls it holds the rest of one chunk, and records that were made beforehand for parts that are not yet
    sent. Parts that are sent are freed once the response itself is not referenced.

    Attributes:
        is_remote: whether records are read from a remote store, so that threads should call `read_next`,
            `convert_next` and `write_to`.
    """

    def __init__(self, response: FetchResponse, memory: ChunkMemory | None = None) -> None:
        self.stats = SendStats()
        self._parts = deque(response.parts)
        self.is_remote = any(map(_is_remote, response.parts))
        super().__init__(response.size_in_bytes)
        self._waiting_bytes = sum(map(_waiting_bytes, response.parts))
        self._memory = memory
        self._position = 0  # in the current part, unless that is a conversion
        self._conversion: LazyDownConvertSend | None = None
        self._topic = ""  # of that conversion

    @property
    def needed_bytes(self) -> int:
        """The bytes of memory that the next `write_to` needs for a chunk; 0 if it needs none."""
        conversion = self._current_conversion()
        return conversion.needed_bytes if conversion is not None else 0

    @property
    def held_bytes(self) -> int:
        """The bytes of memory of the chunk that is partly written, and of records that were made beforehand."""
        conversion = self._current_conversion()
        return self._waiting_bytes + (conversion.held_bytes if conversion is not None else 0)

    def read_next(self) -> bool:
        """Read the source of the next chunk; return whether converting it may take long; see `LazyDownConvertSend`."""
        conversion = self._current_conversion()
        return conversion is not None and conversion.read_next()

    def convert_next(self) -> None:
        """Make the next chunk, if the current part is converted; see `LazyDownConvertSend.convert_next`."""
        conversion = self._current_conversion()
        if conversion is not None:
            conversion.convert_next()

    def release_chunk(self) -> None:
        """Release the chunk that is partly written, and records that were made beforehand for parts after it.

        All of them are converted again; see `LazyDownConvertSend.release_chunk`.
        """
        if self._conversion is not None:
            self._conversion.release_chunk()
        for part in self._parts:
            if isinstance(part, LazyDownConvertRecords):
                self._waiting_bytes -= part.first_bytes
                part.forget_first()

    def write_to(self, channel: Channel | socket.socket) -> int:
        """Offer the channel the next bytes, once; return how many it took. Returns 0 if all bytes are written.

        Raises OSError or EOFError if stored records cannot be read. The response cannot be completed then.
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

    def write_stored(self, channel: Channel | socket.socket) -> bool:
        """Write parts until the channel takes only some bytes of one; return whether all are written.

        Only for a response that does not convert. Returns after `_PARTS_AT_ONCE` parts. Raises as `write_to` does.
        """
        for _ in range(_PARTS_AT_ONCE):
            if not self._parts:
                break
            taken = self._write_stored(channel)
            self._remaining -= taken
            if self._position or not taken:
                break
        return not self._parts

    def _current_conversion(self) -> LazyDownConvertSend | None:
        if self._conversion is None and self._parts and isinstance(self._parts[0], LazyDownConvertRecords):
            self._waiting_bytes -= _waiting_bytes(self._parts[0])
            self._conversion = self._parts[0].to_send(self._memory)
            place = self._parts[0].topic_partition
            self._topic = "" if place is None else place.topic
            self._parts.popleft()  # it keeps the first converted batch alive
        return self._conversion

    def _end_conversion(self, conversion: LazyDownConvertSend) -> None:
        self.stats.conversion.add(conversion.stats)
        if converted := conversion.stats.records_converted:
            by_topic = self.stats.records_by_topic
            by_topic[self._topic] = by_topic.get(self._topic, 0) + converted
        if conversion.error is not None:
            self.stats.errors.append(conversion.error)
        self._conversion = None

    def _write_stored(self, channel: Channel | socket.socket) -> int:
        part = self._parts[0]
        assert not isinstance(part, LazyDownConvertRecords)
        if isinstance(part, bytes):
            is_followed = len(self._parts) > 1
            taken = write_bytes(channel, memoryview(part)[self._position :], is_followed=is_followed)
        else:
            taken = part.write_to(channel, part.start_position + self._position)
            self.stats.unconverted_bytes += taken
        self._position += taken
        if self._position == _size(part):
            self._position = 0
            self._waiting_bytes -= _waiting_bytes(self._parts.popleft())
        return taken


def _as_part(part: ResponsePart | Buffer) -> ResponsePart:
    """Return a part of a response. A buffer is copied. Raises TypeError for anything else."""
    if isinstance(part, (bytes, Records)):
        return part
    try:
        return bytes(memoryview(part))
    except TypeError:
        found = type(part).__name__
        message = f"parts: expected buffers and Records, found {found}"
        raise TypeError(message) from None


def _size(part: ResponsePart) -> int:
    return len(part) if isinstance(part, bytes) else part.size_in_bytes


def _is_remote(part: ResponsePart) -> bool:
    if isinstance(part, bytes):
        return False
    return part.is_remote


def _waiting_bytes(part: ResponsePart) -> int:
    """Return the bytes of records that are in memory before their part is sent."""
    if isinstance(part, bytes):
        return 0
    if isinstance(part, LazyDownConvertRecords):
        return part.first_bytes
    return part.size_in_bytes if isinstance(part, MemoryRecords) else 0
