"""The public names of the record accumulator, whose batches a producer's sender drains (KIP-126)."""

from kafkafmt.client import accumulator
from kafkafmt.client.accumulator import *  # noqa: F403
from kafkafmt.client.accumulator import PartitionLeaders as Cluster  # its public name

__all__ = [*accumulator.__all__, "Cluster"]
