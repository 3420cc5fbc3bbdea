"""The membership of a consumer in its group: kafka-python's coordinator, polled so that each join is finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka.coordinator.consumer import ConsumerCoordinator


def poll_group(coordinator: ConsumerCoordinator, timeout_ms: float | None) -> bool:
    """Poll the group, and take over the outcome of a join that an earlier poll began. Return False after a timeout.

    The leader of a group joins again if the metadata of its topics changes. kafka-python makes the assignment in its
    I/O thread, and the reason to join is gone from then on. If the poll that began the join has timed out, no later
    poll takes over the outcome: the member gets no partitions, sends no heartbeats, and is removed from its group. So
    a join that is under way is a reason to join.
    """
    if coordinator.rejoining:
        coordinator.request_rejoin()
    return bool(coordinator.poll(timeout_ms=timeout_ms))
