"""The endpoint and a real broker are asked the same over the same logs, at every version that both know.

What is not the same is named here, with the reason. Fetch v4 and later give the very bytes of the log; what older
versions give is converted, and compared record by record.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

import kafkafmt as kf
from broker.broker import HOST
from clients.real_broker import serving_broker
from clients.tap import Tap
from data.real_logs import LOGS, NAMES, expected
from endpoints.raw_client import RawClient, plain
from endpoints.requests import (
    FETCH_BY_TOPIC_ID,
    MIB,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Wanted,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from endpoints.served import Served
from kafkafmt.log import PartitionLog
from kafkafmt.server.wire import SUPPORTED

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("protocol")]

PARTITIONS = [(name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in NAMES]
CONVERTING = range(4)  # versions of Fetch
MAX_BYTES_VERSION, FETCH_SESSIONS, ZSTD_VERSION = 3, 7, 10  # of Fetch
METADATA_BY_ID = 12
SMALLEST_TO_BEGIN_WITH = 142  # bytes: what each topic's first batch takes
FIRST_ZSTD_OFFSET = 14  # in the topic "headers", whose records are numbered without gaps
WAIT_MS = 300
UNSUPPORTED_COMPRESSION_TYPE, FETCH_SESSION_ID_NOT_FOUND = 76, 70
UNKNOWN_SESSION = 12345678
UNKNOWN_ID = UUID(int=77)

# Who answers, and when; and the epoch of its election, which a directory tells only once something was written in it.
IDENTITY = {
    "leader_epoch",
    "throttle_time_ms",
    "brokers",
    "cluster_id",
    "controller_id",
    "leader_id",
    "replica_nodes",
    "isr_nodes",
    "node_endpoints",
}


class Pair(NamedTuple):
    """A connection to each, and the topic ids that both know."""

    ours: RawClient
    theirs: RawClient
    ids: dict[str, UUID]

    def answers(self, request: Any, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return told(plain(self.ours.ask(request, version))), told(plain(self.theirs.ask(request, version)))

    def wanted(self, version: int, topic: str, *args: Any, **more: Any) -> Wanted:
        """A partition in a fetch, by name or by id."""
        if version < FETCH_BY_TOPIC_ID:
            return Wanted(topic, *args, **more)
        return Wanted("", *args, **more, topic_id=self.ids.get(topic, UNKNOWN_ID))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The endpoint serves a copy of the broker's folder, so that topic ids are the same."""
    folder = tmp_path_factory.mktemp("broker")
    with Tap((HOST, 0)) as tap, serving_broker(folder, tap, ["empty"]) as broker:
        # The broker renames its checkpoints meanwhile.
        shutil.copytree(broker.log_dir, folder / "copy", ignore=shutil.ignore_patterns("*.tmp"))
        with (
            Served(folder / "copy") as served,
            RawClient(served.address) as ours,
            RawClient((HOST, broker.port)) as theirs,
        ):
            topics = theirs.ask(metadata(), METADATA_BY_ID).topics
            yield Pair(ours, theirs, {topic.name: topic.topic_id for topic in topics})


def told(answer: Any) -> Any:
    """What an answer says, in one order: that of topics and partitions is nobody's promise."""
    if isinstance(answer, dict):
        return {name: told(value) for name, value in answer.items() if name not in IDENTITY}
    if isinstance(answer, list):
        items = [told(item) for item in answer]
        return sorted(items, key=_place) if items and isinstance(items[0], dict) else items
    return bytes(answer) if isinstance(answer, (bytearray, memoryview)) else answer


def _place(item: dict[str, Any]) -> tuple[str, int]:
    topic = item.get("name", item.get("topic", item.get("topic_id", "")))
    return str(topic), item.get("partition_index", item.get("partition", 0))


def versions(pair: Pair, api_key: int) -> range:
    """Those that both know."""
    known = {api.api_key: api.max_version for api in pair.theirs.ask(ApiVersionsRequest(), 0).api_keys}
    return range(min(SUPPORTED[api_key][-1], known[api_key]) + 1)


def assert_same(pair: Pair, api_key: int, request_of: Callable[[], Any]) -> None:
    for version in versions(pair, api_key):
        ours, theirs = pair.answers(request_of(), version)
        assert ours == theirs, f"version {version}"


# Metadata


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["none", "partitions"], id="topics"),
        pytest.param(["nosuch", "none"], id="unknown"),
        pytest.param(["bad/name", ".", "x" * 250], id="invalid"),
        pytest.param(["none", "none"], id="twice"),
    ],
)
def test_metadata_when_topics_are_named_then_as_a_broker_tells_it(pair: Pair, names: list[str]) -> None:
    assert_same(pair, ApiKey.Metadata, lambda: metadata(names))


def test_metadata_when_all_topics_are_asked_for_then_as_a_broker_tells_it(pair: Pair) -> None:
    assert_same(pair, ApiKey.Metadata, lambda: metadata())


def test_metadata_when_topics_are_asked_for_by_id_then_as_a_broker_tells_it(pair: Pair) -> None:
    ids = [pair.ids["none"], pair.ids["partitions"], UNKNOWN_ID]
    ours, theirs = pair.answers(metadata(ids=ids), METADATA_BY_ID)
    assert ours == theirs


# ListOffsets, OffsetForLeaderEpoch


@pytest.mark.parametrize(
    "timestamp",
    [
        pytest.param(-1, id="latest"),
        pytest.param(-2, id="earliest"),
        pytest.param(-3, id="max-timestamp"),
        pytest.param(-4, id="earliest-local"),
        pytest.param(-5, id="latest-tiered"),
        pytest.param(-99, id="nothing"),
        0,
        1_700_000_000_500,
        1_700_000_003_000,
        3_500_000_000_000,
    ],
)
def test_list_offsets_when_asked_of_every_partition_then_as_a_broker_tells_it(
    pair: Pair, timestamp: int
) -> None:
    wanted = [(*partition, timestamp) for partition in [*PARTITIONS, ("empty", 0)]]
    assert_same(pair, ApiKey.ListOffsets, lambda: list_offsets(*wanted))


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param([("transactions", 0, -1), ("open-transaction", 0, -1)], id="transactions"),
        pytest.param([("nosuch", 0, -1), ("none", 9, -1), ("none", -1, -1)], id="unknown"),
        pytest.param([("none", 0, -1), ("none", 0, -1)], id="twice"),
    ],
)
def test_list_offsets_when_committed_then_as_a_broker_tells_it(
    pair: Pair, wanted: list[tuple[str, int, int]]
) -> None:
    def request() -> Any:
        return list_offsets(*wanted, isolation=READ_COMMITTED)

    for version in versions(pair, ApiKey.ListOffsets):
        if version == 0 and len(set(wanted)) < len(wanted):
            continue  # a broker looks for repeated partitions from version 1 on
        ours, theirs = pair.answers(request(), version)
        assert ours == theirs, f"version {version}"


@pytest.mark.parametrize("most", [0, 1, 3, 100])
@pytest.mark.parametrize("timestamp", [-1, -2, 1_700_000_003_000])
def test_list_offsets_when_old_style_then_starts_of_segments_as_a_broker_tells_them(
    pair: Pair, timestamp: int, most: int
) -> None:
    ours, theirs = pair.answers(list_offsets(("segments", 0, timestamp), most=most), 0)
    assert ours == theirs


@pytest.mark.parametrize("epoch", [-1, 0, 99])
def test_offset_for_leader_epoch_when_asked_then_as_a_broker_tells_it(pair: Pair, epoch: int) -> None:
    wanted = [(topic, 0, epoch) for topic in ("none", "segments", "legacy-v0", "nosuch")]
    assert_same(pair, ApiKey.OffsetForLeaderEpoch, lambda: offset_for_leader_epoch(*wanted))


def test_leader_epoch_when_it_is_of_the_future_then_refused_as_by_a_broker(pair: Pair) -> None:
    future = 99
    assert_same(pair, ApiKey.ListOffsets, lambda: list_offsets(("segments", 0, -1), leader_epoch=future))
    assert_same(
        pair,
        ApiKey.OffsetForLeaderEpoch,
        lambda: offset_for_leader_epoch(("none", 0, 0), current_leader_epoch=future),
    )
    assert_same_fetch(pair, lambda v: [pair.wanted(v, "none", leader_epoch=future)])


# SASL


@pytest.mark.parametrize(
    "request_of",
    [lambda: SaslHandshakeRequest(mechanism="PLAIN"), lambda: SaslAuthenticateRequest(auth_bytes=b"\0a\0b")],
    ids=["handshake", "authenticate"],
)
def test_sasl_when_everyone_is_let_in_then_refused_as_by_a_broker(
    pair: Pair, request_of: Callable[[], Any]
) -> None:
    for version in versions(pair, request_of().API_KEY):
        ours, theirs = pair.answers(request_of(), version)
        assert ours["error_code"] == theirs["error_code"]


# Fetch


def assert_same_fetch(
    pair: Pair, wanted: Callable[[int], list[Wanted]], since: int = 0, **limits: Any
) -> None:
    """Fields and bytes are the same; records of versions that convert are, as far as both go."""
    for version in versions(pair, ApiKey.Fetch)[since:]:
        ours, theirs = pair.answers(fetch(*wanted(version), **limits), version)
        if version >= MAX_BYTES_VERSION and "max_bytes" in limits:
            sizes = [len(one["records"] or b"") for one in partitions(ours)]
            assert sum(sizes) <= max(limits["max_bytes"], next(filter(None, sizes), 0))
        for mine, other in zip(partitions(ours), partitions(theirs), strict=True):
            leave_out_what_differs_on_purpose(version, mine, other)
            if limits.get("isolation") != READ_COMMITTED and "last_stable_offset" in mine:
                # It takes looking for transactions, so that it is told to those alone who need it.
                assert mine.pop("last_stable_offset") == mine["high_watermark"]
                assert other.pop("last_stable_offset") <= other["high_watermark"]
        assert ours == theirs, f"version {version}"


def partitions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [partition for topic in answer["responses"] for partition in topic["partitions"]]


def leave_out_what_differs_on_purpose(version: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Take out of two answers what is right as it is in either, having looked at it."""
    for answer in (ours, theirs):
        # With some errors a broker sends null for no records, over which old clients stumble, or for no transactions.
        answer["records"] = answer["records"] or b""
        answer["aborted_transactions"] = answer.get("aborted_transactions") or []
        # For clients of a fenced epoch, to find the leader sooner (KIP-951): there is only one.
        answer.pop("current_leader", None)
    if version in CONVERTING:
        # A broker cuts records where the promised size ends. Here whole batches are sent if their exact size is known,
        # and the next partition has the bytes of the limit that are left.
        assert ours["records"] or not theirs["records"]
        keep_common(ours, theirs, "records", lambda data: list(readable(data)))
    # How many transactions behind what is sent a broker lists is up to where the entries of its index lie.
    keep_common(ours, theirs, "aborted_transactions", list)


def keep_common(
    ours: dict[str, Any], theirs: dict[str, Any], field: str, items: Callable[[Any], list[Any]]
) -> None:
    """Leave of both fields as many items as the shorter one has."""
    mine, other = items(ours[field]), items(theirs[field])
    common = min(len(mine), len(other))
    ours[field], theirs[field] = mine[:common], other[:common]


def readable(records: bytes) -> Iterator[tuple[object, ...]]:
    for record in kf.MemoryRecords(records).records():
        yield record.offset, record.timestamp, record.key, record.value


def has_zstd(name: str) -> bool:
    return any(batch.codec is kf.Codec.ZSTD for batch in PartitionLog(LOGS / name).batches())


@pytest.mark.parametrize("name", NAMES)
def test_fetch_when_from_the_start_then_as_a_broker_answers(pair: Pair, name: str) -> None:
    topic, partition = name.rpartition("-")[::2]
    first = expected(name)[0].offset
    # A broker gives zstd to anyone but those it converts for, unless the topic's codec is zstd: see below.
    since = ZSTD_VERSION if has_zstd(name) else 0
    assert_same_fetch(pair, lambda v: [pair.wanted(v, topic, int(partition), first)], since)


@pytest.mark.parametrize("name", NAMES)
def test_fetch_when_from_the_middle_then_as_a_broker_answers(pair: Pair, name: str) -> None:
    topic, partition = name.rpartition("-")[::2]
    middle = expected(name)[len(expected(name)) // 2].offset
    since = ZSTD_VERSION if has_zstd(name) else 0
    assert_same_fetch(pair, lambda v: [pair.wanted(v, topic, int(partition), middle)], since)


def test_fetch_when_the_version_is_older_than_zstd_then_it_gets_an_error_in_place_of_it(pair: Pair) -> None:
    for version in range(ZSTD_VERSION):
        answer = plain(pair.ours.ask(fetch(Wanted("zstd"), Wanted("headers")), version))
        zstd, headers = (topic["partitions"][0] for topic in answer["responses"])
        assert (zstd["error_code"], zstd["records"]) == (UNSUPPORTED_COMPRESSION_TYPE, b"")
        given = {record[0] for record in readable(headers["records"])}
        assert given == {record.offset for record in expected("headers-0")[:FIRST_ZSTD_OFFSET]}


def test_fetch_when_of_several_partitions_then_as_a_broker_answers(pair: Pair) -> None:
    topics = ("none", "gzip", "lz4", "segments", "upgraded")
    assert_same_fetch(pair, lambda v: [pair.wanted(v, topic, 0, 100) for topic in topics])


@pytest.mark.parametrize("max_bytes", [0, 1, 131, 132, 133, 336, 500, 1000, 4000, 20_000])
def test_fetch_when_a_partition_has_a_limit_then_as_a_broker_answers(pair: Pair, max_bytes: int) -> None:
    topics = ("none", "segments", "gzip")
    # Older versions get nothing from a broker where their limit is too small for a batch; here they get that batch.
    since = MAX_BYTES_VERSION if max_bytes < SMALLEST_TO_BEGIN_WITH else 0
    assert_same_fetch(pair, lambda v: [pair.wanted(v, topic, 0, 0, max_bytes) for topic in topics], since)


@pytest.mark.parametrize("max_bytes", [0, 1, 1000, 4000, 20_000, 25_000])
def test_fetch_when_the_response_has_a_limit_then_as_a_broker_answers(pair: Pair, max_bytes: int) -> None:
    topics = ("none", "segments", "gzip")
    assert_same_fetch(pair, lambda v: [pair.wanted(v, topic) for topic in topics], max_bytes=max_bytes)


def test_fetch_when_a_batch_is_larger_than_an_old_consumers_limit_then_it_gets_the_batch(pair: Pair) -> None:
    for version in range(MAX_BYTES_VERSION):
        answer = plain(pair.ours.ask(fetch(Wanted("none", 0, 150, 100)), version))
        (partition,) = partitions(answer)
        assert next(readable(partition["records"]))[0] == 150


@pytest.mark.parametrize("start", [0, 200])
@pytest.mark.parametrize("max_bytes", [500, MIB])
@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_fetch_when_of_transactions_then_as_a_broker_answers(
    pair: Pair, isolation: int, max_bytes: int, start: int
) -> None:
    def wanted(version: int) -> list[Wanted]:
        return [
            pair.wanted(version, "transactions", 0, start, max_bytes),
            pair.wanted(version, "open-transaction", 0, start // 10, max_bytes),
        ]

    since = MAX_BYTES_VERSION if max_bytes < MIB else 0  # as above
    assert_same_fetch(pair, wanted, since, isolation=isolation)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param([("none", 0, 230)], id="end"),
        pytest.param([("none", 0, 231)], id="behind-the-end"),
        pytest.param([("none", 0, -1)], id="negative"),
        pytest.param([("none", 7, 0)], id="unknown-partition"),
        pytest.param([("nosuch", 0, 0)], id="unknown-topic"),
        pytest.param([("none", 0, 0), ("nosuch", 0, 0), ("lz4", 0, 5000)], id="errors-beside-records"),
        pytest.param([("empty", 0, 0)], id="empty"),
        pytest.param([("empty", 0, 1)], id="behind-empty"),
        pytest.param([("none", 0, 0), ("none", 0, 0)], id="twice"),
        pytest.param([], id="nothing"),
    ],
)
def test_fetch_when_not_all_of_it_gets_records_then_as_a_broker_answers(
    pair: Pair, wanted: list[tuple[str, int, int]]
) -> None:
    assert_same_fetch(pair, lambda v: [pair.wanted(v, *one) for one in wanted])


@pytest.mark.parametrize("offset", [0, 230])
@pytest.mark.parametrize("min_bytes", [0, 1, 50 * MIB])
def test_fetch_when_it_may_wait_then_it_does_as_a_broker(pair: Pair, min_bytes: int, offset: int) -> None:
    waits = min_bytes > (0 if offset == 230 else 1)
    max_wait_ms = WAIT_MS if waits else 100 * WAIT_MS
    for client in (pair.ours, pair.theirs):
        begun = time.monotonic()
        client.ask(fetch(Wanted("none", 0, offset), min_bytes=min_bytes, max_wait_ms=max_wait_ms), 4)
        assert (time.monotonic() - begun >= max_wait_ms / 1000) == waits


@pytest.mark.parametrize("version", range(FETCH_SESSIONS, 18))
def test_fetch_when_it_would_begin_a_session_then_all_is_given_and_none_begun(
    pair: Pair, version: int
) -> None:
    """As by a broker whose sessions are all taken (KIP-227)."""
    wanted = pair.wanted(version, "none")
    begun, whole = (
        plain(pair.ours.ask(fetch(wanted, session=session), version)) for session in ((0, 0), (0, -1))
    )
    assert begun == whole
    assert begun["session_id"] == 0

    ours, theirs = pair.answers(fetch(wanted, session=(UNKNOWN_SESSION, 1)), version)
    assert ours == theirs
    assert ours["error_code"] == FETCH_SESSION_ID_NOT_FOUND
