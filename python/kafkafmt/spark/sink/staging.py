"""The staging folder of a job, where tasks write before the commit: a hidden folder in the log directory.

    <log directory>/.kafkafmt-<job>.staging/owner.json         the driver of the job
                                            manifest.json      once committed: the renames to do
                                            <attempt>/<n>.log  .index  .timeindex  .positions

No reader treats it as a log. Each attempt of a task has its own folder, so files of failed attempts are never read.

A later job removes the folder of a dead job. A job is dead if its driver was a process of this machine that no longer
exists; boot id, process namespace, process id and start time identify it. Other folders stay until a user removes them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from kafkafmt._util.files import read_regular, sync_path
from kafkafmt._util.locks import locked_file
from kafkafmt.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafkafmt.types import TopicPartition

# In the order of renaming. The log is last: it makes the segment visible.
SEGMENT_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
# The positions of the batches of a staged segment, if the commit assigns their offsets.
POSITIONS_SUFFIX = ".positions"
MANIFEST = "manifest.json"
OWNER = "owner.json"

_LOCK = ".kafkafmt-lock"
_NAME = re.compile(r"\.kafkafmt-([0-9a-f]{32})\.staging")
_SYNCED_AT_ONCE = 8


@dataclass(frozen=True)
class StagedSegment:
    """A segment that a task wrote. stem: the path of its files in the staging folder, without suffix."""

    topic_partition: TopicPartition
    stem: str
    base_offset: int
    next_offset: int
    size_in_bytes: int


@dataclass(frozen=True)
class Owner:
    """The process of a job's driver. `query` is the id of a streaming query, or a `txnAppId`."""

    boot: str
    namespace: str
    process: int
    started: int
    query: str | None = None

    @classmethod
    def here(cls) -> Owner | None:
        """Return the JVM that is an ancestor of this process; None without one, or on a system without /proc."""
        try:
            boot, namespace = _place()
            number = os.getpid()
            while (process := _Process.of(number)).command != "java":
                number = process.parent
        except OSError:
            return None
        return cls(boot, namespace, number, process.started)

    def is_dead(self) -> bool:
        """Return whether the process ran on this machine and has ended. False if that cannot be determined."""
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
        """Read a process from proc_pid_stat(5). Raises FileNotFoundError or ProcessLookupError if it does not exist."""
        text = Path(f"/proc/{process}/stat").read_text()
        command, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return cls(command, int(fields[1]), int(fields[19]))


def _place() -> tuple[str, str]:
    """Return the boot id of this machine and the namespace of its process ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(
        Path("/proc/self/ns/pid").readlink()
    )


def new_name() -> str:
    """Return a new name of a staging folder. Unlike the name of a partition folder, it does not end in a number."""
    return f".kafkafmt-{token_hex(16)}.staging"


def job_of(name: str) -> str:
    """Return the job that the name of a staging folder has."""
    found = _NAME.fullmatch(name)
    return name if found is None else found[1]


def is_staging(name: str) -> bool:
    """Return whether a folder in a log directory is a staging folder."""
    return _NAME.fullmatch(name) is not None


def ensure_shared(folder: Path) -> None:
    """Raise FileNotFoundError if the log directory, which the driver has created, is not on this machine."""
    if not folder.is_dir():
        message = "no such folder on this executor: driver and executors have to share it"
        raise FileNotFoundError(errno.ENOENT, message, str(folder))


def new_attempt(folder: Path, name: str, owner: Owner | None) -> Path:
    """Create the folder of an attempt in staging folder `name`, and return it. The first attempt creates that, too."""
    staging = folder / name
    with contextlib.suppress(FileExistsError):
        staging.mkdir()
    if owner is not None:
        temporary = staging / token_hex(8)
        temporary.write_text(json.dumps(vars(owner)))
        temporary.rename(staging / OWNER)
    attempt = staging / token_hex(8)
    attempt.mkdir()
    return attempt


def stagings(folder: Path) -> list[Path]:
    """Return the staging folders of all jobs in a log directory."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if is_staging(entry.name) and entry.is_dir())


def owner_of(staging: Path) -> Owner | None:
    """Return the owner of a staging folder, or None if it is unknown."""
    try:
        return Owner(**json.loads(read_regular(staging / OWNER)))
    except (OSError, ValueError, TypeError):
        return None


def remove(staging: Path) -> None:
    """Remove a staging folder. Repeats it for files that a task still adds.

    The owner file is removed last. So the owner stays known if this process is killed before the end.
    """
    for _ in range(3):
        with contextlib.suppress(OSError):
            for path in list(staging.iterdir()):
                if path.name != OWNER:
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)
        if not staging.exists():
            return


def locked(folder: Path) -> AbstractContextManager[None]:
    """Return a context manager that holds the lock for commits in a log directory. It waits for other commits."""
    return locked_file(folder / _LOCK)


def remove_unused(staging: Path) -> None:
    """Remove a staging folder that has no attempt: a task that fails after its job was aborted has created it again."""
    with contextlib.suppress(OSError):
        if all(path.name == OWNER for path in staging.iterdir()):
            (staging / OWNER).unlink(missing_ok=True)
            staging.rmdir()  # unless another task uses it meanwhile


def sync(paths: Sequence[Path]) -> None:
    """Make files and folders durable (fsync), several at a time, because each waits for the disk."""
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
        for _ in threads.map(sync_path, paths):
            pass
