"""The state folder of a table: the store, and `table.json` with the source and options of the table.

Keys of the store begin with a topic's number, so one store has all partitions, and a scan returns them in order. The
numbers are in `table.json`, and written there before the store has a key with them. The state of another source or of
other options is refused, as its records would be incomplete.

Before the table's Parquet file is renamed to its name, `table.json` records the identity of that file. If a run is
killed after the rename, the next run recognizes the file as its own, and may replace it. A state is renamed before it
is removed, so a killed removal leaves no incomplete state. `table.json` is removed last: until then the next run
knows of which table the file is.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from kafkafmt._util.closing import Closing
from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import read_regular, replace_file
from kafkafmt._util.user_errors import UserError
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.storage import StoragePath
from kafkafmt.types import TopicPartition

_FILE_NAME = "table.json"
_TEMPORARY_NAME = ".table.json.tmp"
_STORE_NAME = "store"
_VERSION = 1
_KEY_PREFIX = struct.Struct(">II")


_FROM_SEGMENT_START = "from_segment_start"
_THREADS = "threads"
_FROM, _TO = "from", "to"
# Options that older states do not have, with the value that these were made with.
_LATER_OPTIONS = {_FROM_SEGMENT_START: False, _THREADS: 1, _FROM: None, _TO: None}


class TableError(UserError):
    """A table cannot be made; the message says why, in one line."""


class TableState(Closing):
    """Open the state in the folder `path`; create it if it does not exist. A context manager.

    source: the log directory, whose resolved path must be that of the existing state; or a text that identifies a
    cluster and its topics. topics, isolation, from_segment_start, times: the options of the table, which must equal
    those of the existing state. threads: how many threads make the table; each has a state of its own within this one.

    Raises TableError for a state of another source or other options, and for a folder with other content. Raises
    DirectoryLockedError if a broker uses the parent folder, and OSError.
    """

    def __init__(
        self,
        path: Path,
        source: StoragePath | str,
        *,
        topics: str | None,
        isolation: str,
        from_segment_start: bool = False,
        times: TimeRange = EVERYTHING,
        threads: int = 1,
    ) -> None:
        self.path = path
        self.is_new = not path.exists()
        self._origin = {
            "source": source if isinstance(source, str) else str(source.resolve()),
            "topics": topics,
            "isolation": isolation,
            _FROM_SEGMENT_START: from_segment_start,
            _THREADS: threads,
            _FROM: times.start_ms,
            _TO: times.end_ms,
        }
        self._written: list[int] | None = None
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        with ExitStack() as undo:
            self._lock = undo.enter_context(lock_surroundings(path))
            if self.is_new:
                path.mkdir()
                self._write()
            else:
                self._read()
            undo.pop_all()

    @property
    def store_path(self) -> Path:
        """The folder of the store within the state."""
        return self.path / _STORE_NAME

    def thread_path(self, thread: int) -> Path:
        """The folder of the state of one of several threads."""
        return self.path / f"thread-{thread}"

    def number_topics(self, topics: Iterable[str]) -> None:
        """Assign a number to each topic. New topics get numbers after the existing ones."""
        new = sorted({*topics} - self._numbers.keys())
        if new:
            self._names += new
            self._numbers = {topic: number for number, topic in enumerate(self._names)}
            self._write()

    def key_prefix(self, topic_partition: TopicPartition) -> bytes:
        """Return the prefix of the store's keys for a partition, whose topic must have a number."""
        return _KEY_PREFIX.pack(self._numbers[topic_partition.topic], topic_partition.partition)

    def close(self) -> None:
        """Release the lock of the log directory that contains the state, if there is one."""
        self._lock.close()

    def note_written(self, found: os.stat_result | None) -> None:
        """Record the file that is about to be renamed to the table's name; None: the run has ended."""
        self._written = None if found is None else _identity(found)
        self._write()

    @staticmethod
    def wrote(path: Path, target: Path) -> bool:
        """Whether a run with the state at `path` wrote the file at `target`, and was killed before it ended."""
        try:
            said = json.loads(read_regular(path / _FILE_NAME))
            return bool(said.get("written") == _identity(target.lstat()))
        except (OSError, ValueError, AttributeError):
            return False

    @staticmethod
    def removed_path(path: Path) -> Path:
        """Return the name of the state of `path` while it is being removed."""
        return path.with_name(f".{path.name}.removed.tmp")

    @classmethod
    def was_finished(cls, path: Path, target: Path) -> bool:
        """Whether a run wrote the file at `target`, and was killed while it removed its state at `path`."""
        removed, last = cls.removed_path(path), cls._last_path(path)
        if last.exists():
            removed.mkdir(exist_ok=True)
            last.rename(removed / _FILE_NAME)
        return cls.wrote(removed, target)

    @classmethod
    def _last_path(cls, path: Path) -> Path:
        """Return the name of `table.json` once nothing else is left: one step removes it."""
        return cls.removed_path(path).with_suffix(".json.tmp")

    @classmethod
    def finish_removal(cls, path: Path) -> None:
        """Remove the rest of a state whose removal was interrupted, if there is one."""
        removed, last = cls.removed_path(path), cls._last_path(path)
        if removed.is_dir():
            for entry in removed.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != _FILE_NAME:
                    entry.unlink()
            with suppress(FileNotFoundError):
                (removed / _FILE_NAME).rename(last)
            removed.rmdir()
        last.unlink(missing_ok=True)

    def remove(self) -> None:
        """Rename the folder and remove it, so that an interrupted removal leaves no state. The store must be closed."""
        self.path.rename(self.removed_path(self.path))
        self.finish_removal(self.path)

    def _read(self) -> None:
        file = self.path / _FILE_NAME
        try:
            said = json.loads(read_regular(file))
            names = [str(topic) for topic in said["topic_numbers"]]
            for name, default in _LATER_OPTIONS.items():
                said.setdefault(name, default)
            found = {name: said[name] for name in self._origin}
            version = said["version"]
            written = said.get("written")
        except (FileNotFoundError, NotADirectoryError):
            there = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else {_FILE_NAME}
            if there <= {_TEMPORARY_NAME}:  # a killed run has created the folder only
                self._write()
                return
            raise TableError(
                f"{self.path}: expected the state of a table, found no {_FILE_NAME} in it"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TableError(
                f"{file}: expected what kafkafmt table writes there, found something else"
            ) from None
        if version != _VERSION:
            raise TableError(f"{file}: expected version {_VERSION}, found {version}")
        for name, wanted in self._origin.items():
            if found[name] != wanted:
                raise TableError(
                    f"{self.path}: is the state of a table with {name} {found[name]}, expected {wanted}: "
                    "give another --state, or remove it"
                )
        self._written = written
        self._names = names
        self._numbers = {topic: number for number, topic in enumerate(names)}

    def _write(self) -> None:
        said = {"version": _VERSION, **self._origin, "topic_numbers": self._names, "written": self._written}
        replace_file(self.path / _FILE_NAME, json.dumps(said).encode())


def _identity(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
