"""What the tests of the APIs share."""

from __future__ import annotations

from kafkafmt.server.node import Node

NODE = Node("logs.example.org", 9092, cluster_id="a cluster of ours")
