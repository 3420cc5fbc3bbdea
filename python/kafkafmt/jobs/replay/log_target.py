"""A log directory made of records that come in any order: each topic a partition 0, offsets from 0 on.

It is written under a hidden name beside its own and renamed once all of it is durable, so that it is there whole or
not at all; what a killed process left under such a name the next one removes. Records are encoded from where they were
located, with no Python object for any.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.builder import BatchesBuilder
from kafkafmt.jobs.files import make_durable
from kafkafmt.jobs.replay.running import ReplayError
from kafkafmt.jobs.replay.staging import StagedFolder
from kafkafmt.log import PartitionLogWriter
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.memory import Merged
    from kafkafmt.types import TopicPartition

# What a batch takes before it is compressed, where memory is plenty, and where many topics share little.
MOST_BATCH_BYTES = 256 * 1024
LEAST_BATCH_BYTES = 16 * 1024


class LogTarget:
    """Writes to `path`, which must not be there yet. batch_bytes: of a batch, before it is compressed.

    Records keep timestamp, key, value and headers, in batches of format v2; their timestamps are of the kind
    CREATE_TIME. Raises ReplayError where something is at `path` already, DirectoryLockedError if a broker runs on the
    folder around it, and OSError.
    """

    def __init__(
        self,
        path: Path,
        *,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        batch_bytes: int = MOST_BATCH_BYTES,
    ) -> None:
        if os.path.lexists(path):
            raise ReplayError(f"{path}: is there already: expected the name of a folder that is to be made")
        self._lock = lock_surroundings(path)
        self._path = path
        self._codec, self._level, self._batch_bytes = codec, level, batch_bytes
        self._topics: dict[str, _TopicLog] = {}
        self._staged: StagedFolder | None = None

    def write(self, merged: Merged) -> None:
        """Append the records of a merge. Raises ReplayError where they cannot be in format v2, and OSError."""
        for topic, records in merged.by_topic().items():
            self._log_of(topic).add(records)

    def _log_of(self, topic: str) -> _TopicLog:
        log = self._topics.get(topic)
        if log is None:
            folder = self._stage().path / f"{topic}-0"
            batches = BatchesBuilder(batch_size=self._batch_bytes, codec=self._codec, level=self._level)
            log = self._topics[topic] = _TopicLog(folder, batches)
        return log

    def finish(self) -> None:
        """Make the directory be there."""
        staged = self._stage()
        for log in self._topics.values():
            log.finish()
        make_durable(staged.path)
        try:
            staged.rename(self._path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise ReplayError(f"{self._path}: something else was put there meanwhile") from None
            raise
        self._staged = None
        make_durable(self._path.absolute().parent)

    def _stage(self) -> StagedFolder:
        if self._staged is None:
            self._staged = StagedFolder(self._path)
        return self._staged

    def close(self) -> None:
        """Leave nothing behind of what is not finished."""
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
            raise _unwritable(merged.run(number).topic_partition, error) from None

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


def _unwritable(topic_partition: TopicPartition, error: ValueError) -> ReplayError:
    return ReplayError(f"{topic_partition}: a record cannot be written again: {error}")
