"""Search bytes for a valid batch, after damage whose lengths cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable

from _kafkafmt.batches.search import find_batch
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD

_READ_BYTES = 1024 * 1024
# So many bytes at most are read after a batch that ends beyond the bytes that were read.
_MOST_READ_AHEAD = 16 * 1024 * 1024


def find_valid_batch(
    read_at: Callable[[int, int], memoryview | bytes], position: int, end: int, *, only_here: bool = False
) -> int:
    """Return the position of the first batch from `position` on whose CRC matches, or the end if there is none.

    A batch may end after the bytes that were read. They are then read again from its start, with all of it and up to
    as many bytes after it. So bytes that look like many such batches are read only a few times. A batch of more than
    64 MiB is found only with `only_here`.

    read_at: returns bytes of a position and a size. end: the position after the last byte. only_here: look at
    `position` alone.
    """
    size = _READ_BYTES
    while position < end:
        asked = min(size, end - position)
        data = read_at(position, asked)
        at_end = len(data) < asked or position + len(data) == end
        found, wanted = find_batch(data, only_here, at_end)
        if found >= 0 and not wanted:
            return position + found
        if found < 0 and (only_here or at_end):
            break
        # Without a batch, the search continues where a header may begin that is cut.
        position += found if found >= 0 else len(data) - (RECORD_BATCH_OVERHEAD - 1)
        size = max(_READ_BYTES, wanted + (0 if only_here else min(wanted, _MOST_READ_AHEAD)))
    return end
