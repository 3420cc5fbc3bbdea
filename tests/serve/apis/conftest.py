"""The APIs over the committed log folders of a real broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data.real_logs import LOGS
from kafkafmt.serve.apis import handlers
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.request import Handler
from kafkafmt.server.topics_file import TopicsFile
from serve.apis.samples import NODE


@pytest.fixture(scope="module")
def apis() -> dict[int, Handler]:
    file = TopicsFile(Path("topics"), {"gzip": {"message.downconversion.enable": "false"}, "lz4": {}})
    return made_apis(ServeOptions(LOGS, topics_file=file))


def made_apis(options: ServeOptions) -> dict[int, Handler]:
    configs = TopicConfigs(options)
    configs.apply(configs.read())
    return handlers(Catalog(options.directory), NODE, options, configs, BatchWork())


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """Copies of two partitions, to be changed."""
    for name in ("none-0", "segments-0"):
        shutil.copytree(LOGS / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def changing_apis(log_directory: Path) -> dict[int, Handler]:
    return made_apis(ServeOptions(log_directory))
