"""The one broker that an endpoint is to its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """Where clients find all partitions, the group coordinator and the controller."""

    host: str
    port: int
    cluster_id: str
    id: int = 0
