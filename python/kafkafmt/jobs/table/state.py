"""The folder that a table is kept in: the store, and beside it what the store was made from.

Keys of the store begin with a topic's number, so that one store serves all partitions and a scan gives them in order.
Which number is whose stands in `table.json`, with the source and what was asked of it, before the store has a key that
needs it. A folder that was made from something else is refused, as what is missing in it nobody could tell.

Before a table's file is renamed to its name, `table.json` notes which file that is. So a run that was killed after the
rename, and left the state, may do it again: the file at that name is its own. A state is removed under another name.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import read_regular, replace_file
from kafkafmt.closing import Closing
from kafkafmt.types import TopicPartition

_FILE_NAME = "table.json"
_TEMPORARY_NAME = ".table.json.tmp"
_STORE_NAME = "store"
_VERSION = 1
_KEY_PREFIX = struct.Struct(">II")


_FROM_SEGMENT_START = "from_segment_start"


class TableError(Exception):
    """Why there can be no table, in one line."""


class TableState(Closing):
    """The state in `path`, which is made where it is missing. A context manager.

    source: the log directory; its resolved path must be the one that the state was made from. Raises TableError for a
    state of another source, another selection of topics, or another isolation, and for a folder that holds something
    else; DirectoryLockedError if a broker runs on the folder around it; OSError.
    """

    def __init__(
        self,
        path: Path,
        source: Path,
        *,
        topics: str | None,
        isolation: str,
        from_segment_start: bool = False,
    ) -> None:
        self.path = path
        self.is_new = not path.exists()
        self._origin = {
            "source": str(source.resolve()),
            "topics": topics,
            "isolation": isolation,
            _FROM_SEGMENT_START: from_segment_start,
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
        return self.path / _STORE_NAME

    def number_topics(self, topics: Iterable[str]) -> None:
        """Have a number for each of them, those that are new behind the others."""
        new = sorted({*topics} - self._numbers.keys())
        if new:
            self._names += new
            self._numbers = {topic: number for number, topic in enumerate(self._names)}
            self._write()

    def key_prefix(self, topic_partition: TopicPartition) -> bytes:
        """What keys of a partition begin with in the store, of a topic that was numbered."""
        return _KEY_PREFIX.pack(self._numbers[topic_partition.topic], topic_partition.partition)

    def split_key(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """A key of the store as its partition and the record's key."""
        number, partition = _KEY_PREFIX.unpack_from(key)
        return TopicPartition(self._names[number], partition), key[_KEY_PREFIX.size :]

    def close(self) -> None:
        """Release the lock of the log directory that the state is in, if it is in one."""
        self._lock.close()

    def note_written(self, found: os.stat_result | None) -> None:
        """Remember the file that is about to get its name as the table's; None: it has it, and the run is over."""
        self._written = None if found is None else _identity(found)
        self._write()

    @staticmethod
    def wrote(path: Path, target: Path) -> bool:
        """Is the file at `target` one that a run with the state at `path` made, and was killed before it ended?"""
        try:
            said = json.loads(read_regular(path / _FILE_NAME))
            return bool(said.get("written") == _identity(target.lstat()))
        except (OSError, ValueError, AttributeError):
            return False

    @staticmethod
    def removed_path(path: Path) -> Path:
        """Where the state of `path` is while it is removed, after the table's file got its name."""
        return path.with_name(f".{path.name}.removed.tmp")

    @classmethod
    def finish_removal(cls, path: Path) -> bool:
        """Remove what a killed run left of a state that it was removing; was there any?"""
        removed = cls.removed_path(path)
        if not removed.is_dir():
            return False
        shutil.rmtree(removed)
        return True

    def remove(self) -> None:
        """Remove the folder, the store in it closed, under another name: what a kill leaves of it is no state."""
        self.path.rename(self.removed_path(self.path))
        self.finish_removal(self.path)

    def _read(self) -> None:
        file = self.path / _FILE_NAME
        try:
            said = json.loads(read_regular(file))
            names = [str(topic) for topic in said["topic_numbers"]]
            said.setdefault(_FROM_SEGMENT_START, False)  # states that are older than the choice lack it
            found = {name: said[name] for name in self._origin}
            version = said["version"]
            written = said.get("written")
        except (FileNotFoundError, NotADirectoryError):
            there = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else {_FILE_NAME}
            if there <= {_TEMPORARY_NAME}:  # who made it was killed before there was more
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
