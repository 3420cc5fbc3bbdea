"""Raise errors without their traceback, because Spark prints the whole traceback of a worker."""

from __future__ import annotations

from types import TracebackType

from kafkafmt.errors import KafkaFormatError


class OneLineErrors:
    """Removes the traceback and the cause of errors that data or arguments cause, so that Spark prints one line."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KafkaFormatError | ValueError | OSError | EOFError):
            if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.filename:
                error = type(error)(f"{error.filename}: {error.strerror}")  # as commands print it
            raise error.with_traceback(None) from None
