"""What a conversion is to do, what it cost, and what came of it; `kafkafmt.converter` does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt import codecs
from kafkafmt.types import Codec, CodecField, check_int

if TYPE_CHECKING:
    from kafkafmt.records import MemoryRecords


@dataclass
class ConversionStats:
    """What a conversion cost (KIP-188's and KIP-283's figures).

    records_converted: records rewritten into the target format or codec; those copied unchanged do not count.
    temporary_memory_bytes: sizes of the source batches plus, uncompressed, of what was made of them.
    seconds: time spent converting.
    partial_messages: wrappers that ended in a part of a message. It was left out, as Kafka's readers leave it out.
    """

    records_converted: int = 0
    temporary_memory_bytes: int = 0
    seconds: float = 0.0
    partial_messages: int = 0

    def add(self, other: ConversionStats) -> None:
        self.records_converted += other.records_converted
        self.temporary_memory_bytes += other.temporary_memory_bytes
        self.seconds += other.seconds
        self.partial_messages += other.partial_messages


@dataclass(frozen=True)
class ConvertedRecords:
    """The outcome of an eager conversion."""

    records: MemoryRecords
    stats: ConversionStats


@dataclass(frozen=True)
class ConversionOptions:
    """How to convert.

    to_magic: 0, 1 or 2; None leaves each batch its own format.
    first_offset: records below it are left out of uncompressed batches that are converted down.
    zstd_fallback: the codec that zstd batches get below v2, which has no zstd; None is Kafka's way, an error.
    codec: the codec that all batches get, but for control batches, which have none; None leaves each its own. A
        batch that has it already is copied, if its format is right.
    level: the codec's, where it has levels.
    verify: check the CRC of every batch, of those that are copied too.
    max_decompressed_bytes: the most that one batch may decompress to.
    clock: seconds, for the statistics.
    """

    to_magic: int | None
    first_offset: int = 0
    zstd_fallback: CodecField[None] = CodecField(None)  # noqa: RUF009, a descriptor
    verify: bool = True
    max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES
    clock: Callable[[], float] = time.perf_counter
    codec: CodecField[None] = CodecField(None)  # noqa: RUF009, a descriptor
    level: int | None = None

    def __post_init__(self) -> None:
        if self.to_magic is None and self.codec is None:
            raise ValueError("to_magic and codec: expected one of them at the least")
        if self.to_magic is not None:
            check_int("to_magic", self.to_magic)
        check_int("first_offset", self.first_offset)
        if self.to_magic not in (None, 0, 1, 2):
            raise ValueError(f"to_magic: expected 0, 1 or 2, found {self.to_magic!r}")
        if self.codec is not None:
            self._check_codec(self.codec)
        elif self.level is not None:
            raise ValueError(f"level: expected a codec with it, found {self.level} alone")
        if self.zstd_fallback == Codec.ZSTD:
            raise ValueError(f"zstd_fallback: expected a codec other than zstd, found {self.zstd_fallback!r}")
        if self.max_decompressed_bytes < 0:
            raise ValueError(
                f"max_decompressed_bytes: expected 0 or more, found {self.max_decompressed_bytes}"
            )

    def _check_codec(self, codec: Codec) -> None:
        if codec == Codec.ZSTD and self.to_magic in (0, 1):
            raise ValueError(f"codec: message format v{self.to_magic} has no zstd, expected another one")
        if self.zstd_fallback is not None:
            raise ValueError(
                "codec and zstd_fallback: expected one of them, as zstd batches get the codec too"
            )
        codecs.check_level(codec, self.level)

    def codec_of(self, codec: int) -> Codec | None:
        """The codec that a batch with `codec` gets on its way below v2; None where it cannot go there."""
        if self.codec is not None:
            return self.codec
        return self.zstd_fallback if codec == Codec.ZSTD else Codec(codec)
