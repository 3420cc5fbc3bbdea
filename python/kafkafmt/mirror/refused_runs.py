"""Where a run of the source begins that a mirror cannot move, and why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt._util.sizes import size_text
from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.mirror.handlers import HandlerError
from kafkafmt.records.batch import RecordBatch

if TYPE_CHECKING:
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.mirror.protocols import SourceRun


def begin_of(found: SourceRun, max_decompressed_bytes: int, number: int = 0) -> int:
    """Return the first offset of a batch; of a wrapper that cannot be opened, the end of the batch before it."""
    try:
        return RecordBatch(found.run, number, max_decompressed_bytes).base_offset
    except KafkaFormatError:
        return int(found.run.index["last_offset"][number - 1]) + 1 if number else found.position


def refusal_message(error: Exception, options: MirrorOptions) -> str:
    """Return the message of an error. That of a limit of memory says which option raises it."""
    cause = error.__cause__ if isinstance(error, HandlerError) else error
    if not isinstance(cause, DecompressionLimitError):
        return str(error)
    most, total = options.memory.max_decompressed_bytes, size_text(options.memory_bytes)
    return f"{error}: with --memory {total} a batch may decompress to {most} bytes; more memory raises this limit"
