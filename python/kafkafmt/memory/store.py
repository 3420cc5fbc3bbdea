"""The old name of `kafkafmt.streams.store`, for programs that import it."""

from kafkafmt.streams.store import *  # noqa: F403
