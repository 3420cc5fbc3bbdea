"""The lock of a log directory: it excludes brokers, in both directions, and lets writers work side by side."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafmt._util import directory_lock
from kafkafmt._util.directory_lock import (
    DirectoryLockedError,
    lock_log_directory,
    lock_partition_folder,
    lock_surroundings,
)
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log import LogAppender, PartitionLogWriter, SegmentWriter
from locks.writers import batch, held, is_free, traces

_APPENDS = """
import sys
from kafkafmt.log import LogAppender
LogAppender(sys.argv[1]).close()
"""


def appends_elsewhere(folder: Path) -> bool:
    """Does another process get to append there?"""
    done = subprocess.run([sys.executable, "-c", _APPENDS, str(folder)], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 or "DirectoryLockedError" in done.stderr, done.stderr
    return done.returncode == 0


def test_lock_when_a_broker_has_it_then_the_error_names_folder_and_process(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        before = traces(tmp_path)
        with pytest.raises(DirectoryLockedError) as caught:
            lock_log_directory(tmp_path)
        assert caught.value.errno == errno.EWOULDBLOCK
        assert caught.value.filename == str(tmp_path)
        assert "a Kafka broker or another writer" in str(caught.value)
        if sys.platform == "linux":
            assert f"(process {process})" in str(caught.value)
        assert traces(tmp_path) == before
    lock_log_directory(tmp_path).close()


@pytest.mark.parametrize("exclusive", [False, True])
def test_lock_when_it_is_held_then_no_broker_starts_until_it_is_closed(
    tmp_path: Path, exclusive: bool
) -> None:
    lock = lock_log_directory(tmp_path / "new", exclusive=exclusive)
    assert not is_free(tmp_path / "new")
    lock.close()
    lock.close()
    assert is_free(tmp_path / "new")


def test_lock_when_another_descriptor_of_the_file_is_closed_then_is_still_held(tmp_path: Path) -> None:
    with lock_log_directory(tmp_path):
        (tmp_path / ".lock").read_bytes()
        if sys.platform == "linux":
            assert not is_free(tmp_path)


def test_lock_when_several_writers_of_the_process_share_it_then_the_last_one_releases_it(
    tmp_path: Path,
) -> None:
    first, second = lock_log_directory(tmp_path), lock_partition_folder(tmp_path / "t-0")
    first.close()
    assert not is_free(tmp_path)
    second.close()
    assert is_free(tmp_path)


def test_lock_when_writers_of_two_processes_share_the_directory_then_both_work(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "t-0"):
        assert appends_elsewhere(tmp_path / "t-1")


def test_lock_when_it_is_exclusive_then_own_writers_are_let_in_and_others_are_not(tmp_path: Path) -> None:
    with lock_log_directory(tmp_path, exclusive=True):
        with LogAppender(tmp_path / "t-0") as log:
            log.append(batch())
        assert not appends_elsewhere(tmp_path / "t-1")
    assert appends_elsewhere(tmp_path / "t-1")


def test_exclusive_lock_when_another_writer_of_the_process_is_there_then_is_refused(tmp_path: Path) -> None:
    with (
        LogAppender(tmp_path / "t-0"),
        pytest.raises(DirectoryLockedError, match="another writer of this process"),
    ):
        lock_log_directory(tmp_path, exclusive=True)
    lock_log_directory(tmp_path, exclusive=True).close()


def test_lock_when_the_process_forks_then_the_child_does_not_keep_it(tmp_path: Path) -> None:
    lock = lock_log_directory(tmp_path)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:  # lives until the parent closes its socket
        ours.close()
        lock.close()
        theirs.send(b"closed")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    try:
        assert ours.recv(6) == b"closed"
        assert not is_free(tmp_path), "the child released the lock of its parent"
        lock.close()
        assert is_free(tmp_path)
    finally:
        ours.close()
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("writer_class", [LogAppender, PartitionLogWriter])
def test_writer_when_its_folder_is_no_partition_then_leaves_no_lock_beside_it(
    tmp_path: Path, writer_class: type[LogAppender] | type[PartitionLogWriter]
) -> None:
    with writer_class(tmp_path / "plain") as writer:
        writer.append(batch())
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_writer_when_its_folder_is_no_partition_and_a_broker_has_the_one_above_then_is_refused(
    tmp_path: Path,
) -> None:
    with held(tmp_path), pytest.raises(DirectoryLockedError):
        PartitionLogWriter(tmp_path / "t-0.89abcdef-future")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_segment_writer_when_it_is_at_work_then_no_broker_starts(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "t-0", 0)
    assert not is_free(tmp_path)
    writer.append(batch())
    writer.commit()
    assert is_free(tmp_path)
    SegmentWriter(tmp_path / "t-0", 1).abort()
    assert is_free(tmp_path)


def test_partition_writer_when_it_has_committed_then_brokers_are_kept_out_again_by_the_next_append(
    tmp_path: Path,
) -> None:
    writer = PartitionLogWriter(tmp_path / "t-0")
    assert not is_free(tmp_path)
    writer.commit()
    assert is_free(tmp_path)
    with held(tmp_path), pytest.raises(DirectoryLockedError):
        writer.append(batch())
    writer.append(batch())
    assert not is_free(tmp_path)
    writer.commit()
    assert is_free(tmp_path)


def test_partition_writer_when_the_log_grew_after_its_commit_then_goes_on_at_the_new_end(
    tmp_path: Path,
) -> None:
    writer = PartitionLogWriter(tmp_path / "t-0")
    writer.commit()
    with PartitionLogWriter(tmp_path / "t-0") as other:
        other.append(batch(0))
    with pytest.raises(InvalidRecordError, match="expected 1 or more, found 0"):
        writer.append(batch(0))
    writer.append(batch(1))
    assert [path.name for path in writer.commit()] == [f"{1:020}.log"]


def test_surroundings_when_they_have_no_lock_file_then_get_none(tmp_path: Path) -> None:
    with lock_surroundings(tmp_path / "out" / "table.parquet"):
        assert not list(tmp_path.iterdir())
    with held(tmp_path), pytest.raises(DirectoryLockedError):
        lock_surroundings(tmp_path / "out" / "table.parquet")


def test_surroundings_when_they_are_a_partition_of_a_running_broker_then_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with held(tmp_path), pytest.raises(DirectoryLockedError):
        lock_surroundings(tmp_path / "t-0" / "table.parquet")


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_lock_file_when_it_is_no_regular_file_then_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / ".lock"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            monkeypatch.chdir(tmp_path)  # a socket's path is short
            server.bind(".lock")
    with pytest.raises(OSError, match="expected a regular file") as caught:
        lock_log_directory(tmp_path)
    assert caught.value.filename == str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_partition_folder_when_its_parent_must_not_be_written_to_then_needs_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "mounted" / "t-0"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o555)
    try:
        with LogAppender(folder) as log:
            log.append(batch())
    finally:
        folder.parent.chmod(0o755)


def test_lock_when_the_file_system_has_none_then_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, *, exclusive: bool) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(directory_lock, "_set_lock", no_locks)
    with lock_log_directory(tmp_path):
        assert "writing without a lock" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is nothing to fall back from")
def test_lock_when_the_kernel_knows_no_locks_of_open_files_then_a_posix_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.fcntl

    def older(descriptor: int, command: int, argument: bytes) -> bytes:
        if command == fcntl.F_OFD_SETLK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", older)
    with lock_log_directory(tmp_path):
        assert not is_free(tmp_path)
    with held(tmp_path), pytest.raises(DirectoryLockedError):
        lock_log_directory(tmp_path)
