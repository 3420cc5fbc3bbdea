"""The topics of a restore at the target: which may be restored, and their configuration during and after it.

During a restore a topic keeps all batches as they are, and nothing is deleted or compacted. Afterwards it has the
configuration of the backup. Retention is an exception: with it brokers would soon delete records with old timestamps.
So the topic keeps all records until the user sets the retention, unless an option of the restore sets it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import kafka.errors as kafka_errors
import structlog

from kafkafmt._util.names import some_names
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.clusters import ConfigRefusedError, MirrorCluster
from kafkafmt.mirror.offset_stores import FileOffsetMapStore, TopicOffsetMapStore
from kafkafmt.restore.errors import RestoreError
from kafkafmt.restore.options import THROTTLED_REPLICAS
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from kafkafmt.mirror.topic_names import TopicNames

_log = structlog.get_logger()

_MOST = str(2**63 - 1)
# A batch of this size and its request are within the default of socket.request.max.bytes, 100 MiB.
_MOST_BATCH_BYTES = 96 * 1024 * 1024
_DURING = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.after.max.ms": _MOST,
    "message.timestamp.before.max.ms": _MOST,
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
RETENTION = ("retention.ms", "retention.bytes")
_REPLICAS = "min.insync.replicas"
_AFTERWARDS = frozenset({"message.timestamp.difference.max.ms", _REPLICAS})
_TIERED = "remote.storage.enable"


@dataclass(frozen=True)
class TopicPlan:
    """A topic that is restored.

    configs: of the backup, as brokers of the target accept them. refused: the others, with the reason.
    is_there: whether the topic exists at the target.
    """

    topic: str
    target: str
    partitions: int
    configs: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)
    is_there: bool = False

    @property
    def has_retention(self) -> bool:
        """Whether brokers delete old records of the topic, by `RETENTION`. Compaction alone does not."""
        return self.configs.get("cleanup.policy") != "compact"

    def as_dict(self) -> dict[str, object]:
        """Return the plan for JSON."""
        return {
            "topic": self.topic,
            "target": self.target,
            "partitions": self.partitions,
            "is_there": self.is_there,
            "configs": dict(self.configs),
            "refused_configs": dict(self.refused),
        }


class TargetOfRestore:
    """The topics at the target cluster. replication_factor: of new topics."""

    def __init__(self, cluster: MirrorCluster, names: TopicNames, replication_factor: int) -> None:
        self._cluster, self._names, self._replication_factor = cluster, names, replication_factor

    def plan(self, topics: Mapping[str, TopicConfig]) -> list[TopicPlan]:
        """Return how topics are restored. Nothing is changed. Raises RestoreError and MirrorError."""
        by_target = {self._names.target(topic): topic for topic in topics}
        if len(by_target) < len(topics):
            self._names.ensure_distinct(topics)
        there = self._cluster.partition_counts(by_target)
        replicas_there = self._cluster.replication_factors(there)
        plans = []
        for target, topic in sorted(by_target.items()):
            wanted = topics[topic]
            partitions = wanted.partitions or 1
            found = there.get(target, 0)
            if found > partitions:
                raise RestoreError(
                    f"topic {target}: expected at most {partitions} partitions, as {topic} has them, found "
                    f"{found}: keys would be in other partitions"
                )
            configs = {key: value for key, value in wanted.configs.items() if key not in THROTTLED_REPLICAS}
            accepted, refused, replicas = self._accepted(
                target, TopicConfig(partitions, configs), is_there=target in there
            )
            throttles = sorted(wanted.configs.keys() & THROTTLED_REPLICAS)
            refused |= dict.fromkeys(throttles, "it names brokers of the old cluster")
            replicas = replicas_there.get(target, max(replicas, self._replication_factor))
            if replicas > 0:  # else `finish` asks for it
                _refuse_replicas(accepted, refused, replicas)
            plans.append(TopicPlan(topic, target, partitions, accepted, refused, is_there=target in there))
        return plans

    def ensure_restorable(
        self, plans: Iterable[TopicPlan], begun: TopicOffsetMapStore | FileOffsetMapStore | None
    ) -> None:
        """Raise RestoreError if topics have records that this restore has not written. begun: None if it has no map."""
        there = {plan.target: plan for plan in plans if plan.is_there}
        ids = self._cluster.topic_ids(there)
        bounds = self._cluster.bounds(self._cluster.partitions(there))
        filled = sorted({one.topic for one, (start, end) in bounds.items() if end > start})
        foreign = [
            one for one in filled if begun is None or not self._is_own(there[one], ids.get(one), begun)
        ]
        if foreign:
            raise RestoreError(
                f"{self._cluster.address}: expected empty topics, or topics of this restore (same backup, "
                f"generation, --from and --to), found records in {some_names(foreign)}: "
                "--rename restores to other names"
            )

    def _is_own(
        self, plan: TopicPlan, target_id: UUID | None, begun: TopicOffsetMapStore | FileOffsetMapStore
    ) -> bool:
        key = self._names.map_key(plan.topic)
        ranges = (
            one for partition in range(plan.partitions) for one in begun.load(TopicPartition(key, partition))
        )
        return any(target_id is None or one.target_topic_id == str(target_id) for one in ranges)

    def begin(self, plans: Iterable[TopicPlan]) -> None:
        """Create topics, and set the configuration of those that exist, so that brokers keep all batches."""
        for plan in plans:
            configs = {**plan.configs, **self._during(plan)}
            configs = {key: value for key, value in configs.items() if key not in _AFTERWARDS}
            found, refused, _ = self._accepted(
                plan.target, TopicConfig(plan.partitions, configs), is_there=plan.is_there
            )
            if refused:
                _log.warning(
                    "brokers do not know properties that keep old batches", topic=plan.target, refused=refused
                )
            if plan.is_there:
                gone = dict.fromkeys(sorted(_AFTERWARDS & self._own(plan).keys()))
                self._cluster.alter_topic(plan.target, {**found, **gone})
            else:
                topic = TopicConfig(plan.partitions, found)
                self._cluster.create_topic(plan.target, topic, replication_factor=self._replication_factor)

    def finish(
        self, plan: TopicPlan, *, retention: Collection[str]
    ) -> tuple[TopicPlan, dict[str, str | None]]:
        """Set the configuration of the backup. retention: those of RETENTION that are set, too, unless refused.

        Returns the plan, with what could not be set, and the retention of the backup that was not set, though brokers
        accept it: values, or None for the default of brokers.
        """
        final, refused = dict(plan.configs), dict(plan.refused)
        _refuse_replicas(final, refused, self._cluster.replication_factors([plan.target]).get(plan.target, 0))
        kept: dict[str, str | None] = {}
        if plan.has_retention:
            unset = [name for name in RETENTION if name not in retention and name not in refused]
            kept = {name: final.get(name) for name in unset if final.get(name) != "-1"}
            final |= dict.fromkeys((*unset, *(name for name in RETENTION if name in refused)), "-1")
        own = self._own(plan)
        changes: dict[str, str | None] = {key: value for key, value in final.items() if own.get(key) != value}
        changes |= dict.fromkeys(key for key in self._during(plan) if key in own and key not in final)
        if changes:
            self._cluster.alter_topic(plan.target, changes)
        return replace(plan, refused=refused), kept

    def _own(self, plan: TopicPlan) -> Mapping[str, str]:
        """Return the properties that were set for a topic itself; if they are not known, those during a restore."""
        counts = self._cluster.partition_counts([plan.target])
        found = self._cluster.describe_topics(counts).get(plan.target)
        return self._during(plan) if found is None else found.configs

    def _during(self, plan: TopicPlan) -> dict[str, str]:
        known = plan.configs.get("max.message.bytes", "")
        most = max(int(known) if known.isdecimal() else 0, _MOST_BATCH_BYTES)
        return {**_DURING, "max.message.bytes": str(most)}

    def _accepted(
        self, target: str, topic: TopicConfig, *, is_there: bool
    ) -> tuple[dict[str, str], dict[str, str], int]:
        """Return the properties that brokers accept, those that they refuse, with their message, and the replicas.

        The replicas are those that a new topic would get; -1 if brokers do not say.
        """
        accepted, refused = dict(topic.configs), {}
        name = f"kafkafmt-restore-check-{uuid4().hex[:12]}" if is_there else target
        while True:
            try:
                replicas = self._cluster.create_topic(
                    name,
                    TopicConfig(topic.partitions, accepted),
                    replication_factor=self._replication_factor,
                    only_checks=True,
                )
            except ConfigRefusedError as error:
                key = _named(str(error), accepted)
                if key is None:
                    raise
                # Without the name of the topic, which may be that of the check.
                refused[key] = str(error).rpartition(f"{kafka_errors.InvalidConfigurationError.__name__}: ")[
                    2
                ]
                del accepted[key]
            except kafka_errors.KafkaError as error:
                raise RestoreError(f"topic {target}: {error}") from None
            else:
                return accepted, refused, replicas


def _refuse_replicas(configs: dict[str, str], refused: dict[str, str], replicas: int) -> None:
    """Move `min.insync.replicas` from the properties to the refused ones if a topic has fewer replicas."""
    least = configs.get(_REPLICAS, "0")
    if least.isdecimal() and int(least) > replicas:
        refused[_REPLICAS] = f"expected at most the number of replicas, {replicas}, found {least}"
        del configs[_REPLICAS]


def _named(message: str, configs: Iterable[str]) -> str | None:
    """Return the property that a broker names as the reason of a refusal."""
    names = sorted(configs, key=len, reverse=True)
    found = next(
        (one for one in names if re.search(rf"(?<![\w.]){re.escape(one)}(?![\w.]*\w)", message)), None
    )
    if found is None and _TIERED in names and ("remote" in message.lower() or "tiered" in message.lower()):
        return _TIERED
    return found
