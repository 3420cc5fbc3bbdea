"""The options and reports of a conversion: plain values, which can be sent to other processes and machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.jobs.convert.memory import ConvertMemory
from kafkafmt.jobs.rewrite import OnCorrupt, SegmentReport, SegmentTask, plan_segments
from kafkafmt.log.topics import Topics
from kafkafmt.storage import StoragePath
from kafkafmt.types import Codec

Status = Literal["converted", "unchanged", "gone", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)
_SIDECAR_SUFFIX = ".converted"


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion.

    to_magic: 0, 1 or 2; None keeps the format of each batch.
    on_corrupt: "fail": a segment with damage fails; "skip": damaged batches are left out and reported.
    zstd_fallback: the codec for zstd batches below v2, where zstd does not exist; None: such a segment fails.
    chunk_size: source bytes that are read and converted at once.
    codec, level: the compression of all batches; None keeps that of each batch.
    memory: the limit of all processes; None: no limit, except 256 MiB for a decompressed batch.
    force: replace segments that were converted with another to_magic, codec or level.

    Raises ValueError for invalid options, and for options that change nothing.
    """

    to_magic: int | None = None
    on_corrupt: OnCorrupt = "fail"
    zstd_fallback: Codec | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    codec: Codec | None = None
    level: int | None = None
    memory: ConvertMemory | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.on_corrupt not in get_args(OnCorrupt):
            raise ValueError(f"on_corrupt: expected fail or skip, found {self.on_corrupt!r}")
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size: expected 1 or more, found {self.chunk_size}")
        self.conversion()

    def conversion(self) -> ConversionOptions:
        """Return the options for each batch."""
        return ConversionOptions(
            self.to_magic,
            zstd_fallback=self.zstd_fallback,
            codec=self.codec,
            level=self.level,
            max_decompressed_bytes=self.max_batch_bytes,
        )

    @property
    def max_batch_bytes(self) -> int:
        """The most bytes that a batch may decompress to; with `memory` also the most that it may be stored in."""
        return DEFAULT_MAX_DECOMPRESSED_BYTES if self.memory is None else self.memory.max_batch_bytes


@dataclass
class ConvertReport(SegmentReport):
    """The result for one segment.

    status: one of `STATUSES`.
    partial_messages: wrappers that ended with an incomplete message. It was left out, as by readers.
    """

    status: str = "converted"
    records_converted: int = 0
    partial_messages: int = 0


def plan(
    source: StoragePath, target: StoragePath, topics: Topics = None, *, from_segment_start: bool = False
) -> list[SegmentTask]:
    """List the segments of a log directory or partition folder as tasks, as `rewrite.plan_segments`."""
    return plan_segments(source, target, topics, _SIDECAR_SUFFIX, from_segment_start=from_segment_start)
