"""The rule of `kafkafmt.log.topics` in the data source and in Spark's jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyarrow import fs

from cli.logs import write_log
from file_systems import BUCKET
from kafkafmt.spark.jobs.files import list_files
from log.test_topics import INTERNAL, TOPICS
from spark.reads import rows
from spark.test_log_stream import Query


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for topic in TOPICS:
        write_log(tmp_path / "logs" / f"{topic}-0", 2)
    return tmp_path / "logs"


def topics(path: Path | str, **options: object) -> set[str]:
    return {row["topic"] for row in rows(path, columns="topic", **options)}


def test_internal_topics_when_not_asked_for_then_are_left_out(logs: Path, tmp_path: Path) -> None:
    assert topics(logs) == topics(f"{tmp_path}/lo*") == {"_schemas", "orders"}
    assert {row[0] for row in Query(logs).trigger()} == {"_schemas", "orders"}
    assert topics(logs, unit="batches") == {"_schemas", "orders"}


def test_internal_topics_when_asked_for_then_are_read(logs: Path) -> None:
    assert topics(logs, topics="*") == topics(logs, subscribePattern=".*") == set(TOPICS)
    assert topics(logs, subscribe="__consumer_offsets") == {"__consumer_offsets"}
    assert topics(logs / "__consumer_offsets-0") == {"__consumer_offsets"}
    assert topics(f"{logs}/__*") == set(INTERNAL)
    segment = next((logs / "__consumer_offsets-0").glob("*.log"))
    assert topics(segment) == {"__consumer_offsets"}


def test_directory_when_it_holds_internal_topics_alone_then_says_so(logs: Path) -> None:
    for path in [*logs.glob("_schemas-0/*"), *logs.glob("orders-0/*")]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{logs}: no topic but Kafka's own"):
        topics(logs)


def test_jobs_when_they_list_files_then_verify_alone_has_all(logs: Path) -> None:
    def listed(path: Path, **options: object) -> set[str]:
        return {file.topic_partition.topic for file in list_files(path, **options) if file.topic_partition}  # type: ignore[arg-type]

    assert listed(logs) == {"_schemas", "orders"}
    assert listed(logs, includes_internal=True) == listed(logs, topics="*") == set(TOPICS)
    assert listed(logs / "__consumer_offsets-0") == {"__consumer_offsets"}


def test_remote_directory_when_read_then_internal_topics_are_left_out(
    logs: Path, s3: fs.FileSystem, s3_options: Mapping[str, str]
) -> None:
    fs.copy_files(str(logs), f"{BUCKET}/topics", destination_filesystem=s3)
    assert topics(f"s3://{BUCKET}/topics", **s3_options) == {"_schemas", "orders"}
    assert topics(f"s3://{BUCKET}/topics", topics="*", **s3_options) == set(TOPICS)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"columns": "id"}, "unknown column 'id': expected one of key, value, topic, partition, offset"),
        ({"columns": "ofset"}, "unknown column 'ofset': did you mean 'offset'"),
        ({"zzz": "1"}, "unknown option 'zzz': expected one of path, paths, unit, columns"),
    ],
)
def test_name_when_unknown_then_what_is_near_is_suggested(
    logs: Path, options: dict[str, str], line: str
) -> None:
    with pytest.raises(ValueError, match=f"^{line}"):
        rows(logs, **options)


def test_topic_when_missing_then_says_how_many_there_are(tmp_path: Path) -> None:
    for number in range(17):
        write_log(tmp_path / f"topic-{number:02}-0", 1)
    expected = r"found 3 of 17: topic-\d\d, topic-\d\d, topic-\d\d, and 14 more$"
    with pytest.raises(ValueError, match=expected):
        rows(tmp_path, topics="topic-0x")


def test_internal_topics_when_left_out_then_a_line_in_the_log_names_them(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = "left out: __cluster_metadata, __consumer_offsets, Kafka's own; "
    topics(logs)
    list_files(logs)
    found = [record.message for record in caplog.records if "left out" in record.message]
    assert found == [f"{line}topics=* reads them, too", f"{line}topics='*' or their folders name them"]
    caplog.clear()
    topics(logs, topics="*")
    list_files(logs, includes_internal=True)
    assert not [record for record in caplog.records if "left out" in record.message]


def test_topic_and_partition_when_folders_have_other_names_then_are_refused(logs: Path) -> None:
    given = {"topic": "orders", "partition": 1}
    line = "expected a folder without the name of a partition, as options topic and partition name its records orders-1"
    for path in (logs, logs / "orders-0"):
        with pytest.raises(ValueError, match=f"{line}; found that of "):
            rows(path, **given)
        with pytest.raises(ValueError, match=f"{line}; found that of "):
            Query(path, **given).trigger()
    assert topics(logs / "orders-0", topic="orders", partition=0) == {"orders"}
