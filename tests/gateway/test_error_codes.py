"""Error codes that old clients get are codes that their release knew."""

from __future__ import annotations

import pytest
from kafka import errors
from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.error_codes import known_code


@pytest.mark.parametrize(
    ("api_key", "version", "error", "expected"),
    [
        (ApiKey.Produce, 0, errors.KafkaStorageError, errors.NotLeaderForPartitionError),
        (ApiKey.Produce, 2, errors.KafkaStorageError, errors.NotLeaderForPartitionError),
        (ApiKey.Produce, 2, errors.InvalidTimestampError, errors.InvalidTimestampError),
        (ApiKey.Produce, 1, errors.InvalidTimestampError, errors.CorruptRecordError),
        (ApiKey.Produce, 3, errors.KafkaStorageError, errors.KafkaStorageError),
        (ApiKey.Fetch, 0, errors.UnknownLeaderEpochError, errors.NotLeaderForPartitionError),
        (ApiKey.Fetch, 3, errors.OffsetNotAvailableError, errors.LeaderNotAvailableError),
        (ApiKey.Fetch, 0, errors.OffsetOutOfRangeError, errors.OffsetOutOfRangeError),
        (ApiKey.Produce, 0, errors.TopicAuthorizationFailedError, errors.UnknownError),
        (ApiKey.Produce, 1, errors.TopicAuthorizationFailedError, errors.TopicAuthorizationFailedError),
        (ApiKey.JoinGroup, 0, errors.FencedInstanceIdError, errors.UnknownMemberIdError),
        (ApiKey.Fetch, 2, errors.NoError, errors.NoError),
    ],
)
def test_code_when_client_is_older_then_is_one_that_it_knows(api_key, version, error, expected):
    assert known_code(api_key, version, error.errno) == expected.errno
