"""The APIs over the committed log folders of a real broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data.real_logs import LOGS
from kafkafmt.serve.apis import handlers
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.options import ServeOptions, TopicOptions
from kafkafmt.serve.request import Handler
from kafkafmt.serve.topic_settings import TopicConfigs
from serve.apis.samples import NODE


@pytest.fixture(scope="module")
def apis() -> dict[int, Handler]:
    topics = {"gzip": TopicOptions(downconversion_enable=False), "lz4": TopicOptions()}
    return handlers(Catalog(LOGS), NODE, ServeOptions(LOGS, topics=topics), TopicConfigs(LOGS))


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """Copies of two partitions, to be changed."""
    for name in ("none-0", "segments-0"):
        shutil.copytree(LOGS / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def changing_apis(log_directory: Path) -> dict[int, Handler]:
    return handlers(Catalog(log_directory), NODE, ServeOptions(log_directory), TopicConfigs(log_directory))
