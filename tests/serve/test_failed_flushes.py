"""Flushes that fail while producers append: no record that may be lost is confirmed, and the end reports them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.raw_client import RawClient
from endpoints.served import Served
from kafkafmt.log.appender import create_log
from kafkafmt.log.growing_segment import GrowingSegment
from serve.produced import LEADER, batch, error_code, produce

NO_ERROR, STORAGE_ERROR = 0, 56
VERSION = 9


class FailingFlush:
    """Makes the next flush of the log in `folder` fail, as Linux does: once."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_due = True
        flush = GrowingSegment.flush

        def fail_once(segment: GrowingSegment) -> None:
            if self._is_due and segment.path.parent == folder:
                self._is_due = False
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            flush(segment)

        monkeypatch.setattr(GrowingSegment, "flush", fail_once)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RawClient]:
    """A client of an endpoint that keeps one log open for producers."""
    monkeypatch.setattr("kafkafmt.serve.endpoint.max_open_logs", lambda: 1)
    for name in ("t-0", "t-1"):
        create_log(tmp_path / name)
    with Served(tmp_path, allow_produce=True) as served, RawClient(served.address) as client:
        yield client


@pytest.mark.parametrize("acks_first", [LEADER, -1], ids=["of-a-close", "of-a-request"])
def test_batch_when_its_flush_has_failed_and_the_log_was_closed_then_is_not_confirmed(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch, acks_first: int
) -> None:
    FailingFlush(tmp_path / "t-0", monkeypatch)
    data = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
    expected = NO_ERROR if acks_first == LEADER else STORAGE_ERROR
    assert error_code(client, produce(data, acks=acks_first), VERSION) == expected
    for _ in range(2):
        assert error_code(client, produce(batch(), first=1), VERSION) == NO_ERROR
        for again in (data, batch()):
            assert error_code(client, produce(again), VERSION) == STORAGE_ERROR
