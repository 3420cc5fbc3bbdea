"""Open RocksDB stores so that they use the memory that a memory plan allots, and little beside.

RocksDB bounds the write buffers of each store (`write_buffer_size * max_write_buffer_number`), and the block cache that
all stores share, which includes index and filter blocks. The options set here limit what RocksDB uses on top: write
buffers of files, read-ahead of compactions, open tables and background threads.
"""

from __future__ import annotations

from typing import Any

from kafkafmt._util.sizes import parse_named_size

_WRITABLE_FILE_BUFFER_BYTES = 64 * 1024
_COMPACTION_READAHEAD_BYTES = 64 * 1024
_BLOCK_BYTES = 8 * 1024
_TARGET_FILE_BYTES = 16 * 1024 * 1024
_LEVEL_BASE_BYTES = 64 * 1024 * 1024
_MAX_OPEN_FILES = 64  # of one store, so that one process can open many stores
_BLOOM_BITS_PER_KEY = 10
_LOG_FILE_BYTES = 256 * 1024
# Measured on Linux as address space, in a process after `bound_process`. Of the instance: RocksDB's threads, batches
# and compactions. Of each store: its write-ahead log, tables and bookkeeping.
_INSTANCE_BYTES = 4 * 1024 * 1024
_STORE_BYTES = 384 * 1024
LEAST_WRITE_BUFFER_BYTES = 64 * 1024  # RocksDB raises smaller values to this


def rocksdict() -> Any:
    """Import the module. Raises ImportError, which names the extra to install."""
    try:
        import rocksdict
    except ImportError as error:
        raise ImportError("RocksDB stores need the extra `store`: pip install 'kafkafmt[store]'") from error
    return rocksdict


class SharedBlockCache:
    """One block cache of `block_cache_bytes`, a number or a text such as `8m`, which all stores of an instance share.

    Follows `Memory Management in Kafka Streams, "Persistent State Store Buffering"`: each instance has one block cache,
    off the heap. Raises ValueError for a size below 0.
    """

    def __init__(self, block_cache_bytes: int | str) -> None:
        self._block_cache_bytes = _block_cache_size(block_cache_bytes)
        self.cache = rocksdict().Cache(self._block_cache_bytes)

    @property
    def block_cache_bytes(self) -> int:
        """The size of the cache in bytes."""
        return self._block_cache_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes that the cache holds now."""
        return int(self.cache.get_usage())

    def resize(self, block_cache_bytes: int | str) -> None:
        """Set the capacity. Blocks beyond it are evicted at once, except blocks in use."""
        size = _block_cache_size(block_cache_bytes)
        self.cache.set_capacity(size)
        self._block_cache_bytes = size


def stores_reserved_bytes(stores: int) -> int:
    """Return the bytes that `stores` open stores use beside block cache and write buffers; 0 if there are none.

    Pass it as `reserved_bytes` of a `MemoryPlan`: the document's calculation does not include it.
    """
    return _INSTANCE_BYTES + stores * _STORE_BYTES if checked_count("stores", stores, 0) else 0


def store_options(
    block_cache: SharedBlockCache, write_buffer_bytes: int, max_write_buffer_number: int
) -> Any:
    """Return the options with which a store is opened. They set raw mode: keys and values are bytes."""
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
    """Return `count`. Raises ValueError if it is less than `least`."""
    if count < least:
        raise ValueError(f"{name}: expected {least} or more, found {count}")
    return count
