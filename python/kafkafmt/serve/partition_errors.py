"""Kafka's error codes for what can be wrong with a partition while it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    FencedLeaderEpochError,
    KafkaStorageError,
    NoError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.checkpoints import CheckpointError

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Partition

_log = structlog.get_logger()

UNKNOWN_LEADER_EPOCH = -1


def error_code(partition: Partition, error: KafkaFormatError | OSError) -> int:
    """The code for an error of reading a partition's log, which is logged: damage with path and position."""
    if isinstance(error, FileNotFoundError):
        log, event, code = _log.info, "partition vanished", UnknownTopicOrPartitionError.errno
    elif isinstance(error, OSError | CheckpointError):
        log, event, code = _log.error, "partition cannot be read", KafkaStorageError.errno
    else:
        log, event, code = _log.error, "damage in the log", CorruptRecordError.errno
    if times := partition.seldom.times(str(error)):
        topic, number = partition.topic_partition
        log(event, topic=topic, partition=number, error=str(error), times=times)
    return int(code)


def refusal_code(partition: Partition, error: type[BrokerResponseError], version: int) -> int:
    """The code for records that consumers of this version of Fetch cannot have, which is logged for who runs them."""
    if times := partition.seldom.times((error, version)):
        name, number = partition.topic_partition
        _log.warning(
            "fetch refused", topic=name, partition=number, version=version, error=error.message, times=times
        )
    return int(error.errno)


def leader_epoch_error_code(partition: Partition, current_leader_epoch: int) -> int:
    """Whether a client knows the partition's leader epoch (KIP-320, "Leader Epoch Validation").

    current_leader_epoch: what the client thinks it is; -1: it does not say.
    """
    if current_leader_epoch == UNKNOWN_LEADER_EPOCH:
        return int(NoError.errno)
    leader_epoch = partition.leader_epoch
    if leader_epoch in (UNKNOWN_LEADER_EPOCH, current_leader_epoch):
        return int(NoError.errno)
    fenced = current_leader_epoch < leader_epoch
    return int((FencedLeaderEpochError if fenced else UnknownLeaderEpochError).errno)
