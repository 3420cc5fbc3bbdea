"""The membership of a consumer in its group: kafka-python's, which also finishes each join that it has begun."""

from __future__ import annotations

from kafka.coordinator.consumer import ConsumerCoordinator


class GroupMembership(ConsumerCoordinator):  # type: ignore[misc]
    """A ConsumerCoordinator that takes over the outcome of a join, however many polls the join takes.

    The leader of a group joins again if the metadata of its topics changes. kafka-python makes the assignment in its
    I/O thread, and the reason to join is gone from then on. If the poll that began the join has timed out, no later
    poll takes over the outcome: the member gets no partitions, sends no heartbeats, and is removed from its group.
    """

    def need_rejoin(self) -> bool:
        """Return whether the member must join, or has begun to."""
        is_joining = self.rejoining and self._subscription.partitions_auto_assigned()
        return bool(is_joining or super().need_rejoin())
