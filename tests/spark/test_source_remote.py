"""The data source on a real local Spark that reads from S3, a server on loopback; test_files.py needs no Spark."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from cli.logs import FIRST_TIMESTAMP, content, segments, write_log
from data.real_logs import LOGS, expected
from file_systems import Requests
from kafkafmt.spark import convert, first_line
from kafkafmt.spark.jobs.table import TableOptions, write_table
from kafkafmt.storage import storage_path
from spark.reads import rows

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

BUCKET, OTHER_BUCKET = "bucket", "other-bucket"
MIB = 1024 * 1024

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, s3_options: Mapping[str, str]) -> Read:
    def load(*paths: str, **options: object) -> DataFrame:
        return spark.read.format("kafkafmt").options(**{**s3_options, **options}).load(list(paths))

    return load


def upload(s3: FileSystem, folder: Path, target: str) -> str:
    """A folder as one in a bucket; its URI."""
    from pyarrow import fs

    s3.create_dir(target.partition("/")[0])
    fs.copy_files(str(folder), target, destination_filesystem=s3)
    return f"s3://{target}"


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(
        found, key=lambda row: (row["topic"], row["partition"], row.get("offset", row.get("baseOffset")))
    )


def starting_at(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}})


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("", {}),
        ("{zstd,lz4}-0", {"includeHeaders": "true"}),
        ("segments-0/00000000000000000120.log", {}),
        ("transactions-0", {"isolation": "read_committed"}),
        ("transactions-0", {"unit": "batches", "columns": "topic,partition,baseOffset,position,batch"}),
        ("none-0", {"startingOffsets": starting_at("none", 33), "splitBytes": "1k"}),
    ],
)
def test_s3_when_read_by_spark_then_rows_are_those_of_local_files(
    read: Read, s3_logs: str, path: str, options: dict[str, str]
) -> None:
    found = in_order(read(f"{s3_logs}/{path}", **options))
    assert found == rows(f"{LOGS}/{path}", **options)
    assert found


@pytest.mark.parametrize("indexed", [True, False])
def test_s3_when_cut_or_bounded_by_time_then_each_row_is_there_once(
    read: Read, s3: FileSystem, tmp_path: Path, indexed: bool
) -> None:
    log = write_log(tmp_path / "orders-0", 60, segment_bytes=20_000)
    for path in [] if indexed else log.glob("*index"):
        path.unlink()
    uri = upload(s3, tmp_path, f"{BUCKET}/indexed-{indexed}")
    frame = read(uri, splitBytes="2k", columns="offset", startingTimestamp=FIRST_TIMESTAMP + 55)
    assert frame.rdd.getNumPartitions() > 10
    assert sorted(row.offset for row in frame.collect()) == list(range(55, 600))


def test_buckets_when_several_and_a_local_path_then_all_are_read(
    read: Read, s3: FileSystem, s3_logs: str
) -> None:
    other = upload(s3, LOGS / "gzip-0", f"{OTHER_BUCKET}/gzip-0")
    frame = read(f"{s3_logs}/zstd-0", other, str(LOGS / "lz4-0"), columns="topic")
    found = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert found == {name: len(expected(f"{name}-0")) for name in ("zstd", "gzip", "lz4")}


def test_s3_when_converted_or_tabled_by_spark_then_the_outcome_is_that_of_local_files(
    spark: SparkSession, s3: FileSystem, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    logs = write_log(tmp_path / "logs" / "orders-0", 20).parent
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    place = upload(s3, logs, f"{BUCKET}/jobs").removeprefix("s3://")
    uri = f"s3://{key}:{secret}@{place}?{query}"
    for source, target in ((uri, "remote"), (str(logs), "local")):
        found = convert(spark, source, tmp_path / target, to_magic=1)
        assert {row.status for row in found.collect()} == {"converted"}
        write_table(spark, storage_path(source), tmp_path / f"{target}.parquet", TableOptions(["orders"]))
    assert content(tmp_path / "remote") == content(tmp_path / "local")
    rows_of = [pq.read_table(tmp_path / f"{one}.parquet").to_pylist() for one in ("remote", "local")]
    assert rows_of[0] == rows_of[1]
    assert rows_of[0]


# How many requests


def test_listing_when_planned_then_is_a_request_a_folder(read: Read, s3_logs: str) -> None:
    folders = [path for path in LOGS.iterdir() if path.is_dir()]
    with Requests() as requests:
        assert read(s3_logs).rdd.getNumPartitions() == 1
    assert len(requests.of("list-type")) <= len(folders) + 2
    assert requests.of(".log") == requests.of("index") == requests.of(".snapshot") == []


@pytest.mark.parametrize(
    ("options", "read_beside"),
    [
        ({"splitBytes": "2k"}, [".index"]),
        ({"startingOffsets": starting_at("transactions", 160)}, [".index"]),
        ({"startingTimestamp": "1"}, [".index", ".timeindex"]),
        ({"isolation": "read_committed"}, [".snapshot", ".txnindex"]),
    ],
)
def test_sidecars_when_planned_then_only_those_of_use_are_read(
    read: Read, s3_logs: str, options: dict[str, str], read_beside: list[str]
) -> None:
    with Requests() as requests:
        read(f"{s3_logs}/transactions-0", **options).rdd.getNumPartitions()
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot")
    assert [suffix for suffix in suffixes if requests.of(suffix)] == sorted(read_beside, key=suffixes.index)


def test_segment_when_read_then_requests_are_of_eight_mebibytes(
    read: Read, s3: FileSystem, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "orders-0", 500, segment_bytes=100 * MIB, records=1000)
    (path,) = segments(log)
    size = path.stat().st_size
    assert size > 30 * MIB
    uri = upload(s3, tmp_path, f"{BUCKET}/large")
    with Requests() as requests:
        assert read(uri, columns="offset").count() == 500_000
    asked = requests.of(path.name)
    assert len(asked) <= 2 + 7 + -(
        -size // (8 * MIB)
    )  # to open it twice at the most, and until reads are large
    assert all(one.startswith("HEAD") for one in requests.of(path.name) if one not in requests.of("GET"))


# What goes wrong, in one line each


def told(action: Callable[[], object]) -> str:
    with pytest.raises(Exception, match=r"PYTHON_|Python worker") as caught:
        action()
    assert "a/secret+" not in str(caught.value)
    return first_line(caught.value)


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("s3://no-such-bucket/logs", "s3://no-such-bucket/logs: no such file or folder"),
        ("s3://bucket/my logs/none-1", "s3://bucket/my logs/none-1: no such file or folder"),
        ("s3://bucket/my logs/none-[1-9]", "s3://bucket/my logs/none-[1-9]: no segments match"),
    ],
)
@pytest.mark.usefixtures("s3_logs")
def test_bucket_or_key_when_missing_then_is_one_line(read: Read, uri: str, line: str) -> None:
    assert told(read(uri).collect) == line


@pytest.fixture
def strict_server(s3_options: Mapping[str, str], s3_logs: str) -> Iterator[None]:
    """The server, which asks who is there for as long as this lasts."""

    def ask(count: str) -> None:
        url = f"http://{s3_options['endpoint_override']}/moto-api/reset-auth"
        request = urllib.request.Request(url, count.encode(), {"Content-Type": "text/plain"})
        with urllib.request.urlopen(request):
            pass

    ask("0")
    yield
    ask("inf")


@pytest.mark.usefixtures("strict_server")
def test_credentials_when_wrong_then_one_line_tells_no_secret(read: Read, s3_logs: str) -> None:
    line = told(read(f"{s3_logs}/none-0").collect)
    assert line.startswith(f"{s3_logs}/none-0: cannot be listed: ")
    assert "ACCESS_DENIED" in line


def planned(frame: DataFrame) -> Callable[[], object]:
    """What collects the rows of a frame whose tasks are planned by now."""
    tasks = frame.rdd
    assert tasks.getNumPartitions() == 1
    return tasks.collect


def test_object_when_deleted_after_planning_then_is_one_line(
    read: Read, s3: FileSystem, tmp_path: Path
) -> None:
    (path,) = segments(write_log(tmp_path / "orders-0", segment_bytes=MIB))
    uri = upload(s3, tmp_path, f"{BUCKET}/deleted")
    collect = planned(read(uri))
    s3.delete_file(f"{BUCKET}/deleted/orders-0/{path.name}")
    line = told(collect)
    assert line.startswith(f"{uri}/orders-0/{path.name}: ")


def test_object_when_replaced_by_a_shorter_one_then_is_one_line(
    read: Read, s3: FileSystem, tmp_path: Path
) -> None:
    (path,) = segments(write_log(tmp_path / "orders-0", segment_bytes=MIB))
    uri = upload(s3, tmp_path, f"{BUCKET}/shorter")
    collect = planned(read(uri))
    size = path.stat().st_size
    with s3.open_output_stream(f"{BUCKET}/shorter/orders-0/{path.name}") as shorter:
        shorter.write(path.read_bytes()[: size // 2])
    expected_line = f"file truncated: expected {size} bytes, as when it was listed, found {size // 2}"
    assert told(collect) == f"{uri}/orders-0/{path.name}: {expected_line}"


def test_secrets_when_given_as_options_or_in_a_uri_then_no_plan_shows_them(
    read: Read, s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    within = s3_logs.replace("s3://", "s3://key:a%2Fsecret%2B@")
    frame = read(f"{within}/none-0")
    assert frame.count() == len(expected("none-0"))
    plan = frame._jdf.queryExecution().toString()
    assert s3_options["secret_key"] not in plan
    assert "a%2Fsecret" not in plan
