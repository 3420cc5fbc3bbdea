"""What a process takes beside what its budget counts, kept small: allocator arenas, freed memory, threads' stacks.

A container's limit counts pages, a limit on the address space every mapping. glibc reserves 64 MiB for each thread's
arena and 8 MiB for its stack, and keeps freed blocks of up to 32 MiB once it has seen some. RocksDB alone starts
half a dozen threads. Arrow's own allocator reserves 1 GiB, of which a Parquet file uses little.
"""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Where its threshold begins, before it grows with what is freed.
_MMAP_BYTES = 128 * 1024
_TRIM_BYTES = 1024 * 1024
_STACK_BYTES = 1024 * 1024


def bound_process() -> bool:
    """Have this process give back what it frees, and its threads share one arena and take 1 MiB of stack each.

    For a process that lives within a MemoryPlan, before it starts threads: those that run keep what they have. Arrow
    allocates by the C library then, where it was not imported before. False where that is not glibc, which is left as
    it is.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "pthread_setattr_default_np"):
        return False
    settings = {
        _M_ARENA_MAX: 1,
        _M_MMAP_THRESHOLD: _MMAP_BYTES,
        _M_TRIM_THRESHOLD: _TRIM_BYTES,
    }
    are_set = [libc.mallopt(name, value) == 1 for name, value in settings.items()]
    return all(are_set) and _set_default_stack_size(libc)


def _set_default_stack_size(libc: ctypes.CDLL) -> bool:
    attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t, of 56 bytes or 64
    if libc.pthread_getattr_default_np(attributes) != 0:
        return False
    try:
        libc.pthread_attr_setstacksize.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.pthread_attr_setstacksize(attributes, _STACK_BYTES)
        return bool(libc.pthread_setattr_default_np(attributes) == 0)
    finally:
        libc.pthread_attr_destroy(attributes)
