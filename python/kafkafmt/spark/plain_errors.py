"""Errors that Spark prints in full, told without the way through this library."""

from __future__ import annotations

from types import TracebackType

from kafkafmt.errors import KafkaFormatError


class PlainErrors:
    """What data and arguments cause is raised without a trace; what is a mistake of this library keeps its own."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KafkaFormatError | ValueError | OSError):
            raise error.with_traceback(None) from None
