"""Which transaction markers of a log cannot be read, and which of them a reader has returned as damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.log.isolation import UnreadableMarker
    from kafkafmt.log.tail import LogTail


class MarkerReports:
    """The unreadable markers of a log. Each is to be returned as damage once, and never as a batch."""

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail
        self._reported_end = 0  # the offset after the last marker that was returned

    def first_from(self, offset: int) -> UnreadableMarker | None:
        """Return the first unreadable marker at or after an offset."""
        return next((one for one in self._tail.unreadable_markers if one.offset >= offset), None)

    def unreported_from(self, offset: int) -> UnreadableMarker | None:
        """Return the first one at or after an offset that was not returned yet."""
        return self.first_from(max(offset, self._reported_end))

    def is_reported(self, marker: UnreadableMarker) -> bool:
        """Return whether a marker was returned."""
        return marker.offset < self._reported_end

    def note(self, marker: UnreadableMarker) -> None:
        """Note that a marker is returned, and all before it were."""
        self._reported_end = marker.offset + 1
