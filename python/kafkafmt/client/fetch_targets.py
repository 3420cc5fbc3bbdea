"""What a consumer wants to fetch, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Target(NamedTuple):
    """Where the caller wants to fetch a partition from.

    leader_epoch: of the record before `offset`; -1 if it is not known.
    generation: changes with each seek and assignment. What was fetched for an earlier one is dropped.
    delay_s: how long to wait before the first fetch.
    """

    offset: int
    leader_epoch: int
    generation: int
    is_paused: bool = False
    delay_s: float = 0.0


@dataclass(slots=True)
class PartitionProgress:
    """How far a partition was fetched, and from which broker.

    offset, last_epoch: of the next fetch, which is after all that was fetched.
    end: the offset after the last record that the broker has; None if it was not told since the last seek.
    queued_bytes: fetched, and not taken by the caller.
    node_id: of the broker whose session has it; None for none.
    is_stopped: after an error that the caller must handle.
    next_look_up: when the metadata may be requested again, if it has no leader.
    follower, follower_until: the replica to fetch from in place of the leader, and how long (KIP-392).
    """

    target: Target
    offset: int
    last_epoch: int
    not_before: float
    end: int | None = None
    queued_bytes: int = 0
    node_id: int | None = None
    is_stopped: bool = False
    next_look_up: float = 0.0
    follower: int | None = None
    follower_until: float = 0.0
