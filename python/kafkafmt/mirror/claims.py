"""Claims: which mirror may send the records of a partition in transactions, and which ones it must fence first.

The consumer group of a mirror is at the source. So the target cannot check its generation as KIP-447 has it, with
TxnOffsetCommit. Claims do it, as KIP-618 fences the tasks of Connect. A claim is a record in the topic of the offset
map, with the transactional id of the mirror and its membership of the group. A mirror that begins a partition

1. writes its claim, and waits until it is committed;
2. reads the topic to its end, and so all claims before its own, those of open transactions included: a mirror that
   hangs within a transaction must be fenced before its transaction can end;
3. gives the partition up if another claim is newer, and otherwise fences the other claimers: InitProducerId with their
   transactional ids aborts their open transactions, and refuses all that they send later (KIP-98);
4. reads the map to its end, and sends from there.

Of two claims the later one in the topic sees the other. Its mirror either gives up, or has fenced the other mirror
before it reads the map. So no transaction of another mirror can be committed after the map was read. The generation
only decides which of two mirrors gives up. What it says is never needed to keep records from being sent twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import kafka.errors as kafka_errors

from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.map_topic import as_json
from kafkafmt.mirror.offset_stores import TopicOffsetMapStore
from kafkafmt.mirror.protocols import Membership
from kafkafmt.net import Producer
from kafkafmt.types import TopicPartition

_FIELDS = Membership._fields
# How long the end of other transactions is waited for before their mirrors are fenced. Markers take milliseconds.
_ENDING_SECONDS = 2.0


class Claim(NamedTuple):
    """A claim of a partition.

    transactional_id: of the transactions in which its mirror sends the records. A mirror that was fenced takes another.
    order: the offset, in the topic of the map, of the first claim of the same process.
    membership: of the mirror, at the source; None for a source without groups.
    """

    transactional_id: str
    order: int
    membership: Membership | None

    def is_newer(self, other: Claim, has_member: Callable[[Membership], bool]) -> bool:
        """Return whether the partition is this claim's, and not that of the older claim `other`.

        In one group the later generation is newer, unless its member has left: a group that was deleted counts
        its generations from 1 again. Otherwise the process that claimed first is older.
        """
        mine, others = self.membership, other.membership
        if mine is not None and others is not None and mine.group == others.group:
            if mine.generation > others.generation:
                return True
            if mine.generation < others.generation:
                return not has_member(others)
        return self.order > other.order


class ClaimedOffsetMapStore(TopicOffsetMapStore):
    """Stores ranges and claims in a topic, in the transactions of the caller.

    write: adds keys and values to the topic, in the open transaction.
    """

    write: Callable[[str, Sequence[tuple[bytes, bytes | None]]], None]

    def __init__(self, topic: str, source: str, cluster: MirrorCluster) -> None:
        super().__init__(topic, source, cluster)
        self._claims: defaultdict[TopicPartition, dict[str, Claim]] = defaultdict(dict)
        self._open_claims: defaultdict[TopicPartition, dict[str, Claim]] = defaultdict(dict)
        self._dropped: dict[tuple[TopicPartition, str], None] = {}

    def claim(
        self, topic_partitions: Iterable[TopicPartition], transactional_id: str, value: Mapping[str, object]
    ) -> None:
        """Write a claim of each partition."""
        claims = []
        for one in topic_partitions:
            self._dropped.pop((one, transactional_id), None)
            claims.append((self._key(one, transactional_id), as_json(value)))
        self._write(claims)

    def claims(self, topic_partition: TopicPartition) -> Mapping[str, Claim]:
        """Return the claims of a partition, by transactional id, as `read_claims` found them."""
        return {**self._open_claims[topic_partition], **self._claims[topic_partition]}

    def drop_claim(self, topic_partition: TopicPartition, transactional_id: str) -> None:
        """Let the next `save_dropped` delete a claim: its mirror was fenced, or sends no more of the partition."""
        self._dropped[topic_partition, transactional_id] = None

    def keep_claims(self) -> None:
        """Delete no claims, because the transaction was lost: by its claims the next acquisition finds it to fence."""
        self._dropped.clear()

    def save_dropped(self) -> None:
        """Delete dropped claims. Those whose transaction is aborted stay: they cost a request, and no more."""
        dropped, self._dropped = self._dropped, {}
        if dropped:
            self._write([(self._key(*one), None) for one in dropped])

    def read_claims(self) -> None:
        """Read all claims that were written before this call.

        A transaction that is about to end is waited for. If it stays open, the claims in it count, and its deletions of
        claims do not: it may still be aborted.
        """
        self._open_claims.clear()
        try:
            self._take_all(self._map_topic.read_on(_ENDING_SECONDS))
        except kafka_errors.KafkaTimeoutError:
            self._read_open_claims()

    def _read_open_claims(self) -> None:
        for record in self._map_topic.uncommitted():
            named = json.loads(record.key or b"")
            if named.get("source") == self._source and "claim" in named and record.value is not None:
                partition = TopicPartition(named["topic"], int(named["partition"]))
                claim = _claim(str(named["claim"]), record.value, record.offset)
                self._open_claims[partition][claim.transactional_id] = claim

    def read(self) -> None:
        """Read all that was written before this call, once it is committed or aborted."""
        self._read_on()

    def _key(self, topic_partition: TopicPartition, transactional_id: str) -> bytes:
        topic, partition = topic_partition
        return as_json(
            {"source": self._source, "topic": topic, "partition": partition, "claim": transactional_id}
        )

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.write(self._topic, records)

    def _take_claim(
        self, topic_partition: TopicPartition, transactional_id: str, value: bytes | None, offset: int
    ) -> None:
        claims = self._claims[topic_partition]
        if value is None:
            claims.pop(transactional_id, None)
        else:
            claims[transactional_id] = _claim(transactional_id, value, offset)


def _claim(transactional_id: str, value: bytes, offset: int) -> Claim:
    found = json.loads(value)
    membership = None
    if found.get("group") is not None:
        membership = Membership(str(found["group"]), int(found["generation"]), str(found["member"]))
    return Claim(transactional_id, int(found.get("order", offset)), membership)


def claim_value(membership: Membership | None, order: int | None) -> dict[str, object]:
    """Return the value of a claim. order: of the first claim of this process; None for this one."""
    value: dict[str, object] = {} if membership is None else dict(zip(_FIELDS, membership, strict=True))
    return value if order is None else {**value, "order": order}


def fence(cluster: MirrorCluster, transactional_id: str) -> None:
    """Abort the open transaction of a transactional id, and refuse what its producer sends later (KIP-98).

    A transaction that is being committed is committed before this returns. Raises KafkaError.
    """
    config = {**cluster.config_of(Producer), "transactional_id": transactional_id, "metrics_enabled": False}
    with closing(Producer(**config)) as producer:
        producer.init_transactions()
