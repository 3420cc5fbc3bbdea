"""The records of the batch at the head of a queue, a window at a time, each within the bytes that there are for it.

Of a compressed batch of format v2 a piece of its payload is decompressed, as long as the window may be, and its
records are located there; the decompressor is kept for the next piece where it is small beside the window, else that
one begins anew at the payload's start. The records of an uncompressed batch are located where they are, so that its
window is their rows. A wrapper of format v0 or v1 tells its first offset at its end: its payload is decompressed as a
whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from _kafkafmt.decode import LocatedRecords
from _kafkafmt.window import RECORD_ROW_BYTES, locate_piece, locate_plain
from kafkafmt import codecs
from kafkafmt.decoding import describe
from kafkafmt.errors import KafkaFormatError

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.codecs.streams import PayloadStream
    from kafkafmt.memory.held_bytes import HeldBytes

# A window has that much, however little room there is, in the budget too: each costs a call or two.
LEAST_WINDOW_BYTES = 64 * 1024
# As much where a decompressor is not kept, since all that comes before the window is decompressed again for it.
_LEAST_ANEW_BYTES = 256 * 1024
# A decompressor that takes no more is kept however little room there is: to begin anew costs far more.
_SMALL_STATE_BYTES = 256 * 1024
# More rows at a time make nothing faster.
_MOST_ROWS_BYTES = 4096 * RECORD_ROW_BYTES
# So many there are though the budget has no room for them, as for a window.
_LEAST_ROWS_BYTES = 256 * RECORD_ROW_BYTES
_FIRST_BYTES = 4 * 1024 * 1024
# Few payloads are that many times as large as what they are compressed to.
_LIKELY_RATIO = 8


class Windows(ABC):
    """Windows over the batches of a run, from number `number` on; what they take is counted in `held`.

    A window is what was located last: the next one takes its place. Whatever interrupts the making of one, as a
    MemoryError, it can be made again.
    """

    def __init__(self, run: BatchRun, number: int, held: HeldBytes) -> None:
        self.run = run
        self.number = number
        self._held = held
        self._rows_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What of `held` is for these windows."""
        return self._rows_bytes

    @property
    def is_used_up(self) -> bool:
        """Whether the window that was made last is the last one."""
        return self._is_at_end()

    @abstractmethod
    def _is_at_end(self) -> bool: ...

    @abstractmethod
    def next(self, room: int) -> LocatedRecords | None:
        """The next window; None where nothing was located.

        room: for all that `held_bytes` counts. A window of LEAST_WINDOW_BYTES is made where it is less, and where the
        budget has less: it goes over then. Raises KafkaFormatError for what is damaged, each time anew.
        """

    def release(self) -> None:
        """Let go of the window that was made last."""
        rows_bytes, self._rows_bytes = self._rows_bytes, 0
        self._held.remove(rows_bytes)

    def close(self) -> None:
        """Let go of everything."""
        self.release()

    def _reserve_rows(self, room: int, most: int) -> int:
        """Hold rows for up to `most` records, and for one at the least; how many."""
        self.release()
        wanted = min(room, _MOST_ROWS_BYTES, max(most, 1) * RECORD_ROW_BYTES)
        self._rows_bytes = self._held.add_up_to(wanted, max(min(wanted, _LEAST_ROWS_BYTES), RECORD_ROW_BYTES))
        return self._rows_bytes // RECORD_ROW_BYTES

    def _keep_rows(self, located: LocatedRecords | None) -> None:
        """Give back what was reserved for more records than there are."""
        taken = 0 if located is None else len(located) * RECORD_ROW_BYTES
        unused_bytes, self._rows_bytes = self._rows_bytes - taken, taken
        self._held.remove(unused_bytes)


class PlainWindows(Windows):
    """Of uncompressed batches, up to one that is compressed; `number` moves to the first with records left."""

    def __init__(self, run: BatchRun, number: int, held: HeldBytes, *, verify: bool) -> None:
        super().__init__(run, number, held)
        self._verify = verify
        self._at = self._done = 0

    def _is_at_end(self) -> bool:
        return not self._at  # the next one is another batch's

    def next(self, room: int) -> LocatedRecords | None:
        rows = self._reserve_rows(max(room, LEAST_WINDOW_BYTES), _MOST_ROWS_BYTES)
        located = None
        try:
            located, self.number, self._at, self._done = locate_plain(
                self.run, self.number, at=self._at, done=self._done, most=rows, verify=self._verify
            )
        finally:
            self._keep_rows(located)
        return located


class CompressedWindows(Windows):
    """Of one compressed batch of format v2; `number` moves behind it once all its records were located."""

    def __init__(self, run: BatchRun, number: int, held: HeldBytes, *, limit: int) -> None:
        super().__init__(run, number, held)
        row = run.index[number]
        self._batch = number
        self._codec, self._count = int(row["codec"]), int(row["count"])
        self._payload_bytes = len(run.payload(number))
        self._limit = limit
        self._done = 0
        self._piece = bytearray()
        self._origin = 0
        self._at = 0
        self._is_whole = False
        self._stream: PayloadStream | None = None

    @property
    def held_bytes(self) -> int:
        state_bytes = 0 if self._stream is None else self._stream.state_bytes
        return self._rows_bytes + len(self._piece) + state_bytes

    def _is_at_end(self) -> bool:
        return self._done >= self._count >= 0

    def next(self, room: int) -> LocatedRecords | None:
        try:
            located, missing = self._locate(room)
            while located is None and missing:
                self._fill(room, missing)
                located, missing = self._locate(room)
            if located is not None and self._done + len(located) == self._count and not self._is_whole:
                self._ensure_end()
        except KafkaFormatError as error:
            self._close_stream()
            self._keep_rows(None)
            raise describe(error, self.run, self._batch) from None
        except BaseException:  # as a MemoryError: how far the decompressor got is not known
            self._close_stream()
            raise
        if located is not None:
            self._done, self._at = self._done + len(located), self._behind
        if self.is_used_up:
            self.number = self._batch + 1
        return located

    def _locate(self, room: int) -> tuple[LocatedRecords | None, int]:
        """What is located of the piece, and if that is nothing, how many bytes are missing for a record."""
        if self._at == len(self._piece) and not self._is_whole:
            return None, 1
        room = max(room - self.held_bytes, LEAST_WINDOW_BYTES // 4)
        rows = self._reserve_rows(room, len(self._piece) - self._at)
        located, self._behind, missing = locate_piece(
            self.run,
            self._batch,
            self._piece,
            self._at,
            origin=self._origin,
            is_whole=self._is_whole,
            done=self._done,
            most=rows,
        )
        self._keep_rows(located)
        return located, missing

    def _fill(self, room: int, missing: int) -> None:
        """Make a new piece: what is left of the last one, and behind it what is decompressed next."""
        self._open_stream()
        assert self._stream is not None
        left = self._piece[self._at :]
        taken_bytes = self._at
        self._piece, self._origin, self._at = left, self._origin + taken_bytes, 0
        self._held.remove(taken_bytes)
        is_kept = self._stream.state_bytes <= max(room - LEAST_WINDOW_BYTES, _SMALL_STATE_BYTES)
        room -= self._stream.state_bytes if is_kept else 0
        room = max(room, LEAST_WINDOW_BYTES if is_kept else _LEAST_ANEW_BYTES)
        room = max(room * 3 // 4 - len(left), missing)
        # Where the budget is used up it goes over by so much: less would decompress the batch again for each record.
        room = self._held.add_up_to(room, max(min(room, LEAST_WINDOW_BYTES), missing))
        try:
            self._piece, self._is_whole = self._read_behind(left, room)
        finally:
            self._held.remove(room - (len(self._piece) - len(left)))
        if self._is_whole or not is_kept:
            self._close_stream()

    def _read_behind(self, left: bytearray, room: int) -> tuple[bytearray, bool]:
        """The bytes that are left, and up to `room` more, which are held already; and whether none are behind them."""
        assert self._stream is not None
        size = len(left) + room
        # A length that a record claims is not taken on trust: more than this grows as it comes. To fill it with zeros
        # is no more work than to decompress, however much room there is.
        likely = max(_LIKELY_RATIO * self._payload_bytes, LEAST_WINDOW_BYTES)
        piece = bytearray(min(size, len(left) + min(likely, _FIRST_BYTES)))
        piece[: len(left)] = left
        filled, is_whole = len(left), False
        while filled < size and not is_whole:
            read = self._stream.read(size - filled)
            piece[filled : filled + len(read)] = read
            filled += len(read)
            is_whole = not read
        if filled < len(piece) * 7 // 8:  # cutting off the rest would leave all of it reserved
            return piece[:filled], is_whole
        del piece[filled:]
        return piece, is_whole

    def _open_stream(self) -> None:
        """Decompress from behind the piece, from the start where no decompressor is there."""
        if self._stream is not None:
            return
        stream = codecs.open_stream(self._codec, self.run.payload(self._batch), limit=self._limit)
        self._held.add(stream.state_bytes)
        self._stream = stream
        stream.skip(self._origin + len(self._piece))

    def _close_stream(self) -> None:
        if self._stream is not None:
            state_bytes, self._stream = self._stream.state_bytes, None
            self._held.remove(state_bytes)

    def _ensure_end(self) -> None:
        """Raise InvalidRecordError where the payload goes on behind the last record."""
        self._open_stream()
        assert self._stream is not None
        behind = self._stream.read(1)
        if behind:
            end = self._origin + len(self._piece)
            locate_piece(
                self.run, self._batch, behind, 0, origin=end, is_whole=True, done=self._count, most=1
            )
        self._is_whole = True
        self._close_stream()

    def close(self) -> None:
        super().close()
        self._close_stream()
        piece_bytes, self._piece = len(self._piece), bytearray()
        self._held.remove(piece_bytes)


class WrapperWindows(Windows):
    """Of one wrapper of format v0 or v1, all its records at once, whatever room there is.

    The CRCs of the messages in it are always checked: a caller that has checked the batches has not opened them.
    """

    def __init__(self, run: BatchRun, number: int, held: HeldBytes, *, limit: int) -> None:
        super().__init__(run, number, held)
        self._batch = number
        self._limit = limit
        self._payload_bytes = 0

    def _is_at_end(self) -> bool:
        return self.number > self._batch

    def next(self, room: int) -> LocatedRecords | None:
        row = self.run.index[self._batch]
        try:
            payload = codecs.decompress(
                int(row["codec"]), self.run.payload(self._batch), limit=self._limit, magic=int(row["magic"])
            )
            located = LocatedRecords(self.run, self._batch, self._batch + 1, [payload], verify=True)
        except KafkaFormatError as error:
            raise describe(error, self.run, self._batch) from None
        rows_bytes = len(located) * RECORD_ROW_BYTES
        self._held.add(len(payload) + rows_bytes)
        self._payload_bytes, self._rows_bytes = len(payload), rows_bytes
        self.number = self._batch + 1
        return located

    def close(self) -> None:
        super().close()
        payload_bytes, self._payload_bytes = self._payload_bytes, 0
        self._held.remove(payload_bytes)


def windows_at(run: BatchRun, number: int, held: HeldBytes, *, verify: bool, limit: int) -> Windows:
    """Windows over a run from batch `number` on: over that one, or over all behind it up to a compressed one.

    Raises CorruptRecordError where a compressed batch fails its CRC: before its codec sees it.
    """
    if not _is_compressed(run, number):
        return PlainWindows(run, number, held, verify=verify)
    if verify:
        run.ensure_valid(number, number + 1)
    if run.index["magic"][number] >= 2:
        return CompressedWindows(run, number, held, limit=limit)
    return WrapperWindows(run, number, held, limit=limit)


def _is_compressed(run: BatchRun, number: int) -> bool:
    return bool(run.index["codec"][number] != 0)
