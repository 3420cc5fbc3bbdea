"""Any buffer as flat bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


def flat_view(data: Buffer) -> memoryview:
    """A read-only view of the bytes of any C-contiguous buffer, whatever its items and shape; no copy.

    TypeError for anything else.
    """
    view = memoryview(data)
    if not view.nbytes:
        return memoryview(b"")
    return view.cast("B").toreadonly()
