"""The options of the accumulator."""

from __future__ import annotations

from dataclasses import dataclass

from kafkafmt import codecs
from kafkafmt.build.builder import DEFAULT_BATCH_SIZE
from kafkafmt.types import Codec, CodecField

_LEAST = {
    "batch_size": 0,
    "buffer_memory": 1,
    "linger_ms": 0,
    "delivery_timeout_ms": 0,
    "retry_backoff_ms": 0,
    "max_block_ms": 0,
}
_SIZES = ("batch_size", "buffer_memory")


@dataclass(frozen=True)
class AccumulatorOptions:
    """Sizes in bytes, times in milliseconds, with the names and defaults of Kafka's ProducerConfig.

    batch_size: the target size of a batch, after compression.
    buffer_memory: the bytes that all batches together may hold.
    linger_ms: how long a batch that is not full waits for more records.
    codec, level: of the batches, and the compression level of the codec; None for its default.
    delivery_timeout_ms: how long a record may take until it is acknowledged, from the first append to its batch.
    retry_backoff_ms: the pause after a failed attempt.
    max_block_ms: how long `append` waits for memory at most.

    Raises ValueError for a number out of range and an invalid level. Raises TypeError for a value that is not a number,
    and for a size that is not an int.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    buffer_memory: int = 32 * 1024 * 1024
    linger_ms: float = 0
    codec: CodecField[Codec] = CodecField(Codec.NONE)  # noqa: RUF009, a descriptor
    level: int | None = None
    delivery_timeout_ms: float = 120_000
    retry_backoff_ms: float = 100
    max_block_ms: float = 60_000

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            is_size = name in _SIZES
            if isinstance(value, bool) or not isinstance(value, int if is_size else (int, float)):
                expected = "a number of bytes" if is_size else "a number"
                raise TypeError(f"{name}: expected {expected}, found {value!r}")
            if not value >= least:
                raise ValueError(f"{name}: expected {least} or more, found {value}")
        codecs.check_level(self.codec, self.level)
