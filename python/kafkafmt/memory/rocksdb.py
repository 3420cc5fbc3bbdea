"""How a RocksDB store is opened so that it takes what a memory plan gives it, and little beside.

Of one store RocksDB bounds the write buffers (`write_buffer_size * max_write_buffer_number`), of all the shared
block cache, which holds index and filter blocks too. What comes on top is kept small here: buffers of files
that are written, read-ahead of compactions, tables that are open, background threads.
"""

from __future__ import annotations

from typing import Any

from kafkafmt.sizes import parse_named_size

_WRITABLE_FILE_BUFFER_BYTES = 64 * 1024
_COMPACTION_READAHEAD_BYTES = 64 * 1024
_BLOCK_BYTES = 8 * 1024
_TARGET_FILE_BYTES = 16 * 1024 * 1024
_LEVEL_BASE_BYTES = 64 * 1024 * 1024
_MAX_OPEN_FILES = 64  # of one store, so that many are open in one process
_BLOOM_BITS_PER_KEY = 10
_LOG_FILE_BYTES = 256 * 1024
# Measured on Linux by the address space, in a process that `bound_process` has prepared: threads of RocksDB, batches
# and compactions; and of each store its write-ahead log, tables and bookkeeping.
_INSTANCE_BYTES = 4 * 1024 * 1024
_STORE_BYTES = 384 * 1024
LEAST_WRITE_BUFFER_BYTES = 64 * 1024  # less RocksDB raises to this


def rocksdict() -> Any:
    """The module, or ImportError that names the extra."""
    try:
        import rocksdict
    except ImportError as error:
        raise ImportError("RocksDB stores need the extra `store`: pip install 'kafkafmt[store]'") from error
    return rocksdict


class SharedBlockCache:
    """One block cache for all stores of an instance, of `block_cache_bytes` in all (off the heap, as the
    document has it), a number or a text as `8m`.

    Follows `Memory Management in Kafka Streams, "Persistent State Store Buffering"`: the block cache is one for
    each instance, and stores share it. Raises ValueError for a size below 0.
    """

    def __init__(self, block_cache_bytes: int | str) -> None:
        self._block_cache_bytes = _block_cache_size(block_cache_bytes)
        self.cache = rocksdict().Cache(self._block_cache_bytes)

    @property
    def block_cache_bytes(self) -> int:
        return self._block_cache_bytes

    @property
    def used_bytes(self) -> int:
        return int(self.cache.get_usage())

    def resize(self, block_cache_bytes: int | str) -> None:
        """Set the capacity; blocks that are too much for it leave at once, those in use excepted."""
        size = _block_cache_size(block_cache_bytes)
        self.cache.set_capacity(size)
        self._block_cache_bytes = size


def stores_reserved_bytes(stores: int) -> int:
    """What so many open stores take beside block cache and write buffers; 0 for none.

    For `reserved_bytes` of a `MemoryPlan`: what the document calculates leaves it out.
    """
    return _INSTANCE_BYTES + stores * _STORE_BYTES if checked_count("stores", stores, 0) else 0


def store_options(
    block_cache: SharedBlockCache, write_buffer_bytes: int, max_write_buffer_number: int
) -> Any:
    """The options a store is opened with, in raw mode: keys and values are bytes."""
    module = rocksdict()
    options = module.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(max_write_buffer_number)
    options.set_block_based_table_factory(_table_options(module, block_cache))
    options.set_compression_type(module.DBCompressionType.lz4())
    options.set_target_file_size_base(_TARGET_FILE_BYTES)
    options.set_max_bytes_for_level_base(_LEVEL_BASE_BYTES)
    options.set_max_open_files(_MAX_OPEN_FILES)
    options.set_max_file_opening_threads(1)
    options.set_table_cache_num_shard_bits(0)
    options.set_writable_file_max_buffer_size(_WRITABLE_FILE_BUFFER_BYTES)
    options.set_compaction_readahead_size(_COMPACTION_READAHEAD_BYTES)
    options.set_allow_mmap_reads(False)
    options.set_max_background_jobs(2)
    options.set_max_subcompactions(1)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(_WRITABLE_FILE_BUFFER_BYTES)
    options.set_max_log_file_size(_LOG_FILE_BYTES)
    options.set_keep_log_file_num(2)
    return options


def _table_options(module: Any, block_cache: SharedBlockCache) -> Any:
    options = module.BlockBasedOptions()
    options.set_block_cache(block_cache.cache)
    options.set_block_size(_BLOCK_BYTES)
    options.set_cache_index_and_filter_blocks(True)
    options.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    options.set_format_version(5)
    return options


def _block_cache_size(block_cache_bytes: int | str) -> int:
    return parse_named_size("block_cache_bytes", block_cache_bytes, least=0)


def checked_count(name: str, count: int, least: int) -> int:
    if count < least:
        raise ValueError(f"{name}: expected {least} or more, found {count}")
    return count
