"""Keep one large decompressor for all partitions of a bound: the one that was used last.

A decompressor for each partition would exceed any bound. Without one, each buffer decompresses its payload from the
start, so a payload costs the square of its size. The kept one was in memory when its buffer was filled. So keeping it
does not raise the peak.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkafmt.memory.budget import MemoryBudget

Close = Callable[[], None]


class IdleStream:
    """A decompressor that nothing uses at present, or none. It is known by the function that closes it.

    Attributes:
        owner: the partition's HeldBytes; None if no decompressor is kept.
        size: its bytes.
    """

    def __init__(self) -> None:
        self.owner: Any = None
        self.size = 0
        self._close: Close | None = None
        self._forget: Close | None = None

    def keep(self, close: Close, owner: Any, size: int, budget: MemoryBudget | None) -> None:
        """Keep a decompressor of `size` bytes, and close the one before it.

        It is closed before a caller in this thread waits for bytes of `budget`: the caller would wait for itself.
        """
        self.release()
        self._close, self.owner, self.size = close, owner, size
        if budget is not None:
            self._forget = budget.on_pressure(_release_in_this_thread(self))

    def take(self, close: Close) -> bool:
        """Return a decompressor to its user, who keeps it again later. Returns False if it is not kept."""
        if self._close != close:
            return False
        self._clear()
        return True

    def release(self) -> None:
        """Close the kept decompressor, if there is one."""
        close = self._close
        self._clear()
        if close is not None:
            close()

    def _clear(self) -> None:
        forget, self._close, self._forget = self._forget, None, None
        self.owner, self.size = None, 0
        if forget is not None:
            forget()


def _release_in_this_thread(kept: IdleStream) -> Callable[[int], None]:
    """Return a callback of a budget. In other threads it does nothing, as they may not change the buffers."""
    reference, thread = weakref.ref(kept), threading.get_ident()

    def release(_: int) -> None:
        found = reference() if threading.get_ident() == thread else None
        if found is not None:
            found.release()

    return release
