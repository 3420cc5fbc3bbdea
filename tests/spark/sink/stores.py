"""Jobs of the sink whose log directory is on S3, and the records that such a directory has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from file_systems import BUCKET
from kafkafmt.log import PartitionLog
from kafkafmt.spark.sink.job import SinkJob
from kafkafmt.storage import RemotePath
from spark.writes import Rows, staged

COLUMNS = ("value", "topic", "partition", "offset", "timestamp")


def records(*offsets: int, partition: int = 0) -> list[dict[str, Any]]:
    return [
        {"value": b"%d" % one, "topic": "t", "partition": partition, "offset": one, "timestamp": one}
        for one in offsets
    ]


def uri(name: str, s3_options: Mapping[str, str]) -> str:
    return f"s3://{BUCKET}/{name}?{urlencode(s3_options)}"


def values(target: RemotePath | Path, partition: int = 0) -> list[tuple[int, bytes | None]]:
    path = target / f"t-{partition}"
    return [(one.offset, one.value) for one in PartitionLog(path).records()] if path.exists() else []


def offsets(target: RemotePath | Path, partition: int = 0) -> list[int]:
    return [offset for offset, _ in values(target, partition)]


def save(plan: Callable[..., SinkJob], *tasks: Rows, **options: object) -> None:
    one = plan(**options)
    one.commit(staged(one, *tasks))
