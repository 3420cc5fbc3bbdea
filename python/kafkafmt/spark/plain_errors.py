"""Errors that end in one line: what Spark prints of a worker is its whole trace."""

from __future__ import annotations

from types import TracebackType

from kafkafmt.errors import KafkaFormatError


class PlainErrors:
    """What data and arguments cause is told without the way through this library: Spark prints traces in full."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KafkaFormatError | ValueError | OSError):
            raise error.with_traceback(None) from None
