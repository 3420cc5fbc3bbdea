"""Views of buffers as flat bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


def flat_view(data: Buffer) -> memoryview:
    """Return a read-only view of the bytes of a C-contiguous buffer, without a copy. Item type and shape are free.

    Raises TypeError for any other object, also for an array of Python objects, and BufferError for gaps.
    """
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"data: expected bytes or another buffer, found {type(data).__name__}") from None
    if not view.nbytes:
        return memoryview(b"")
    if not view.c_contiguous:
        raise BufferError(
            f"data: expected a C-contiguous buffer, found {type(data).__name__} with gaps or another order"
        )
    # The format of a structured array is its types, each before the name of its field: `T{O:name:l:size:}`.
    if any("O" in types for types in view.format.split(":")[::2]):
        raise TypeError(f"data: expected a buffer of bytes, found {type(data).__name__} of Python objects")
    return view.cast("B").toreadonly()
