"""The options of a conversion, and its statistics. `kafkafmt.convert.engine` converts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kafkafmt import codecs
from kafkafmt.types import Codec, CodecField, check_int


def target_codec(codec: int, wanted: Codec | None, zstd_fallback: Codec | None) -> Codec | None:
    """Return the codec for a batch with `codec`: `wanted` if it is given; None if the batch cannot be converted."""
    if wanted is not None:
        return wanted
    return zstd_fallback if codec == Codec.ZSTD else Codec(codec)


@dataclass
class ConversionStats:
    """Statistics of a conversion, as defined by KIP-188 and KIP-283.

    records_converted: records written in another format or codec; records that are copied unchanged do not count.
    temporary_memory_bytes: the bytes of the source batches, plus those of the converted batches before compression.
    seconds: the time of the conversion.
    partial_messages: wrappers that end in a partial message, which is left out, as Kafka's readers do.
    """

    records_converted: int = 0
    temporary_memory_bytes: int = 0
    seconds: float = 0.0
    partial_messages: int = 0

    def add(self, other: ConversionStats) -> None:
        """Add the statistics of another conversion to these."""
        self.records_converted += other.records_converted
        self.temporary_memory_bytes += other.temporary_memory_bytes
        self.seconds += other.seconds
        self.partial_messages += other.partial_messages

    def take_back(self, other: ConversionStats) -> None:
        """Subtract the statistics of a conversion that is repeated. Its time still counts."""
        self.records_converted -= other.records_converted
        self.temporary_memory_bytes -= other.temporary_memory_bytes
        self.partial_messages -= other.partial_messages


@dataclass(frozen=True)
class ConversionOptions:
    """The options of a conversion. `to_magic`, `codec` or both must be set.

    to_magic: the target format. 0 and 1 convert batches of later formats down, and leave those of earlier ones as they
        are; 2 converts v0 and v1 up. With None each batch keeps its format.
    first_offset: records below it are left out of uncompressed batches that are converted down.
    zstd_fallback: the codec for zstd batches that are converted below v2; with None such a batch is an error, as in
        Kafka.
    codec: the codec for all batches except control batches, which are never compressed; with None each batch keeps its
        codec. A batch that has the codec and the target format is copied.
    level: the compression level of `codec`, if it has levels.
    verify: check the CRC of every batch, also of those that are copied.
    max_decompressed_bytes: the most bytes that one batch may decompress to.
    clock: returns seconds, for the statistics.

    Raises ValueError for options that contradict each other.
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
            raise ValueError("to_magic and codec: expected one of them or both, found neither")
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
            raise ValueError(f"codec: message format v{self.to_magic} has no zstd, expected another codec")
        if self.zstd_fallback is not None:
            raise ValueError(
                "codec and zstd_fallback: expected one of them, as the codec applies to zstd batches, too"
            )
        codecs.check_level(codec, self.level)

    def codec_of(self, codec: int) -> Codec | None:
        """Return the codec for a batch with `codec` that is converted below v2; None if it cannot be converted."""
        return target_codec(codec, self.codec, self.zstd_fallback)
