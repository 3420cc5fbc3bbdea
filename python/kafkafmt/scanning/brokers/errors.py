"""Errors of reads from brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kafka.errors import KafkaError

from kafkafmt.errors import KafkaFormatError


class BrokerError(OSError):
    """The brokers refused a request or did not answer."""


@contextlib.contextmanager
def broker_errors(bootstrap_servers: str) -> Iterator[None]:
    """Raise BrokerError for errors of kafka-python in the block, except for damaged batches."""
    try:
        yield
    except KafkaFormatError:
        raise
    except KafkaError as error:
        raise BrokerError(f"{bootstrap_servers}: {error}") from None
