"""The old name of `kafkafmt.streams.cache`, for programs that import it."""

from kafkafmt.streams.cache import *  # noqa: F403
