"""What the tests of faults share."""

from __future__ import annotations

from itertools import count

import pytest

from client.cluster import Cluster

NUMBERS = count()


@pytest.fixture
def short_topic(cluster: Cluster) -> str:
    """A topic for the test alone, whose name takes few bytes in requests and responses."""
    return cluster.create_topic(f"t{next(NUMBERS)}")
