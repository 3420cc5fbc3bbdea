"""Where tasks write before a commit: a hidden folder of the job in the log directory, which no reader takes for a log.

    <log directory>/.kafkafmt-<job>.staging/owner.json         who runs the job
                                            manifest.json      once committed: what is to be renamed to what
                                            <attempt>/<n>.log  .index  .timeindex  .positions

An attempt of a task has a folder of its own, so that what another attempt of it wrote is never looked at. What a
job leaves behind that died is removed by a later one where it can be told dead: its driver was a process of this
machine, by boot, process namespace, id and start time, and is no more. Elsewhere it stays until a user says so.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from kafkafmt._util.files import open_regular, read_regular
from kafkafmt.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafkafmt.log.writer import wait_for_lock
from kafkafmt.types import TopicPartition

# In the order in which they are renamed: the log last, which is what makes a segment be there.
SEGMENT_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
# Of a staged segment whose offsets are given out at the commit: where the offsets of its batches are.
POSITIONS_SUFFIX = ".positions"
MANIFEST = "manifest.json"

_OWNER = "owner.json"
_LOCK = ".kafkafmt-lock"
_NAME = re.compile(r"\.kafkafmt-[0-9a-f]{32}\.staging")
_SYNCED_AT_ONCE = 8


@dataclass(frozen=True)
class StagedSegment:
    """A segment as a task left it: `stem` names its files in the staging folder, `size_in_bytes` is the log's."""

    topic_partition: TopicPartition
    stem: str
    base_offset: int
    next_offset: int
    size_in_bytes: int


@dataclass(frozen=True)
class Owner:
    """The process that runs a job, which is Spark's driver. `query` is a stream's id."""

    boot: str
    namespace: str
    process: int
    started: int
    query: str | None = None

    @classmethod
    def here(cls) -> Owner | None:
        """The JVM above this process; None where there is none, and on systems that do not tell."""
        try:
            boot, namespace = _place()
            number = os.getpid()
            while (process := _Process.of(number)).command != "java":
                number = process.parent
        except OSError:
            return None
        return cls(boot, namespace, number, process.started)

    def is_dead(self) -> bool:
        """Did it run on this machine, and does it no more? False where that cannot be told."""
        try:
            if (self.boot, self.namespace) != _place():
                return False
            return _Process.of(self.process).started != self.started
        except FileNotFoundError:
            return Path("/proc/self/stat").exists()
        except OSError:
            return False


@dataclass(frozen=True)
class _Process:
    command: str
    parent: int
    started: int  # in clock ticks since the boot

    @classmethod
    def of(cls, process: int) -> _Process:
        """As proc_pid_stat(5) has it; raises FileNotFoundError where there is none, ProcessLookupError as it ends."""
        text = Path(f"/proc/{process}/stat").read_text()
        command, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return cls(command, int(fields[1]), int(fields[19]))


def _place() -> tuple[str, str]:
    """What tells this machine, and whose process ids are meant, from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(
        Path("/proc/self/ns/pid").readlink()
    )


def new_name() -> str:
    """A staging folder's name. It ends in no number, as a partition's does."""
    return f".kafkafmt-{token_hex(16)}.staging"


def ensure_shared(folder: Path) -> None:
    """Raise FileNotFoundError if the log directory, which the driver has made, is not on this machine."""
    if not folder.is_dir():
        message = "no such folder on this executor: driver and executors have to share it"
        raise FileNotFoundError(errno.ENOENT, message, str(folder))


def new_attempt(folder: Path, name: str, owner: Owner | None) -> Path:
    """The folder of an attempt, in staging folder `name`, which the first attempt makes."""
    staging = folder / name
    with contextlib.suppress(FileExistsError):
        staging.mkdir()
    if owner is not None:
        temporary = staging / token_hex(8)
        temporary.write_text(json.dumps(vars(owner)))
        temporary.rename(staging / _OWNER)
    attempt = staging / token_hex(8)
    attempt.mkdir()
    return attempt


def stagings(folder: Path) -> list[Path]:
    """The staging folders of all jobs in a log directory."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir())


def owner_of(staging: Path) -> Owner | None:
    """Whose it is; None where that is not told."""
    try:
        return Owner(**json.loads(read_regular(staging / _OWNER)))
    except (OSError, ValueError, TypeError):
        return None


def remove(staging: Path) -> None:
    """Remove a staging folder, and what a task that has not noticed still adds to it.

    What says whose it is goes last, so that the rest is not left to nobody by a process that is killed within.
    """
    for _ in range(3):
        with contextlib.suppress(OSError):
            for path in list(staging.iterdir()):
                if path.name != _OWNER:
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)
        if not staging.exists():
            return


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other commit is at work in a log directory, and keep others out."""
    descriptor = open_regular(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def sync(paths: Sequence[Path]) -> None:
    """Make files and folders durable, several at a time, since each waits for the disk."""
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
        for _ in threads.map(_sync, paths):
            pass


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
