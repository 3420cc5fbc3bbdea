"""Everything that writes to a log directory, and ways to see that a directory was left alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.logs import run
from kafkafmt import RecordBatchBuilder
from kafkafmt._util.directory_lock import DirectoryLockedError
from kafkafmt.log import LogAppender, PartitionLogWriter, SegmentWriter
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config

# Locks `.lock` in the folder that it is told, as a broker does it, says so, and holds the lock until its input ends.
_HOLDER = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""

Refused = str | None
# Writes to a log directory out of another one; returns why that was refused, in one line, or None.
Writer = Callable[[Path, Path], Refused]


def _command(*arguments: object) -> Refused:
    result = run(*arguments)
    if result.exit_code != 2:
        return None
    assert result.stderr.startswith("kafkafmt: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return str(result.stderr)


def _library(call: Callable[[], object]) -> Refused:
    try:
        with contextlib.closing(call()) as made:  # type: ignore[type-var]
            assert made is not None
    except DirectoryLockedError as error:
        return str(error)
    return None


def batch(base_offset: int = 0) -> bytes:
    builder = RecordBatchBuilder(base_offset=base_offset)
    builder.append(1, b"key", b"value")
    return builder.build()


def _partition_writer(folder: Path) -> Refused:
    try:
        with PartitionLogWriter(folder) as writer:
            writer.append(batch(writer.next_offset))
    except DirectoryLockedError as error:
        return str(error)
    return None


def _segment_writer(folder: Path) -> Refused:
    try:
        with SegmentWriter(folder, 0, replace=True) as writer:
            writer.append(batch())
    except DirectoryLockedError as error:
        return str(error)
    return None


def _topic_configs(directory: Path) -> Refused:
    try:
        set_topic_config(directory, "orders", TopicConfig(1))
    except DirectoryLockedError as error:
        return str(error)
    return None


def _linked(source: Path, target: Path) -> Refused:
    link = source.parent / f"link-{target.name}"
    link.symlink_to(target / "orders-0")
    try:
        return _library(lambda: LogAppender(link))
    finally:
        link.unlink()


WRITERS: dict[str, Writer] = {
    "mirror": lambda source, target: _command("mirror", source, target, "--once"),
    "mirror-of-one-partition": lambda source, target: _command(
        "mirror", source / "orders-0", target, "--once"
    ),
    "mirror-into-a-new-folder": lambda source, target: _command("mirror", source, target / "new", "--once"),
    "convert": lambda source, target: _command("convert", source, target, "--codec", "zstd", "--jobs", 1),
    "convert-into-a-new-folder": lambda source, target: _command(
        "convert", source, target / "new", "--codec", "zstd", "--jobs", 1
    ),
    "replay": lambda source, target: _command("replay", source, target / "new"),
    "table": lambda source, target: _command("table", source, target / "table.parquet"),
    "table-state": lambda source, target: _command(
        "table", source, source.parent / f"{target.name}.parquet", "--state", target / "state"
    ),
    "inspect-parquet": lambda source, target: _command(
        "inspect", source, "--parquet", target / "rows.parquet"
    ),
    "log-appender": lambda source, target: _library(lambda: LogAppender(target / "orders-0")),
    "log-appender-of-a-new-partition": lambda source, target: _library(lambda: LogAppender(target / "new-0")),
    "log-appender-by-a-link": _linked,
    "partition-log-writer": lambda source, target: _partition_writer(target / "orders-0"),
    "partition-log-writer-in-the-directory-itself": lambda source, target: _partition_writer(target),
    "segment-writer": lambda source, target: _segment_writer(target / "orders-0"),
    "topics-ini": lambda source, target: _topic_configs(target),
}
# Runs until it is told to end where nothing is in its way.
ENDPOINT: Writer = lambda source, target: _command(  # noqa: E731
    "serve", target, "--allow-produce", "--listen", "127.0.0.1:0"
)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[int]:
    """Another process that has the lock of a directory as a broker has it; its id."""
    command = [sys.executable, "-c", _HOLDER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


def is_free(directory: Path) -> bool:
    """Would a broker get the lock of a directory now?"""
    command = [sys.executable, "-c", _HOLDER, str(directory)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def traces(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything in a directory: inode, size, time of change and content of each file; of folders without content."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = os.lstat(path)
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns, data)
    return found
