"""Flushes that fail while producers append: no record that may be lost is confirmed, and the end reports them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.raw_client import RawClient
from endpoints.served import Served
from kafkafmt.log.appender import LogAppender, create_log
from kafkafmt.log.growing_segment import GrowingSegment
from serve.produced import LEADER, answered, batch, error_code, produce

NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION, STORAGE_ERROR = 0, 3, 56
VERSION = 9


def fail_next_flush(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the next flush of the log in `folder` fail, as Linux does: once."""
    left, flush = [OSError(errno.EIO, os.strerror(errno.EIO))], GrowingSegment.flush

    def failing(segment: GrowingSegment) -> None:
        if left and segment.path.parent == folder:
            raise left.pop()
        flush(segment)

    monkeypatch.setattr(GrowingSegment, "flush", failing)


class ServedToItsEnd(Served):
    """error: that with which the endpoint has ended."""

    error: OSError | None = None

    async def _serve(self) -> None:
        try:
            await super()._serve()
        except OSError as error:
            self.error = error


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedToItsEnd:
    """An endpoint that keeps one log open for producers."""
    monkeypatch.setattr("kafkafmt.serve.endpoint.max_open_logs", lambda: 1)
    for name in ("t-0", "t-1"):
        create_log(tmp_path / name)
    return ServedToItsEnd(tmp_path, allow_produce=True)


@pytest.fixture
def client(served: ServedToItsEnd) -> Iterator[RawClient]:
    with served, RawClient(served.address) as client:
        yield client
    assert served.error is not None  # records may be lost
    assert served.error.errno == errno.EIO


def fail_and_close(folder: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush of `t-0` fail, and its log be closed."""
    fail_next_flush(folder, monkeypatch)
    assert error_code(client, produce(batch()), VERSION) == STORAGE_ERROR
    assert error_code(client, produce(batch(), first=1), VERSION) == NO_ERROR
    assert error_code(client, produce(batch()), VERSION) == STORAGE_ERROR


@pytest.mark.parametrize("acks_first", [LEADER, -1], ids=["of-a-close", "of-a-request"])
def test_batch_when_its_flush_has_failed_and_the_log_was_closed_then_is_not_confirmed(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch, acks_first: int
) -> None:
    fail_next_flush(tmp_path / "t-0", monkeypatch)
    data = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
    expected = NO_ERROR if acks_first == LEADER else STORAGE_ERROR
    assert error_code(client, produce(data, acks=acks_first), VERSION) == expected
    for _ in range(2):
        assert error_code(client, produce(batch(), first=1), VERSION) == NO_ERROR
        for again in (data, batch()):
            assert error_code(client, produce(again), VERSION) == STORAGE_ERROR


@pytest.mark.parametrize("is_listed", [False, True])
def test_log_when_its_folder_is_made_again_after_a_failed_flush_then_takes_records(
    tmp_path: Path, served: ServedToItsEnd, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    folder = tmp_path / "t-0"
    with served, RawClient(served.address) as client:
        fail_and_close(folder, client, monkeypatch)
        shutil.rmtree(folder)
        if is_listed:
            codes = [error_code(client, produce(batch()), VERSION) for _ in range(2)]
            assert codes == [STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION]
        create_log(folder)
        (answer,) = answered(client, produce(batch()), VERSION)
        assert (answer.error_code, answer.base_offset) == (NO_ERROR, 0)
    assert served.error is None  # nothing of a log that exists is lost


def test_log_when_its_folder_was_away_after_a_failed_flush_then_is_refused_again(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_close(tmp_path / "t-0", client, monkeypatch)
    (tmp_path / "t-0").rename(tmp_path / "away")
    assert error_code(client, produce(batch()), VERSION) != NO_ERROR
    (tmp_path / "away").rename(tmp_path / "t-0")
    assert error_code(client, produce(batch()), VERSION) == STORAGE_ERROR


def test_refusals_when_there_are_many_then_the_kept_error_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_next_flush(tmp_path / "t-0", monkeypatch)
    with LogAppender(tmp_path / "t-0") as log:
        log.append(batch())
        with pytest.raises(OSError, match="Input/output error"):
            log.flush()
        frames = []
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                log.append(batch())
            assert log.failure is not None
            frames.append(len(traceback.extract_tb(log.failure.__traceback__)))
        assert len(set(frames)) == 1


FLUSHES_FAIL = """
import errno, os
from kafkafmt.cli import main
from kafkafmt.log.growing_segment import GrowingSegment

def fail(segment):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

GrowingSegment.flush = fail
main()
"""


@pytest.mark.slow
def test_serve_when_the_last_flush_fails_then_ends_with_status_1_and_one_line(tmp_path: Path) -> None:
    create_log(tmp_path / "t-0")
    script = [sys.executable, "-c", FLUSHES_FAIL]
    arguments = ["serve", str(tmp_path), "--allow-produce", "--listen", "127.0.0.1:0"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*script, *arguments], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().removeprefix("listening on ").rpartition(":")
        with RawClient((host, int(port))) as client:
            assert error_code(client, produce(batch(), acks=LEADER), VERSION) == NO_ERROR
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    segment = tmp_path / "t-0" / f"{0:020}.log"
    assert (process.returncode, errors.splitlines()[-1]) == (1, f"kafkafmt: {segment}: Read-only file system")
