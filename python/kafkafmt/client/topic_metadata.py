"""Wait for the metadata of a topic, as KafkaProducer does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from kafkafmt.client.clock import monotonic_ms

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata


def update_metadata(cluster: ClusterMetadata, max_wait_ms: float) -> None:
    """Request the metadata again, and wait up to `max_wait_ms` for the response."""
    is_updated = threading.Event()
    cluster.request_update().add_both(lambda _: is_updated.set())
    is_updated.wait(_seconds(max_wait_ms))


def await_topic(cluster: ClusterMetadata, topic: str, max_wait_ms: float) -> set[int]:
    """Wait up to `max_wait_ms` for the metadata of a topic. Return the numbers of its partitions.

    Raises KafkaTimeoutError without metadata in time, and the error of a broker that refuses it. Raises TypeError and
    ValueError for an invalid name.
    """
    deadline_ms = monotonic_ms() + max_wait_ms
    partitions: set[int] | None = cluster.partitions_for_topic(topic)
    if partitions is None:
        cluster.add_topic(topic)
    while partitions is None:
        left_ms = deadline_ms - monotonic_ms()
        is_updated = threading.Event()
        if left_ms > 0:
            future = cluster.request_update()
            future.add_both(lambda _, is_updated=is_updated: is_updated.set())
            is_updated.wait(_seconds(left_ms))
        if left_ms <= 0 or not future.is_done:
            raise kafka_errors.KafkaTimeoutError(
                f"Failed to update metadata after {max_wait_ms / 1000:.1f} secs."
            )
        if future.failed() and not future.retriable():
            raise future.exception
        if topic in cluster.unauthorized_topics:
            raise kafka_errors.TopicAuthorizationFailedError({topic})
        partitions = cluster.partitions_for_topic(topic)
    return partitions


def _seconds(milliseconds: float) -> float:
    return min(milliseconds / 1000, threading.TIMEOUT_MAX)
