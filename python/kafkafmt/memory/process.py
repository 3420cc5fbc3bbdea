"""Limit the memory that a process uses beside its budget: allocator arenas, freed memory, stacks of threads.

A container's limit counts pages; a limit on the address space counts every mapping. glibc reserves 64 MiB for each
thread's arena and 8 MiB for its stack. Once blocks of up to 32 MiB were freed, it keeps such blocks. RocksDB alone
starts half a dozen threads. Arrow's own allocator reserves 1 GiB, of which a Parquet file uses little.
"""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# glibc's initial M_MMAP_THRESHOLD. A value that is set does not grow with freed blocks.
_MMAP_BYTES = 128 * 1024
_TRIM_BYTES = 1024 * 1024
_STACK_BYTES = 1024 * 1024


def bound_process() -> bool:
    """Return freed memory to the system, share one arena among all threads, and limit their stacks to 1 MiB each.

    Call it before the process starts threads: running threads keep their arenas and stacks. Arrow then allocates with
    the C library, unless it was imported before.

    Returns False, and changes no other setting, if the C library is not glibc; False also if glibc refuses a setting.
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
    attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t has 56 or 64 bytes
    if libc.pthread_getattr_default_np(attributes) != 0:
        return False
    try:
        libc.pthread_attr_setstacksize.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.pthread_attr_setstacksize(attributes, _STACK_BYTES)
        return bool(libc.pthread_setattr_default_np(attributes) == 0)
    finally:
        libc.pthread_attr_destroy(attributes)
