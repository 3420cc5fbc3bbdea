"""A key-value store in a folder, by RocksDB, with an optional cache and the positions of its source partitions.

    <folder>/kafkafmt-store.json   marks the folder as a store, and names its format
    <folder>/...                   RocksDB's own files

In RocksDB, the key of a record is byte 1 + key; the key of a position is byte 0 + the partition's folder name. All
writes go through the write-ahead log. A commit writes the dirty entries of the cache, then the positions. The last
entries and the positions are one atomic batch. So positions are never ahead of the records, even if the process is
killed. Records may be ahead of the positions, as the cache evicts entries before a commit. Reading again from a
position must therefore lead to the same values, as with the latest value of each key.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kafkafmt._util.closing import Closing
from kafkafmt._util.files import read_regular, replace_file
from kafkafmt._util.locks import locked_folder
from kafkafmt._util.sizes import parse_named_size
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.open_readers import read_memory
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.records.decoding import locate_in_chunks
from kafkafmt.streams.cache import prefix_stop
from kafkafmt.streams.rocksdb import (
    LEAST_WRITE_BUFFER_BYTES,
    SharedBlockCache,
    checked_count,
    rocksdict,
    store_options,
    stores_reserved_bytes,
)
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.log.partition_log import PartitionLog
    from kafkafmt.storage import StoragePath
    from kafkafmt.streams.cache import DirtyEntry, ThreadCache

__all__ = ["RocksDBStore", "SharedBlockCache", "StoreError", "stores_reserved_bytes"]

_MARKER = "kafkafmt-store.json"
_TEMPORARY_MARKER = f".{_MARKER}.tmp"
_FORMAT = 1

_RECORD, _POSITION = b"\x01", b"\x00"
_AFTER_RECORDS = b"\x02"
_OFFSET = struct.Struct(">q")
_LAST_OFFSET = 2**63 - 1
_LEAST_BATCH_BYTES, _MAX_BATCH_BYTES = 64 * 1024, 256 * 1024
_MISSING = object()


class StoreError(OSError):
    """A store cannot be opened, read or written; the message names its folder."""


class RocksDBStore(Closing):
    """Open the key-value store in the folder `path`; create it if it does not exist. Only one thread may use it.

    Keys and values are bytes; other types raise TypeError. A closed store raises StoreError.

    block_cache: a `SharedBlockCache`, or the size of one for this store alone.
    write_buffer_bytes, max_write_buffer_number: RocksDB's options of these names. The number is 2 or more.
    cache: a `ThreadCache`, in which this store gets a `NamedCache` with the folder as its name. Without it, every
        write goes to RocksDB at once.

    Sizes are bytes, or texts such as `8m`. A store uses `block cache + write_buffer_bytes * max_write_buffer_number`
    bytes (Memory Management in Kafka Streams, "Persistent State Store Buffering").

    Raises StoreError if the folder has other content or another format, or is open already; ValueError or TypeError for
    invalid sizes; ImportError if the extra `store` is not installed.
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
        self._errors = _StoreErrors(self.path)
        self._db: Any = _open(self.path, options)
        self._cache = None if cache is None else cache.cache(str(self.path), self._write_dirty)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
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
        else:
            self._put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key, as `put` with None. A key that is missing is no error."""
        self.put(key, None)

    def put_if_absent(self, key: bytes, value: bytes) -> bytes | None:
        """Return the value of the key; if it has none, put `value` and return None."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def range(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys from `start` to before `stop` and their values, ascending; None is unbounded.

        The iterator shows the store as it was at the call. Dirty entries of the cache are merged with those of RocksDB;
        if they are many, they are flushed first.
        """
        if self._cache is None:
            return self._scan(start, stop)
        order = self._cache.order
        with order.lock:  # a flush that another thread demands moves entries from the cache to RocksDB
            if self._cache.dirty_bytes > self._batch_bytes:
                self._cache.flush()
            below = self._scan(start, stop)
            found = self._cache.range(start, stop, below=below) if self._cache.dirty_bytes else below
        order.repay()
        return found

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys that begin with `prefix` and their values, as `range` does."""
        return self.range(prefix, prefix_stop(prefix))

    def write(
        self,
        entries: Iterable[tuple[bytes, bytes | None]],
        positions: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Put all entries (None deletes the key) and set the positions in one atomic batch, which bypasses the cache.

        Dirty entries of the cache are flushed first.
        """
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

    def load(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put entries in several batches of bounded bytes, which bypass the cache; None deletes the key.

        Dirty entries of the cache are flushed first. The cache must not have these keys.
        """
        self._flush_cache()
        self._write_entries((key, value, None) for key, value in entries)

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write all dirty entries, and set the positions: the next offset to read, by partition.

        They are one atomic batch if they fit into a quarter of a write buffer, at least 64 KiB and at most 256 KiB.
        Otherwise they are several batches, and the last one has the positions. All are on disk when this returns.
        Positions of other partitions stay.

        Raises StoreError if writing fails, and ValueError for an invalid position; dirty entries then stay dirty.
        Raises RuntimeError if a flush of the cache is running.
        """
        is_written = False

        def write(entries: Iterator[DirtyEntry]) -> None:
            nonlocal is_written
            self._write_dirty(entries, positions)
            is_written = True

        if self._cache is not None and not self._cache.flush(write):
            raise RuntimeError(f"store {self.path}: expected no flush to be under way at a commit")
        if not is_written:
            self._write_entries((), positions)
        if not positions:  # these are written last, and synced
            with self._store_errors():
                self._db.flush_wal(sync=True)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the committed positions: the next offset to read, by partition. Raises StoreError."""
        found = {}
        for key, value in self._items(_POSITION, _RECORD):
            topic_partition = TopicPartition.from_folder_name(key[1:].decode())
            if topic_partition is None or len(value) != _OFFSET.size:
                raise StoreError(f"store {self.path}: expected a position, found {key!r}: {value!r}")
            found[topic_partition] = _OFFSET.unpack(value)[0]
        return found

    def restore(self, log: PartitionLog) -> int:
        """Put the latest value of each key of a partition's log, from the committed position of the partition on.

        A record without a value deletes its key. Records without a key and records of aborted transactions are skipped.
        Reading ends before the first open transaction. The position is written with the records that were read, so
        after any interruption a new call continues there. Offsets that were deleted before they were read cause a
        RuntimeWarning.

        Returns the next offset. Raises ValueError if the folder is not named as a partition, CorruptRecordError for
        damage, and what `PartitionLog` and `commit` raise.
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
            on_gone=lambda *offsets: _warn_of_gone(log.path, *offsets),
        )
        reader.seek(self.positions().get(topic_partition, reader.start_offset))
        while (read := reader.read(reader.end_offset)) is not None:
            if isinstance(read, SourceDamage):
                raise CorruptRecordError(f"{log.path}: {read.message}")
            for located in locate_in_chunks(
                read, verify=False, control=False, limit=log.max_decompressed_bytes
            ):
                self._write_entries((one.key, one.value, None) for one in located if one.key is not None)
            self._write_entries((), {topic_partition: reader.offset})
        self._write_entries((), {topic_partition: reader.offset})
        return reader.offset

    def resize(
        self, *, block_cache_bytes: int | str | None = None, write_buffer_bytes: int | str | None = None
    ) -> None:
        """Change the sizes, as at a rebalance. A shared block cache changes for all stores that share it."""
        if block_cache_bytes is not None:
            self._block_cache.resize(block_cache_bytes)
        if write_buffer_bytes is not None:
            write_buffer = _write_buffer_size(write_buffer_bytes)
            self._batch_bytes = _batch_bytes(write_buffer)
            with self._store_errors():
                self._db.set_options({"write_buffer_size": str(write_buffer)})

    def flush(self) -> None:
        """Write the dirty entries of the cache to RocksDB, and its write buffers to files."""
        self._flush_cache()
        with self._store_errors():
            self._db.flush()

    def close(self) -> None:
        """Write the dirty entries of the cache, without positions, and close the store. A second call does nothing.

        If writing fails, the store is closed nevertheless, and StoreError is raised.
        """
        if self._db is None:
            return
        try:
            self._flush_cache()
        finally:
            if self._cache is not None:
                self._cache.remove()
                self._cache = None  # so that all later calls reach the closed database
            with self._store_errors():
                database, self._db = self._db, None
                database.close()

    def __repr__(self) -> str:
        return f"<RocksDBStore {self.path}{', closed' if self._db is None else ''}>"

    def _flush_cache(self) -> None:
        if self._cache is not None:
            self._cache.flush()

    def _put(self, key: bytes, value: bytes | None, options: Any = None) -> None:
        """Put into RocksDB. options: RocksDB's WriteOptions."""
        with self._store_errors():
            if value is None:
                self._db.delete(_record_key(key), options)
            else:
                self._db.put(_record_key(key), _checked_bytes("value", value), options)

    def _read(self, key: bytes) -> bytes | None:
        with self._store_errors():
            found: bytes | None = self._db.get(_record_key(key))
        return found

    def _scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        start_key = _RECORD if start is None else _record_key(start, "start")
        stop_key = _AFTER_RECORDS if stop is None else _record_key(stop, "stop")
        return _without_prefix(self._items(start_key, stop_key))

    def _items(self, first: bytes, stop_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over RocksDB's keys from `first` to before `stop_key`, as they are at the call, with their values."""
        with self._store_errors():
            items = self._db.items(from_key=first)
        return self._until(items, stop_key)

    def _until(self, items: Iterator[tuple[bytes, bytes]], stop_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        # rocksdict's upper bound is not used: it is not kept alive as long as the iterator.
        with self._store_errors():
            for item in items:
                if item[0] >= stop_key:
                    return
                yield item

    def _write_dirty(
        self, entries: Iterable[DirtyEntry], positions: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Write the dirty entries of the cache: its listener."""
        self._write_entries(entries, positions)

    def _write_entries(
        self, entries: Iterable[DirtyEntry], positions: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Write the entries in batches of bounded bytes; the last batch has the positions."""
        new_batch = rocksdict().WriteBatch
        batch = new_batch(raw_mode=True)
        for key, value, _ in entries:
            _add(batch, key, value)
            if batch.size_in_bytes() > self._batch_bytes:
                self._write_batch(batch, {})
                batch = new_batch(raw_mode=True)
        self._write_batch(batch, positions or {})

    def _write_batch(self, batch: Any, positions: Mapping[TopicPartition, int]) -> None:
        for topic_partition, offset in checked_positions(positions).items():
            batch.put(_POSITION + str(topic_partition).encode(), _OFFSET.pack(offset))
        if not batch.is_empty():
            with self._store_errors():
                self._db.write(batch, self._synced if positions else None)

    def _store_errors(self) -> _StoreErrors:
        if self._db is None:
            raise closed_error(self.path)
        return self._errors


def closed_error(path: Path) -> StoreError:
    """Return the error for a call of the store at `path` after it was closed."""
    return StoreError(f"store {path}: expected it to be open, found it closed")


_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)


class _StoreErrors:
    """Turn the plain `Exception` that RocksDB raises into a StoreError that names the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is Exception:
            failed = StoreError(f"store {self._path}: {error}")
            # RocksDB has only the text of the system's error.
            failed.errno = next((one for one in _RESOURCES if os.strerror(one) in str(error)), None)
            raise failed from None


def checked_positions(positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    """Return the positions. Raises ValueError if one is not valid."""
    for topic_partition, offset in positions.items():
        if TopicPartition.from_folder_name(str(topic_partition)) != topic_partition:
            raise ValueError(
                f"positions: expected a partition of a topic that Kafka allows, found {topic_partition}"
            )
        if not 0 <= index(offset) <= _LAST_OFFSET:
            raise ValueError(f"positions: expected an offset for {topic_partition}, found {offset}")
    return positions


def _warn_of_gone(folder: StoragePath, from_offset: int, to_offset: int) -> None:
    message = f"{folder}: offsets {from_offset} to {to_offset - 1} were deleted before they were read"
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def _add(batch: Any, key: bytes, value: bytes | None) -> None:
    if value is None:
        batch.delete(_record_key(key))
    else:
        batch.put(_record_key(key), _checked_bytes("value", value))


def _record_key(key: bytes, name: str = "key") -> bytes:
    """Return RocksDB's key of a record. name: of the argument."""
    return _RECORD + _checked_bytes(name, key)


def _checked_bytes(name: str, given: bytes) -> bytes:
    """Return an argument. Raises TypeError unless it is bytes, as the cache does."""
    if type(given) is not bytes:
        raise TypeError(f"{name}: expected bytes, found {type(given).__name__}")
    return given


def _without_prefix(items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    return ((key[1:], value) for key, value in items)


def _write_buffer_size(write_buffer_bytes: int | str) -> int:
    return parse_named_size("write_buffer_bytes", write_buffer_bytes, least=LEAST_WRITE_BUFFER_BYTES)


def _batch_bytes(write_buffer_bytes: int) -> int:
    return min(max(write_buffer_bytes // 4, _LEAST_BATCH_BYTES), _MAX_BATCH_BYTES)


def _open(path: Path, options: Any) -> Any:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with locked_folder(path):
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
    """Check the marker of the store's format; write it if the folder is empty. Raises StoreError."""
    marker = path / _MARKER
    try:
        found = json.loads(read_regular(marker))
    except FileNotFoundError:
        names = sorted(entry.name for entry in path.iterdir() if entry.name != _TEMPORARY_MARKER)
        if names:
            raise StoreError(
                f"store {path}: expected a store or an empty folder, found {names[0]!r} in it"
            ) from None
        replace_file(marker, (json.dumps({"format": _FORMAT}) + "\n").encode())
        return
    except ValueError:
        raise StoreError(f"store {path}: expected JSON in {_MARKER}, found something else") from None
    form = found.get("format") if isinstance(found, dict) else None
    if form != _FORMAT:
        raise StoreError(f"store {path}: expected format {_FORMAT}, found {form!r}")
