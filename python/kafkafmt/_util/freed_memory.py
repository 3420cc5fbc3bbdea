"""The memory of freed objects."""

from __future__ import annotations

import numpy as np

_BLOCK_BYTES = 8 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let the C library keep up to 16 MiB of freed memory of each arena for new objects, if it keeps less.

    glibc at first returns freed memory above 128 KiB to the system. A program that frees thousands of objects at a time
    then pays a page fault for every 4 KiB of the next ones, which costs more than filling them. glibc keeps twice the
    size of the largest block that it had mapped and that was freed (mallopt(3), M_MMAP_THRESHOLD). So one such block is
    made and freed here; its pages are never touched. Other C libraries have no such rule.
    """
    np.empty(_BLOCK_BYTES, np.uint8)
