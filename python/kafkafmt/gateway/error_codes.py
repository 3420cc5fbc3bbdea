"""Error codes for clients that are older than the code (the tables of Kafka's `Errors`, release by release).

A client that gets a code that it does not know reports an unknown error at best; some end. So a newer code becomes
one that the client knows, and that makes it do what the newer one asks for: retry, ask for metadata, or give up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kafka import errors
from kafka.protocol.api_key import ApiKey

from kafkafmt.server.request import Message
from kafkafmt.server.wire import all_structs

# A release of Kafka, as 0.10.1 is (0, 10, 1).
Release: TypeAlias = tuple[int, ...]

UNKNOWN_SERVER_ERROR = int(errors.UnknownError.errno)

# The release that introduced a version of an API, for the versions that a gateway translates.
_RELEASES: Mapping[int, tuple[Release, ...]] = {
    ApiKey.Produce: ((0, 8, 0), (0, 9, 0), (0, 10, 0)),
    ApiKey.Fetch: ((0, 8, 0), (0, 9, 0), (0, 10, 0), (0, 10, 1)),
    ApiKey.ListOffsets: ((0, 8, 0),),
    ApiKey.OffsetCommit: ((0, 8, 1), (0, 8, 2)),
    ApiKey.OffsetFetch: ((0, 8, 1),),
    ApiKey.JoinGroup: ((0, 9, 0), (0, 10, 1)),
    ApiKey.CreateTopics: ((0, 10, 1), (0, 10, 2)),
    ApiKey.DeleteTopics: ((0, 10, 1),),
    ApiKey.DescribeConfigs: ((0, 11, 0),),
    ApiKey.OffsetForLeaderEpoch: ((0, 11, 0), (2, 0, 0)),
    ApiKey.WriteTxnMarkers: ((0, 11, 0),),
    ApiKey.DescribeAcls: ((0, 11, 0),),
    ApiKey.CreateAcls: ((0, 11, 0),),
    ApiKey.DeleteAcls: ((0, 11, 0),),
    ApiKey.AlterReplicaLogDirs: ((1, 0, 0),),
    ApiKey.DescribeLogDirs: ((1, 0, 0),),
}
# The first release whose clients know the codes from a number on, in ascending order. Codes of later releases than the
# last are as unknown to all translated versions as its own.
_FIRST_CODES: tuple[tuple[int, Release], ...] = (
    (-1, (0, 8, 0)),
    (12, (0, 8, 1)),
    (14, (0, 8, 2)),
    (21, (0, 9, 0)),
    (32, (0, 10, 0)),
    (36, (0, 10, 1)),
    (44, (0, 10, 2)),
    (45, (0, 11, 0)),
    (56, (1, 0, 0)),
    (61, (1, 1, 0)),
    (72, (2, 0, 0)),
    (73, (2, 1, 0)),
)
# What a newer code becomes. Codes without an entry become UNKNOWN_SERVER_ERROR.
OLDER_CODES: Mapping[int, int] = {
    newer.errno: older.errno
    for newer, older in (
        # The client asks for metadata, and tries again at the leader (KIP-112, KIP-320).
        (errors.KafkaStorageError, errors.NotLeaderForPartitionError),
        (errors.FencedLeaderEpochError, errors.NotLeaderForPartitionError),
        (errors.UnknownLeaderEpochError, errors.NotLeaderForPartitionError),
        (errors.OffsetNotAvailableError, errors.LeaderNotAvailableError),  # KIP-207
        (errors.ListenerNotFoundError, errors.LeaderNotAvailableError),
        (errors.UnknownTopicIdError, errors.UnknownTopicOrPartitionError),
        (errors.InconsistentTopicIdError, errors.UnknownTopicOrPartitionError),
        # Before there were in-sync replicas to wait for, a producer's request timed out.
        (errors.NotEnoughReplicasError, errors.RequestTimedOutError),
        (errors.NotEnoughReplicasAfterAppendError, errors.RequestTimedOutError),
        (errors.RecordListTooLargeError, errors.MessageSizeTooLargeError),
        # Before these codes existed, brokers reported such records as corrupt.
        (errors.InvalidRecordError, errors.CorruptRecordError),
        (errors.InvalidTimestampError, errors.CorruptRecordError),
        # Before groups had coordinators, clients tried again for a partition without a leader.
        (errors.CoordinatorLoadInProgressError, errors.LeaderNotAvailableError),
        (errors.CoordinatorNotAvailableError, errors.LeaderNotAvailableError),
        (errors.NotCoordinatorError, errors.LeaderNotAvailableError),
        # The member joins its group again, under a new id.
        (errors.FencedInstanceIdError, errors.UnknownMemberIdError),
        # As brokers answer old versions of these requests themselves (KIP-108, KIP-322).
        (errors.PolicyViolationError, errors.InvalidRequestError),
        (errors.TopicDeletionDisabledError, errors.InvalidRequestError),
    )
}


def first_release(error_code: int) -> Release:
    """Return the first release of Kafka whose clients know an error code."""
    return next(
        (release for code, release in reversed(_FIRST_CODES) if error_code >= code), _FIRST_CODES[0][1]
    )


def release_of(api_key: int, version: int) -> Release | None:
    """Return the release that introduced a version that is translated; None for other versions."""
    releases = _RELEASES.get(api_key, ())
    return releases[version] if version < len(releases) else None


def known_code(api_key: int, version: int, error_code: int) -> int:
    """Return the error code for a client that sent this version of an API: the same, or an older one."""
    release = release_of(api_key, version)
    if release is None or first_release(error_code) <= release:
        return error_code
    older = OLDER_CODES.get(error_code, UNKNOWN_SERVER_ERROR)
    return older if first_release(older) <= release else UNKNOWN_SERVER_ERROR


def to_known_codes(response: Message) -> None:
    """Replace the error codes of a response, at its version, by those that its client knows."""
    for struct in all_structs(response):
        if getattr(struct, "error_code", None):
            struct.error_code = known_code(response.API_KEY, response.API_VERSION, struct.error_code)
