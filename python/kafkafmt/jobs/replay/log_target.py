"""Write replayed records to a new log directory: each topic has one partition, 0, with offsets from 0 on.

The directory is written under a hidden name beside its own, and renamed after it was flushed. So it exists completely
or not at all. The next process removes what a killed one left under such a name. For a store it is written on the local
disk, and uploaded after that, as `kafkafmt.storage.publication` says. Records are encoded from their located
bytes, without a Python object for each.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.build.builder import BatchesBuilder
from kafkafmt.errors import InvalidRecordError
from kafkafmt.jobs.replay.running import ReplayError
from kafkafmt.log import PartitionLogWriter
from kafkafmt.storage import RemotePath, StoragePath
from kafkafmt.storage.publication import NewFolder, ensure_new
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.streams import Merged, RecordSlice

_COMMAND = "replay"
# The size of a batch before compression: with enough memory, and if many topics share little memory.
MAX_BATCH_BYTES = 256 * 1024
LEAST_BATCH_BYTES = 16 * 1024


class LogTarget:
    """Write a log directory to `path`, local or in a store, which must not exist.

    batch_bytes: the size of a batch before compression.

    Records keep timestamp, key, value and headers, in batches of format v2. Their timestamp type is CREATE_TIME. Raises
    ReplayError if `path` exists, DirectoryLockedError if a broker uses its parent folder, and OSError.
    """

    def __init__(
        self,
        path: StoragePath,
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        if isinstance(path, RemotePath):
            ensure_new(path, _COMMAND)
        elif os.path.lexists(path):
            raise ReplayError(f"{path}: already exists: expected the name of a new folder")
        self._lock = ExitStack()
        if isinstance(path, Path):
            self._lock.enter_context(lock_surroundings(path))
        self._path = path
        self._codec, self._batch_bytes = codec, batch_bytes
        self._topics: dict[str, _TopicLog] = {}
        self._staged: NewFolder | None = None

    def write(self, merged: Merged) -> None:
        """Append the records of a merge. Raises InvalidRecordError if format v2 cannot store one, and OSError."""
        for topic, records in merged.by_topic().items():
            self._log_of(topic).add(records)

    def _log_of(self, topic: str) -> _TopicLog:
        log = self._topics.get(topic)
        if log is None:
            folder = self._stage().path / f"{topic}-0"
            batches = BatchesBuilder(batch_size=self._batch_bytes, codec=self._codec)
            log = self._topics[topic] = _TopicLog(folder, batches)
        return log

    def finish(self) -> None:
        """Flush the directory, and publish it. Raises ReplayError if the name is taken, and OSError."""
        staged = self._stage()
        for log in self._topics.values():
            log.finish()
        try:
            staged.publish()
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise ReplayError(f"{self._path}: something else was put there meanwhile") from None
            raise
        self._staged = None

    def _stage(self) -> NewFolder:
        if self._staged is None:
            self._staged = NewFolder(self._path, _COMMAND)
        return self._staged

    def close(self) -> None:
        """Remove an unfinished directory, and release the lock."""
        with ExitStack() as stack:
            stack.callback(self._lock.close)
            if self._staged is not None:
                stack.callback(self._staged.remove)
                self._staged = None
            for log in self._topics.values():
                stack.callback(log.writer.abort)
            self._topics = {}


class _TopicLog:
    def __init__(self, folder: Path, batches: BatchesBuilder) -> None:
        self.writer = PartitionLogWriter(folder)
        self._batches = batches

    def add(self, merged: Merged) -> None:
        number = 0
        while (number := self._fill(merged, number)) < len(merged):
            self._append(self._batches.finish())

    def _fill(self, merged: Merged, number: int) -> int:
        try:
            return self._batches.fill_merged(merged.records, number)
        except ValueError as error:
            raise _unwritable(merged.run(number), error) from None

    def finish(self) -> None:
        batch = self._batches.finish()
        if batch:
            self._append(batch)
        self.writer.commit()

    def _append(self, batch: bytes) -> None:
        try:
            self.writer.append(batch)
        except OSError as error:
            error.filename = error.filename or str(self.writer.folder)
            raise


def _unwritable(records: RecordSlice, error: ValueError) -> InvalidRecordError:
    offset = next(records.records()).offset
    message = f"{records.topic_partition} at offset {offset}: the record cannot be written again: {error}"
    return InvalidRecordError(message)
