"""A store of keys and values in a folder, by RocksDB, with a cache above it and the positions of its sources
within.

    <folder>/kafkafmt-store.json   says that this is a store, and of which format
    <folder>/...                   RocksDB's own files

In RocksDB a record has the key 1 + key, a position the key 0 + the partition's folder name. What is written
goes through the write-ahead log. A commit writes what is dirty in the cache and then the positions, with the
last of it in one atomic batch: so positions never run ahead of the records, also where the process is killed.
Records may run ahead of them by what was evicted since; what is read again from a position must lead to the
same values, as the latest value of each key does.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kafkafmt._util.files import read_regular
from kafkafmt.closing import Closing
from kafkafmt.decoding import locate_in_groups
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log.following import SegmentCache
from kafkafmt.log.reader import LogReader, read_memory
from kafkafmt.log.reading import SourceDamage
from kafkafmt.memory.cache import prefix_stop
from kafkafmt.memory.rocksdb import (
    LEAST_WRITE_BUFFER_BYTES,
    SharedBlockCache,
    checked_count,
    rocksdict,
    store_options,
    stores_reserved_bytes,
)
from kafkafmt.sizes import parse_named_size
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.log.directory import PartitionLog
    from kafkafmt.memory.cache import DirtyEntry, ThreadCache

__all__ = ["RocksDBStore", "SharedBlockCache", "StoreError", "stores_reserved_bytes"]

_MARKER = "kafkafmt-store.json"
_TEMPORARY_MARKER = f".{_MARKER}"
_FORMAT = 1

_RECORD, _POSITION = b"\x01", b"\x00"
_BEHIND_RECORDS = b"\x02"
_OFFSET = struct.Struct(">q")
_LAST_OFFSET = 2**63 - 1
_LEAST_BATCH_BYTES, _MOST_BATCH_BYTES = 64 * 1024, 256 * 1024
_MISSING = object()


class StoreError(OSError):
    """A store cannot be opened, read or written; the message names its folder."""


class RocksDBStore(Closing):
    """Keys and values in the folder `path`, which is made where it is missing.

    block_cache: one that stores share, or the bytes of one for this store alone. write_buffer_bytes and
    max_write_buffer_number: as RocksDB has them. Bytes are a number, or a text as `8m`. A store takes `block cache +
    write_buffer_bytes * max_write_buffer_number` by `Memory Management in Kafka Streams, "Persistent State Store
    Buffering"`. cache: one that is shared, in which this store has a part of its own, named as the folder; without it
    every write goes to RocksDB at once. One thread uses a store. Raises StoreError for a folder that holds something
    else, is open already, or is of another format; ValueError and TypeError for sizes that are none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        block_cache: SharedBlockCache | int | str = 8 * 1024 * 1024,
        write_buffer_bytes: int | str = 1024 * 1024,
        max_write_buffer_number: int = 2,
        cache: ThreadCache | None = None,
    ) -> None:
        self.path = Path(path)
        self._block_cache = (
            block_cache if isinstance(block_cache, SharedBlockCache) else SharedBlockCache(block_cache)
        )
        write_buffer = _write_buffer_size(write_buffer_bytes)
        self._batch_bytes = _batch_bytes(write_buffer)
        checked_count("max_write_buffer_number", max_write_buffer_number, 2)
        options = store_options(self._block_cache, write_buffer, max_write_buffer_number)
        self._synced = rocksdict().WriteOptions()
        self._synced.sync = True
        self._teller = _Told(self.path)
        self._db: Any = _open(self.path, options)
        self._cache = None if cache is None else cache.cache(str(self.path), self._write_entries)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        if self._cache is None:
            return self._read(key)
        value = self._cache.get(key, _MISSING)
        if value is not _MISSING:
            return value  # type: ignore[return-value]
        found = self._read(key)
        if found is not None:
            self._cache.put_clean(key, found)
        return found

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None deletes it."""
        if self._cache is not None:
            self._cache.put(key, value)
            return
        with self._told():
            if value is None:
                self._db.delete(_RECORD + key)
            else:
                self._db.put(_RECORD + key, value)

    def delete(self, key: bytes) -> None:
        self.put(key, None)

    def put_if_absent(self, key: bytes, value: bytes) -> bytes | None:
        """The value of a key that has one; else put this one and return None."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def range(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `start` to in front of `stop` with their values, ascending, as they are when this is called.

        What is dirty in the cache is merged with what RocksDB has; where there is much of it, it is flushed first.
        """
        if self._cache is None or not self._cache.dirty_bytes:
            return self._scan(start, stop)
        if self._cache.dirty_bytes > self._batch_bytes and self._cache.flush():
            return self._scan(start, stop)
        return self._cache.range(start, stop, below=self._scan(start, stop))

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin with `prefix`, as `range` gives them."""
        return self.range(prefix, prefix_stop(prefix))

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        positions: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Put or delete (None) all of these and set the positions, in one atomic batch, past the cache."""
        self._flush_cache()
        written = list(entries)
        batch = rocksdict().WriteBatch(raw_mode=True)
        for key, value in written:
            _add(batch, key, value)
        self._write_batch(batch, positions or {})
        if self._cache is not None:
            for key, value in written:
                if key in self._cache:
                    self._cache.put_clean(key, value)

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write all that is dirty and set the positions: the next offset to read of each partition.

        It is one atomic batch where what is dirty fits into a quarter of a write buffer, of 256 KiB at the
        most, and several else, with the positions in the last. It is on disk when this returns. Positions of
        partitions that are not named stay. Raises StoreError, and ValueError for what is no position; what was
        dirty is so still.
        """
        is_written = False

        def write(entries: Iterator[DirtyEntry]) -> None:
            nonlocal is_written
            self._write_entries(entries, positions)
            is_written = True

        if self._cache is not None and not self._cache.flush(write):
            raise RuntimeError(f"store {self.path}: expected no flush to be under way at a commit")
        if not is_written:
            self._write_entries((), positions)

    def positions(self) -> dict[TopicPartition, int]:
        """What was committed: the next offset to read of each partition."""
        found = {}
        for key, value in self._items(_POSITION, _RECORD):
            topic_partition = TopicPartition.from_folder_name(key[1:].decode())
            if topic_partition is None or len(value) != _OFFSET.size:
                raise StoreError(f"store {self.path}: expected a position, found {key!r}: {value!r}")
            found[topic_partition] = _OFFSET.unpack(value)[0]
        return found

    def restore(self, log: PartitionLog) -> int:
        """Take over the latest value of each key of a partition's log, from the position of that partition on.

        A record without a value deletes its key; records without a key, those of aborted transactions, and what is
        behind an open transaction are passed over. The position is written with what was read up to there, so that
        this can go on after an end of any kind. Returns the next offset. Raises ValueError for a folder that is not
        named as a partition's, CorruptRecordError for damage, and as `PartitionLog` and `commit` do.
        """
        topic_partition = log.topic_partition
        if topic_partition is None:
            raise ValueError(f"log: expected a folder named as a partition's, found {log.path}")
        self._flush_cache()
        if self._cache is not None:
            self._cache.clear()
        reader = LogReader(
            topic_partition,
            log.path,
            SegmentCache(),
            read_memory(),
            is_committed=True,
            keeps_control_batches=False,
        )
        reader.seek(self.positions().get(topic_partition, reader.start_offset))
        while (read := reader.read(reader.end_offset)) is not None:
            if isinstance(read, SourceDamage):
                raise CorruptRecordError(f"{log.path}: {read.message}")
            for located in locate_in_groups(
                read, verify=False, control=False, limit=log.max_decompressed_bytes
            ):
                self._write_entries((one.key, one.value, None) for one in located if one.key is not None)
            self._write_entries((), {topic_partition: reader.offset})
        self._write_entries((), {topic_partition: reader.offset})
        return reader.offset

    def resize(
        self, *, block_cache_bytes: int | str | None = None, write_buffer_bytes: int | str | None = None
    ) -> None:
        """Set the sizes anew, as at a rebalance. The block cache is that of all stores which share it."""
        if block_cache_bytes is not None:
            self._block_cache.resize(block_cache_bytes)
        if write_buffer_bytes is not None:
            write_buffer = _write_buffer_size(write_buffer_bytes)
            self._batch_bytes = _batch_bytes(write_buffer)
            with self._told():
                self._db.set_options({"write_buffer_size": str(write_buffer)})

    def flush(self) -> None:
        """Write what is dirty in the cache, and what is in the write buffers into files."""
        self._flush_cache()
        with self._told():
            self._db.flush()

    def close(self) -> None:
        """Write what is dirty in the cache, without positions, and close. A second call does nothing.

        Where that cannot be written the store is closed all the same, and StoreError raised.
        """
        if self._db is None:
            return
        try:
            self._flush_cache()
        finally:
            if self._cache is not None:
                self._cache.remove()
            with self._told():
                database, self._db = self._db, None
                database.close()

    def __repr__(self) -> str:
        return f"<RocksDBStore {self.path}{', closed' if self._db is None else ''}>"

    def _flush_cache(self) -> None:
        if self._cache is not None:
            self._cache.flush()

    def _read(self, key: bytes) -> bytes | None:
        with self._told():
            found: bytes | None = self._db.get(_RECORD + key)
        return found

    def _scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        behind = _BEHIND_RECORDS if stop is None else _RECORD + stop
        return _without_prefix(self._items(_RECORD + (start or b""), behind))

    def _items(self, first: bytes, behind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """RocksDB's keys from `first` to in front of `behind`, as they are when this is called."""
        with self._told():
            items = self._db.items(from_key=first)
        return self._until(items, behind)

    def _until(self, items: Iterator[tuple[bytes, bytes]], behind: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Not by rocksdict's upper bound: it is not kept alive for as long as the iterator.
        with self._told():
            for item in items:
                if item[0] >= behind:
                    return
                yield item

    def _write_entries(
        self, entries: Iterable[DirtyEntry], positions: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Write entries in batches that are bounded in bytes; the positions with the last."""
        new_batch = rocksdict().WriteBatch
        batch = new_batch(raw_mode=True)
        for key, value, _ in entries:
            _add(batch, key, value)
            if batch.size_in_bytes() > self._batch_bytes:
                self._write_batch(batch, {})
                batch = new_batch(raw_mode=True)
        self._write_batch(batch, positions or {})

    def _write_batch(self, batch: Any, positions: Mapping[TopicPartition, int]) -> None:
        for topic_partition, offset in positions.items():
            if TopicPartition.from_folder_name(str(topic_partition)) != topic_partition:
                raise ValueError(
                    f"positions: expected a partition of a topic that Kafka allows, found {topic_partition}"
                )
            if not 0 <= index(offset) <= _LAST_OFFSET:
                raise ValueError(f"positions: expected an offset for {topic_partition}, found {offset}")
            batch.put(_POSITION + str(topic_partition).encode(), _OFFSET.pack(offset))
        if not batch.is_empty():
            with self._told():
                self._db.write(batch, self._synced if positions else None)

    def _told(self) -> _Told:
        if self._db is None:
            raise StoreError(f"store {self.path}: expected it to be open, found it closed")
        return self._teller


class _Told:
    """Tells what RocksDB raises, which is plain `Exception`, as a StoreError that names the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is Exception:
            raise StoreError(f"store {self._path}: {error}") from None


def _add(batch: Any, key: bytes, value: bytes | None) -> None:
    if value is None:
        batch.delete(_RECORD + key)
    else:
        batch.put(_RECORD + key, value)


def _without_prefix(items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    return ((key[1:], value) for key, value in items)


def _write_buffer_size(write_buffer_bytes: int | str) -> int:
    return parse_named_size("write_buffer_bytes", write_buffer_bytes, least=LEAST_WRITE_BUFFER_BYTES)


def _batch_bytes(write_buffer_bytes: int) -> int:
    return min(max(write_buffer_bytes // 4, _LEAST_BATCH_BYTES), _MOST_BATCH_BYTES)


def _open(path: Path, options: Any) -> Any:
    try:
        path.mkdir(parents=True, exist_ok=True)
        _check_marker(path)
        return rocksdict().Rdict(str(path), options)
    except FileExistsError:
        raise StoreError(f"store {path}: expected a folder, found a file") from None
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"store {path}: {error.strerror}") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        if "LOCK" in str(error):
            raise StoreError(
                f"store {path}: expected it to be free, found it open in this process or another"
            ) from None
        raise StoreError(f"store {path}: {error}") from None


def _check_marker(path: Path) -> None:
    """Hold what the folder says of itself against what is expected; of an empty folder make a store."""
    marker = path / _MARKER
    try:
        found = json.loads(read_regular(marker))
    except FileNotFoundError:
        # The temporary is of one who was killed before the rename, or is at it: each writes the same, and one gets
        # RocksDB's lock.
        names = sorted(entry.name for entry in path.iterdir() if entry.name != _TEMPORARY_MARKER)
        if names:
            raise StoreError(
                f"store {path}: expected a store or an empty folder, found {names[0]!r} in it"
            ) from None
        temporary = path / _TEMPORARY_MARKER
        with temporary.open("w") as file:
            file.write(json.dumps({"format": _FORMAT}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # another has renamed it
            temporary.replace(marker)
        return
    except ValueError:
        raise StoreError(f"store {path}: expected JSON in {_MARKER}, found something else") from None
    form = found.get("format") if isinstance(found, dict) else None
    if form != _FORMAT:
        raise StoreError(f"store {path}: expected format {_FORMAT}, found {form!r}")
