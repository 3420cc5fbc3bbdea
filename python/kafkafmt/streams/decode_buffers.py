"""Decode the batch at the head of a queue buffer by buffer, each within the bytes that it may use.

- Compressed batch of format v2: one chunk of the payload is decompressed for each buffer, and its records are located
  there. The decompressor is kept for the next chunk if it is small compared with the buffer. Of the others, only that
  of the last buffer is kept. Without it, the next chunk is decompressed from the start of the payload again.
- Uncompressed batch: the records are located in the batch itself, so the buffer consists only of their rows.
- Wrapper of format v0 or v1: the whole payload is decompressed, as only its end tells the first offset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.streams.record_cursor import RECORD_ROW_BYTES, locate_chunk, locate_plain
from kafkafmt import codecs
from kafkafmt.codecs.measuring import decompressed_bytes
from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.records.runs import with_batch

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.codecs.streams import PayloadStream
    from kafkafmt.streams.held_bytes import HeldBytes

Admit: TypeAlias = "Callable[[BatchRun, int, int], None]"

# The least size of a buffer, even beyond bound and budget: each buffer costs a call or two.
LEAST_BUFFER_BYTES = 64 * 1024
# The least size if the decompressor may be closed: everything before the buffer is then decompressed again for it.
_LEAST_NEW_BUFFER_BYTES = 256 * 1024
# A decompressor up to this size is always kept, even without room for it: to start again costs far more.
_SMALL_STATE_BYTES = 256 * 1024
# More rows at once are not faster.
_MAX_ROWS_BYTES = 4096 * RECORD_ROW_BYTES
# The least bytes of rows, even beyond the budget, as for a buffer.
_LEAST_ROWS_BYTES = 256 * RECORD_ROW_BYTES
# More is decompressed at once only for a record that is larger, which is admitted before.
_MAX_CHUNK_BYTES = 1024 * 1024
_FIRST_BYTES = 4 * 1024 * 1024
# Few payloads compress by more than this ratio.
_LIKELY_RATIO = 8


class DecodeBuffers(ABC):
    """Decode the batches of a run from number `number` on. Their bytes are counted in `held`.

    One buffer is in use at a time: `next` replaces it. If `next` is interrupted, as by a MemoryError, it can be called
    again.
    """

    def __init__(self, run: BatchRun, number: int, held: HeldBytes) -> None:
        self.run = run
        self.number = number
        self._held = held
        self._rows_bytes = 0

    @property
    def is_used_up(self) -> bool:
        """Whether the present buffer is the last one."""
        return self._is_at_end()

    @abstractmethod
    def _is_at_end(self) -> bool: ...

    @abstractmethod
    def next(self, room: int) -> LocatedRecords | None:
        """Decode the next buffer; None if it has no record.

        room: the bytes for the buffer, its rows and its decompressor. A buffer gets at least
        LEAST_BUFFER_BYTES, even beyond room and budget. Raises KafkaFormatError for damage, at each call again.
        """

    def release(self) -> None:
        """Release the present buffer."""
        rows_bytes, self._rows_bytes = self._rows_bytes, 0
        self._held.remove(rows_bytes)

    def close(self) -> None:
        """Release the buffer, and all that is kept for the next ones."""
        self.release()

    def _reserve_rows(self, room: int, most: int) -> int:
        """Reserve rows for up to `most` records, as many as fit into `room` bytes, at least one. Returns how many."""
        self.release()
        wanted = min(room, _MAX_ROWS_BYTES, max(most, 1) * RECORD_ROW_BYTES)
        self._rows_bytes = self._held.add_up_to(wanted, max(min(wanted, _LEAST_ROWS_BYTES), RECORD_ROW_BYTES))
        return self._rows_bytes // RECORD_ROW_BYTES

    def _keep_rows(self, located: LocatedRecords | None) -> None:
        """Release the reserved rows beyond the number of located records."""
        taken = 0 if located is None else len(located) * RECORD_ROW_BYTES
        unused_bytes, self._rows_bytes = self._rows_bytes - taken, taken
        self._held.remove(unused_bytes)


class PlainBuffers(DecodeBuffers):
    """Decode uncompressed batches up to the next compressed one. `number` is the first batch with records left."""

    def __init__(self, run: BatchRun, number: int, held: HeldBytes, *, verify: bool) -> None:
        super().__init__(run, number, held)
        self._verify = verify
        self._at = self._done = 0

    def _is_at_end(self) -> bool:
        return not self._at  # the next buffer begins with another batch

    def next(self, room: int) -> LocatedRecords | None:
        rows = self._reserve_rows(max(room, LEAST_BUFFER_BYTES), _MAX_ROWS_BYTES)
        located = None
        try:
            located, self.number, self._at, self._done = locate_plain(
                self.run, self.number, at=self._at, done=self._done, most=rows, verify=self._verify
            )
        finally:
            self._keep_rows(located)
        return located


class CompressedBuffers(DecodeBuffers):
    """Decode one compressed batch of format v2. `number` moves past it after all its records were located."""

    def __init__(self, run: BatchRun, number: int, held: HeldBytes, *, limit: int, admit: Admit) -> None:
        super().__init__(run, number, held)
        self._admit = admit
        row = run.index[number]
        self._batch = number
        self._codec, self._count = int(row["codec"]), int(row["count"])
        self._payload_bytes = len(run.payload(number))
        self._limit = limit
        self._done = 0
        self._chunk = bytearray()
        self._origin = 0
        self._at = 0
        self._is_whole = False
        self._stream: PayloadStream | None = None

    def _is_at_end(self) -> bool:
        return self._done >= self._count >= 0

    def next(self, room: int) -> LocatedRecords | None:
        if self._held.take_stream(self._close_stream):
            assert self._stream is not None
            room -= self._stream.state_bytes  # it is beyond the room, which counts it as used
        try:
            located, missing = self._locate(room)
            while located is None and missing:
                self._fill(room, missing)
                located, missing = self._locate(room)
            if located is not None and self._done + len(located) == self._count and not self._is_whole:
                self._ensure_end(room)
            if self._stream is not None and not self._has_room(self._stream, room):
                self._held.keep_stream(self._close_stream, self._stream.state_bytes)
        except KafkaFormatError as error:
            self._close_stream()
            self._keep_rows(None)
            raise with_batch(error, self.run, self._batch) from None
        except BaseException:  # as a MemoryError: the position of the decompressor is then unknown
            self._close_stream()
            raise
        if located is not None:
            self._done, self._at = self._done + len(located), self._end_position
        if self.is_used_up:
            self.number = self._batch + 1
        return located

    def _locate(self, room: int) -> tuple[LocatedRecords | None, int]:
        """Locate records in the chunk. If there are none, returns how many bytes are missing for the next one."""
        if self._at == len(self._chunk) and not self._is_whole:
            return None, 1
        if self._stream is not None and self._has_room(self._stream, room):
            room -= self._stream.state_bytes
        room = max(room - len(self._chunk), LEAST_BUFFER_BYTES // 4)
        rows = self._reserve_rows(room, len(self._chunk) - self._at)
        located, self._end_position, missing = locate_chunk(
            self.run,
            self._batch,
            self._chunk,
            self._at,
            origin=self._origin,
            is_whole=self._is_whole,
            done=self._done,
            most=rows,
        )
        self._keep_rows(located)
        return located, missing

    def _fill(self, room: int, missing: int) -> None:
        """Replace the chunk: keep its unread bytes, and append at least `missing` bytes of the payload."""
        self._admit(self.run, self._batch, len(self._chunk) - self._at + missing)
        stream = self._open_stream(room)
        left = self._chunk[self._at :]
        taken_bytes = self._at
        self._chunk, self._origin, self._at = left, self._origin + taken_bytes, 0
        self._held.remove(taken_bytes)
        has_room = self._has_room(stream, room)
        room -= stream.state_bytes if has_room else 0
        room = max(room, LEAST_BUFFER_BYTES if has_room else _LEAST_NEW_BUFFER_BYTES)
        room = max(min(room * 3 // 4, _MAX_CHUNK_BYTES) - len(left), missing)
        # This least is reserved even beyond the budget: with less, each record would decompress the batch again.
        room = self._held.add_up_to(room, max(min(room, LEAST_BUFFER_BYTES), missing))
        try:
            self._chunk, self._is_whole = self._read_next(stream, left, room)
        finally:
            self._held.remove(room - (len(self._chunk) - len(left)))
        if self._is_whole:
            self._close_stream()

    @staticmethod
    def _has_room(stream: PayloadStream, room: int) -> bool:
        """Return whether the decompressor may be kept whatever the other partitions keep."""
        return stream.state_bytes <= max(room - LEAST_BUFFER_BYTES, _SMALL_STATE_BYTES)

    def _read_next(self, stream: PayloadStream, left: bytearray, room: int) -> tuple[bytearray, bool]:
        """Return the unread bytes with up to `room` more of the payload, and whether the payload ends there.

        The `room` bytes must be reserved before.
        """
        size = len(left) + room
        # The length that a record claims is not trusted: beyond a likely size, the chunk grows with the data. Filling
        # it with zeros costs no more than decompression.
        likely = max(_LIKELY_RATIO * self._payload_bytes, LEAST_BUFFER_BYTES)
        chunk = bytearray(min(size, len(left) + min(likely, _FIRST_BYTES)))
        chunk[: len(left)] = left
        filled, is_whole = len(left), False
        while filled < size and not is_whole:
            read = stream.read(size - filled)
            chunk[filled : filled + len(read)] = read
            filled += len(read)
            is_whole = not read
        if filled < len(chunk) * 7 // 8:  # a truncated bytearray would keep its allocation, so copy
            return chunk[:filled], is_whole
        del chunk[filled:]
        return chunk, is_whole

    def _open_stream(self, room: int) -> PayloadStream:
        """Open the decompressor at the end of the chunk, unless it is open."""
        stream = self._stream
        if stream is None:
            stream = codecs.open_stream(self._codec, self.run.payload(self._batch), limit=self._limit)
        if not self._has_room(stream, room):
            self._held.release_stream()
        if self._stream is None:
            self._held.add(stream.state_bytes)
            self._stream = stream
            stream.skip(self._origin + len(self._chunk))
        return stream

    def _close_stream(self) -> None:
        self._held.take_stream(self._close_stream)
        if self._stream is not None:
            state_bytes, self._stream = self._stream.state_bytes, None
            self._held.remove(state_bytes)

    def _ensure_end(self, room: int) -> None:
        """Raise InvalidRecordError if the payload has bytes after the last record."""
        rest = self._open_stream(room).read(1)
        if rest:
            end = self._origin + len(self._chunk)
            locate_chunk(self.run, self._batch, rest, 0, origin=end, is_whole=True, done=self._count, most=1)
        self._is_whole = True
        self._close_stream()

    def close(self) -> None:
        super().close()
        self._close_stream()
        chunk_bytes, self._chunk = len(self._chunk), bytearray()
        self._held.remove(chunk_bytes)


class WrapperBuffers(DecodeBuffers):
    """Decode one wrapper of format v0 or v1: all its records at once, even without room for them.

    The CRCs of the inner messages are always checked: a check of the batch does not include them.
    """

    def __init__(
        self, run: BatchRun, number: int, held: HeldBytes, *, limit: int, admit: Admit, most_bytes: int | None
    ) -> None:
        super().__init__(run, number, held)
        self._batch = number
        self._limit, self._admit = limit, admit
        self._most_bytes = limit if most_bytes is None else min(most_bytes, limit)
        self._payload_bytes = 0

    def _is_at_end(self) -> bool:
        return self.number > self._batch

    def next(self, room: int) -> LocatedRecords | None:
        try:
            payload = self._decompress()
            located = LocatedRecords(self.run, self._batch, self._batch + 1, [payload], verify=True)
        except KafkaFormatError as error:
            raise with_batch(error, self.run, self._batch) from None
        rows_bytes = len(located) * RECORD_ROW_BYTES
        self._held.add(len(payload) + rows_bytes)
        self._payload_bytes, self._rows_bytes = len(payload), rows_bytes
        self.number = self._batch + 1
        return located

    def _decompress(self) -> bytes | bytearray | memoryview:
        row, stored = self.run.index[self._batch], self.run.payload(self._batch)
        codec, magic = int(row["codec"]), int(row["magic"])
        try:
            payload = codecs.decompress(codec, stored, limit=self._most_bytes, magic=magic)
        except DecompressionLimitError:
            size = decompressed_bytes(codec, stored)
            if size is not None and size <= self._limit:
                self._admit(self.run, self._batch, size)
            raise
        self._admit(self.run, self._batch, len(payload))
        return payload

    def close(self) -> None:
        super().close()
        payload_bytes, self._payload_bytes = self._payload_bytes, 0
        self._held.remove(payload_bytes)


def buffers_at(
    run: BatchRun,
    number: int,
    held: HeldBytes,
    *,
    verify: bool,
    limit: int,
    admit: Admit = lambda run, number, size: None,
    most_bytes: int | None = None,
) -> DecodeBuffers:
    """Create the buffers for batch `number` of a run; for an uncompressed batch, also for those up to a compressed one.

    verify: raises CorruptRecordError if the CRC of a compressed batch fails, before it is decompressed, or the CRC of a
    control batch (queues keep only damaged ones). limit: the most bytes that a batch may decompress to. admit: called
    with a batch and a number of its bytes before they are held; it may raise an error. It does so above most_bytes.
    """
    is_compressed = _is_compressed(run, number)
    if verify and (is_compressed or run.index["is_control"][number]):
        run.ensure_valid(number, number + 1)
    if not is_compressed:
        return PlainBuffers(run, number, held, verify=verify)
    if run.index["magic"][number] >= 2:
        return CompressedBuffers(run, number, held, limit=limit, admit=admit)
    return WrapperBuffers(run, number, held, limit=limit, admit=admit, most_bytes=most_bytes)


def _is_compressed(run: BatchRun, number: int) -> bool:
    return bool(run.index["codec"][number] != 0)
