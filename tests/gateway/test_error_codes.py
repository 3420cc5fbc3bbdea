"""Error codes that old clients get are codes that their release knew, as the jars of Kafka's clients tell it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kafka import errors
from kafka.protocol.api_key import ApiKey

from gateway import kafka_history
from kafkafmt.gateway.error_codes import OLDER_CODES, first_release, known_code, release_of
from kafkafmt.gateway.translations import TRANSLATIONS

HISTORY = kafka_history.recorded()
NEWEST_CODE = 133  # of Kafka 4.3
TRANSLATED = [
    (api_key, version)
    for api_key, versions in (
        (ApiKey.Produce, range(3)),
        (ApiKey.Fetch, range(4)),
        *((key, translation.versions) for key, translation in TRANSLATIONS.items()),
    )
    for version in versions
]


@pytest.mark.parametrize(
    ("api_key", "version", "error", "expected"),
    [
        (ApiKey.Produce, 0, errors.KafkaStorageError, errors.NotLeaderForPartitionError),
        (ApiKey.Produce, 2, errors.KafkaStorageError, errors.NotLeaderForPartitionError),
        (ApiKey.Produce, 2, errors.InvalidTimestampError, errors.InvalidTimestampError),
        (ApiKey.Produce, 1, errors.InvalidTimestampError, errors.CorruptRecordError),
        (ApiKey.Produce, 3, errors.KafkaStorageError, errors.KafkaStorageError),
        (ApiKey.Produce, 0, errors.NotEnoughReplicasError, errors.RequestTimedOutError),
        (ApiKey.Fetch, 0, errors.UnknownLeaderEpochError, errors.NotLeaderForPartitionError),
        (ApiKey.Fetch, 3, errors.OffsetNotAvailableError, errors.LeaderNotAvailableError),
        (ApiKey.Fetch, 0, errors.OffsetOutOfRangeError, errors.OffsetOutOfRangeError),
        (ApiKey.Produce, 0, errors.TopicAuthorizationFailedError, errors.UnknownError),
        (ApiKey.Produce, 1, errors.TopicAuthorizationFailedError, errors.TopicAuthorizationFailedError),
        (ApiKey.JoinGroup, 0, errors.FencedInstanceIdError, errors.UnknownMemberIdError),
        (ApiKey.OffsetFetch, 0, errors.NotCoordinatorError, errors.LeaderNotAvailableError),
        (ApiKey.OffsetCommit, 1, errors.NotCoordinatorError, errors.NotCoordinatorError),
        (ApiKey.DeleteTopics, 0, errors.TopicDeletionDisabledError, errors.InvalidRequestError),
        (ApiKey.Fetch, 2, errors.NoError, errors.NoError),
    ],
)
def test_code_when_client_is_older_then_is_one_that_it_knows(api_key, version, error, expected):
    assert known_code(api_key, version, error.errno) == expected.errno


def test_first_release_when_compared_with_the_jars_then_is_theirs() -> None:
    assert {code: first_release(code) for code in HISTORY.errors} == {
        code: known.release for code, known in HISTORY.errors.items()
    }


@pytest.mark.parametrize(("api_key", "version"), TRANSLATED)
def test_release_of_a_version_when_compared_with_the_jars_then_is_theirs(api_key: int, version: int) -> None:
    assert release_of(api_key, version) == HISTORY.versions[api_key, version]


@pytest.mark.parametrize(("api_key", "version"), TRANSLATED)
def test_code_when_it_is_any_then_the_release_knows_what_it_becomes(api_key: int, version: int) -> None:
    release = HISTORY.versions[api_key, version]
    for code in range(-1, NEWEST_CODE + 1):
        assert HISTORY.errors[known_code(api_key, version, code)].release <= release


def test_code_when_it_is_retriable_then_so_is_the_older_one() -> None:
    retriable = {code for code, known in HISTORY.errors.items() if known.is_retriable}
    assert {OLDER_CODES[code] for code in retriable & OLDER_CODES.keys()} <= retriable


def test_page_when_it_has_the_tables_then_they_are_those_of_the_code() -> None:
    tool = Path(__file__).parents[2] / "tools" / "gateway_tables.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.oracle
def test_history_when_the_jars_are_asked_then_is_as_recorded() -> None:
    assert kafka_history.asked() == HISTORY
