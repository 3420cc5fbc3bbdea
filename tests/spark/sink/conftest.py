"""A log directory on S3, and the jobs that write to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from file_systems import BUCKET
from kafkafmt.spark.sink.job import SinkJob
from kafkafmt.storage import RemotePath, storage_path
from spark.sink.stores import COLUMNS, uri
from spark.writes import job

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NUMBERS = count()


@pytest.fixture
def target(s3: FileSystem, s3_options: Mapping[str, str]) -> RemotePath:
    """A new log directory on S3, with its settings in the URI."""
    found = storage_path(uri(f"sink-{next(NUMBERS)}-{os.getpid()}", s3_options))
    assert isinstance(found, RemotePath)
    return found


@pytest.fixture
def plan(target: RemotePath, s3_options: Mapping[str, str]) -> Callable[..., SinkJob]:
    def planned(*, overwrite: bool = False, **options: object) -> SinkJob:
        path: Any = f"s3://{BUCKET}/{target.name}"
        return job(path, *COLUMNS, overwrite=overwrite, **{**s3_options, **options})

    return planned
