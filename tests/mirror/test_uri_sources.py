"""A mirror whose source is a log directory in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from client.cluster import Cluster
from data.real_logs import LOGS, NAMES
from file_systems import BUCKET
from mirror.folders import mirror
from mirror.reading import Reader, log_of
from mirror.running import address

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("mirror")]

ANY_TIME = "message.timestamp.after.max.ms=9223372036854775807"


@pytest.fixture
def remote(s3_logs: str, s3_options: Mapping[str, str]) -> str:
    """The committed logs of brokers in an object store: the URI with all that it takes to reach it."""
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    return f"{s3_logs.replace('s3://', f's3://{key}:{secret}@')}?{query}"


def test_mirror_when_the_source_is_in_an_object_store_then_the_cluster_gets_what_the_folder_gives(
    remote: str, new: Cluster, topic: str
) -> None:
    names = {name.rpartition("-")[0] for name in NAMES}
    counted = []
    with Reader(new.bootstrap) as reader:
        for source, prefix in ((LOGS, f"{topic}.local."), (remote, f"{topic}.s3.")):
            options = ("--topic-prefix", prefix, "--topic-config", ANY_TIME, "--exactly-once")
            options += ("--offset-map", f"topic:{topic}-map")
            first, again = (mirror(source, address(new), *options) for _ in range(2))
            assert (first.status, again.status) == (0, 0), first.errors
            assert again.summary["records"] == 0
            assert first.summary["topics"] == {name: f"{prefix}{name}" for name in names}
            counted.append({key: first.summary[key] for key in ("batches", "records", "bytes", "opened")})
        assert counted[0] == counted[1]
        for name in NAMES:
            read_topic, _, partition = name.rpartition("-")
            local, s3 = (
                reader.by_offset(f"{topic}.{where}.{read_topic}", int(partition)) for where in ("local", "s3")
            )
            assert local == s3


def test_mirror_when_the_source_is_in_an_object_store_then_a_folder_gets_its_bytes_and_no_secret_is_shown(
    remote: str, tmp_path: Path
) -> None:
    outcome = mirror(remote, tmp_path / "copy")
    assert outcome.status == 0
    assert "secret" not in outcome.errors
    for name in NAMES:
        topic, _, partition = name.rpartition("-")
        copied = log_of(tmp_path / "copy", topic, int(partition))
        assert log_of(LOGS, topic, int(partition)).startswith(copied)
        assert copied


def test_mirror_when_the_source_is_no_uri_of_a_folder_then_says_so_in_one_line(
    remote: str, tmp_path: Path
) -> None:
    missing = mirror(remote.replace("/my logs", "/nothing"), tmp_path / "copy")
    unknown = mirror("ftp://host/logs", tmp_path / "copy")
    for outcome, said in ((missing, f"s3://{BUCKET}/nothing"), (unknown, "ftp://host/logs")):
        assert outcome.status == 2
        assert said in outcome.errors.splitlines()[-1]
    assert not (tmp_path / "copy").exists()
