"""The configuration of topics while an endpoint reads it for several reasons at the same time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from endpoints.endpoint_here import HOST
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from kafkafmt.log.topic_properties import DOWNCONVERSION_ENABLE
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_creation import NewTopic, TopicCreation
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.listener import listen
from kafkafmt.server.topics_file import TopicsFile

SECONDS = 30
FILE = TopicsFile(Path("topics-file.ini"), {"t": {DOWNCONVERSION_ENABLE: "false"}})


class SlowRead:
    """Lets one read of `topics.ini`, after so many others, end only when `go` is set."""

    def __init__(self, configs: TopicConfigs, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read, self._numbers, self._slow = configs.file.read, itertools.count(), others
        self._begun, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(configs.file, "read", self._read_slowly)

    def _read_slowly(self) -> Mapping[str, TopicConfig]:
        found = self._read()
        if next(self._numbers) == self._slow:
            self._begun.set()
            assert self.go.wait(SECONDS)
        return found

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, SECONDS)


async def _refresh(configs: TopicConfigs, options: ServeOptions) -> None:
    set_topic_config(options.local_directory, "t", TopicConfig(1))
    await configs.refresh()


async def _create(configs: TopicConfigs, options: ServeOptions) -> None:
    creation = TopicCreation(options.local_directory, Catalog(options.directory), configs)
    assert await creation.make([NewTopic("t")]) == {}


@pytest.mark.parametrize(("read", "others"), [(_refresh, 0), (_create, 1)])
def test_topics_file_when_it_is_read_again_during_another_read_then_stays_applied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[TopicConfigs, ServeOptions], Awaitable[None]],
    others: int,
) -> None:
    options = ServeOptions(tmp_path, host=HOST, port=0)
    again = ServeOptions(tmp_path, host=HOST, port=0, topics_file=FILE)

    async def scenario() -> None:
        configs = TopicConfigs(options)
        configs.apply(configs.read())
        with listen(HOST, 0) as listener:
            endpoint = Endpoint(options, listener, configs=configs)
            slow = SlowRead(configs, others, monkeypatch)
            reading = asyncio.ensure_future(read(configs, options))
            await slow.until_begun()
            reloading = asyncio.ensure_future(endpoint.reload(again))
            await asyncio.wait([reloading], timeout=0.5)
            slow.go.set()
            await asyncio.gather(reading, reloading)
        assert configs.overrides("t") == FILE.configs["t"]
        assert not configs.converts_down("t")

    asyncio.run(scenario())
