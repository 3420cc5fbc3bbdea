"""Tasks beside a mirror: a failure of any kind is logged, and the task is called again."""

from __future__ import annotations

import threading
from typing import Any, cast

import kafka.errors as kafka_errors
import pytest

from kafkafmt.mirror import background, heartbeats
from kafkafmt.mirror.aliases import Aliases
from kafkafmt.mirror.background import Background, Task
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.heartbeats import Heartbeats
from logged_events import logged_events

SECONDS = 30.0


class Calls:
    """A task that raises the given errors, one after the other, and succeeds then."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.has_succeeded = threading.Event()

    def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.has_succeeded.set()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (kafka_errors.KafkaTimeoutError("no answer"), "warning"),
        (KeyError("cluster_id"), "error"),
        (ValueError("zip()"), "error"),
    ],
)
def test_task_when_it_raises_then_is_called_again_and_the_first_failure_is_logged(
    error: Exception, level: str
) -> None:
    calls = Calls(error, error)
    with logged_events("kafkafmt.mirror.background") as events:
        with Background([Task("writing heartbeats", 0.001, calls)], [], is_following=True):
            assert calls.has_succeeded.wait(SECONDS)
        assert [one["log_level"] for one in events] == [level, "debug"]
        assert events[0]["event"] == "writing heartbeats failed, and is tried again"
        assert ("exc_info" in events[0]) == (level == "error")


@pytest.mark.parametrize("is_following", [False, True])
@pytest.mark.parametrize("error", [None, MirrorError("refused")])
def test_task_when_it_fails_at_the_end_of_the_mirror_then_is_named(
    error: MirrorError | None, is_following: bool
) -> None:
    """A mirror that follows ends at any moment, and the next one calls the task again."""
    errors = {threading.current_thread(): error}

    def call() -> None:
        found = errors.get(threading.current_thread())
        if found is not None:
            raise found

    failed: list[str] = []
    with Background([Task("sync", SECONDS, call, runs_last=True)], failed, is_following=is_following):
        pass
    assert failed == ([] if error is None or is_following else ["sync"])


def test_task_when_its_call_is_slow_at_the_end_of_the_mirror_then_is_awaited_and_called_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_JOIN_SECONDS", 0.001)
    ended, began, calls = threading.Event(), threading.Event(), []

    def call() -> None:
        if threading.current_thread() is not main:
            began.set()
            assert ended.wait(SECONDS)
        calls.append(threading.current_thread() is main)

    main, failed = threading.current_thread(), list[str]()
    with Background([Task("sync", SECONDS, call, runs_last=True)], failed, is_following=False):
        assert began.wait(SECONDS)
        threading.Timer(0.02, ended.set).start()
    assert calls == [False, True]
    assert failed == []


class Cluster:
    """A cluster whose name is the only option of its clients."""

    def __init__(self, name: str) -> None:
        self.name = name

    def has_topic(self, _: str) -> bool:
        return True

    def config_of(self, client: object) -> dict[str, Any]:
        return {"name": self.name}


class Producers:
    """Makes producers. Those of clusters in `down` cannot be made."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.open: list[str] = []
        self.sent: list[str] = []

    def __call__(self, *, name: str, **config: object) -> Any:
        if name in self.down:
            raise kafka_errors.KafkaTimeoutError(f"no broker of {name} answers")
        self.open.append(name)
        return _Producer(self, name)


class _Producer:
    def __init__(self, producers: Producers, name: str) -> None:
        self._producers, self._name = producers, name

    def send(self, *args: object, **fields: object) -> None:
        self._producers.sent.append(self._name)

    def close(self, timeout: float) -> None:
        self._producers.open.remove(self._name)


def test_heartbeats_when_the_second_producer_could_not_be_opened_then_are_written_once_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producers = Producers()
    monkeypatch.setattr(heartbeats, "Producer", producers)
    writes = Heartbeats(
        cast("Any", Cluster("east")), cast("Any", Cluster("west")), Aliases("east", "west"), lambda: 0.0
    )
    producers.down.add("west")
    for _ in range(2):
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            writes()
        assert producers.open == []
    producers.down.clear()
    writes()
    assert producers.sent == ["east", "west"]
    writes.close()
    assert producers.open == []
