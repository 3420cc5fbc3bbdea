"""Kafka's error codes for problems with a partition that is served."""

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
    from kafkafmt.serve.partition import Partition

_log = structlog.get_logger()

UNKNOWN_LEADER_EPOCH = -1


def error_code(partition: Partition, error: KafkaFormatError | OSError) -> int:
    """Return Kafka's code for an error of reading a partition's log, and log the error."""
    if isinstance(error, FileNotFoundError):
        log, event, code = _log.info, "partition vanished", UnknownTopicOrPartitionError.errno
    elif isinstance(error, OSError | CheckpointError):
        log, event, code = _log.error, "partition cannot be read", KafkaStorageError.errno
    else:
        log, event, code = _log.error, "damage in the log", CorruptRecordError.errno
    topic, number = partition.topic_partition
    partition.limited_log.write(log, str(error), event, topic=topic, partition=number, error=str(error))
    return int(code)


def refusal_code(partition: Partition, error: type[BrokerResponseError], version: int) -> int:
    """Return the code for records that consumers of this version of Fetch cannot receive, and log a warning."""
    topic, number = partition.topic_partition
    about = {"topic": topic, "partition": number, "version": version, "error": error.message}
    partition.limited_log.write(_log.warning, (error, version), "fetch refused", **about)
    return int(error.errno)


async def leader_epoch_error_code(partition: Partition, current_leader_epoch: int) -> int:
    """Return the error code for a client's leader epoch (KIP-320, "Leader Epoch Validation").

    current_leader_epoch: the client's; -1: none. The code is 0 if the epochs are equal or one is not known.
    """
    if current_leader_epoch == UNKNOWN_LEADER_EPOCH:
        return int(NoError.errno)
    await partition.follow_epochs()
    leader_epoch = partition.leader_epoch
    if leader_epoch in (UNKNOWN_LEADER_EPOCH, current_leader_epoch):
        return int(NoError.errno)
    fenced = current_leader_epoch < leader_epoch
    return int((FencedLeaderEpochError if fenced else UnknownLeaderEpochError).errno)
