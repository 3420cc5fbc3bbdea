"""What a gateway remembers of its cluster is bounded, whatever the cluster names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway import cluster
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.upstream import Upstream
from kafkafmt.gateway.upstreams import Upstreams

VERSION = 10  # the first with the ids of topics
MOST = cluster._MAX_TOPICS
Topic = MetadataResponse.MetadataResponseTopic


def topic_id(number: int) -> UUID:
    return UUID(int=number + 1)


def learn(view: ClusterView, numbers: Sequence[int]) -> None:
    """Learn that broker 1 leads the only partition of each topic of these numbers."""
    node = MetadataResponse.MetadataResponseBroker
    view.learn(
        MetadataRequest(version=VERSION),
        MetadataResponse(
            version=VERSION,
            brokers=[node(node_id=1, host="127.0.0.1", port=9092, rack=None)],
            controller_id=1,
            topics=[
                Topic(
                    error_code=0,
                    name=f"t{number}",
                    topic_id=topic_id(number),
                    partitions=[Topic.MetadataResponsePartition(partition_index=0, leader_id=1)],
                )
                for number in numbers
            ],
        ),
    )


def test_topics_when_they_are_too_many_then_those_learned_first_are_forgotten() -> None:
    view = ClusterView()
    for first in range(0, MOST, 100):
        learn(view, range(first, first + 100))
    learn(view, [0])  # again, so topic 1 is the oldest

    learn(view, [MOST])

    assert [view.leader(f"t{number}", 0) for number in (0, 1, 2, MOST)] == [1, None, 1, 1]
    assert [view.leader(topic_id(number), 0) for number in (0, 1, 2, MOST)] == [1, None, 1, 1]
    assert {len(kept) for kept in (view._leaders, view._learned, view._names, view._ids)} == {MOST}


def test_topics_when_one_response_has_too_many_then_it_is_kept_until_the_next_one() -> None:
    view = ClusterView()
    learn(view, range(2 * MOST))
    assert {view.leader(f"t{number}", 0) for number in range(2 * MOST)} == {1}
    learn(view, [2 * MOST])
    assert len(view._leaders) == MOST


def test_parts_of_a_request_when_known_topics_are_forgotten_for_new_ones_then_none_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_MAX_TOPICS", 2)

    class Learning(Upstreams):
        """Connections that are made at once, to a cluster that answers at once."""

        async def refresh(self, topics: Sequence[str | UUID], memory: object = None) -> dict[str, int]:
            learn(self.view, [int(str(topic)[1:]) for topic in topics])
            return {}

        async def node(self, node_id: int) -> Upstream:
            return Upstream(None, None, 0.0)  # type: ignore[arg-type]

    async def scenario() -> None:
        view = ClusterView()
        learn(view, [0, 1])
        io = IoLoop(asyncio.get_running_loop())
        upstreams = Learning(io, view, (Address("127.0.0.1", 9092),), cluster_config({}))
        found = await upstreams.by_leader([f"t{number}" for number in range(4)], lambda topic: (topic, 0))
        assert found.refused == []
        assert [parts for _, parts in found.parts] == [["t0", "t1", "t2", "t3"]]

    asyncio.run(scenario())
