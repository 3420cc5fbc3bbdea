"""When a mirror into a store seals its segments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafkafmt._util.sizes import GIB, MIB


@dataclass(frozen=True)
class Sealing:
    """When segments are sealed, and where they are until they are stored. Sizes are in bytes, times in seconds.

    segment_bytes: the size of a full segment; that of the topic if it is lower.
    interval: the age at which a segment is sealed.
    spool: the folder for segments that are not stored yet; None for the target's own, or a temporary one.
    spool_bytes: the most bytes there. A full spool seals segments early.
    """

    segment_bytes: int = 256 * MIB
    interval: float = 300.0
    spool: Path | None = None
    spool_bytes: int = 4 * GIB
