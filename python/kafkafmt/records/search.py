"""Search bytes for a valid batch, after damage whose lengths cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable

from _kafkafmt.batches.search import find_batch
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD

_READ_BYTES = 1024 * 1024
# At most this many bytes are read again for each byte that the search passes.
_MOST_READ_AGAIN = 256


def find_valid_batch(
    read_at: Callable[[int, int], memoryview | bytes], position: int, end: int, *, only_here: bool = False
) -> int:
    """Return the position of the first batch from `position` on whose CRC matches, or the end if there is none.

    A batch may end after the bytes that were read. They are then read again from its start, with all of it. Bytes may
    look like very many such batches. Once too many bytes were read again, the search looks only at batches that end
    within the bytes that it reads next.

    read_at: returns bytes of a position and a size. end: the position after the last byte. only_here: look at
    `position` alone.
    """
    start, size, read_again = position, _READ_BYTES, 0
    while position < end:
        asked = min(size, end - position)
        data = read_at(position, asked)
        at_end = len(data) < asked or position + len(data) == end
        is_costly = read_again > _MOST_READ_AGAIN * (position - start + _READ_BYTES)
        found, wanted = find_batch(data, only_here, at_end or is_costly)
        if found >= 0 and not wanted:
            return position + found
        if found < 0 and (only_here or at_end):
            break
        # Without a batch, the search continues where a header may begin that is cut.
        position += found if found >= 0 else len(data) - (RECORD_BATCH_OVERHEAD - 1)
        size = max(_READ_BYTES, wanted)
        read_again += wanted
    return end
