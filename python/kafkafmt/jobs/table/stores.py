"""Open the store of a table, of the kind that its memory plan has, within the bytes that the plan gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkafmt._util.closing import Closing
from kafkafmt.memory import MemoryPlan, StoreKind
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.streams.dirty_map import DirtyMapStore
from kafkafmt.streams.memory_store import ORDER_SHARE, MemoryStore
from kafkafmt.streams.store import RocksDBStore

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget, ThreadPlan

KeyValueStore: TypeAlias = "RocksDBStore | MemoryStore"


class TableStore(Closing):
    """The store at `path` and its memory.

    plan: the memory plan; this uses the share of one thread with one store. budget: that of the thread.
    on_move: called with one line if a store in memory moves into RocksDB.

    Attributes:
        store: the store. Its bytes are reserved until `close`.
    """

    def __init__(
        self, path: Path, plan: MemoryPlan, budget: MemoryBudget, *, on_move: Callable[[str], object]
    ) -> None:
        self._path, self._plan, self._budget, self._on_move = path, plan, budget, on_move
        sizes = plan.thread_plan(1, 1)
        with ExitStack() as stack:
            self._state = stack.enter_context(budget.child("state").reserve(sizes.state_bytes, timeout=0))
            self._order = stack.enter_context(budget.child("order").reserve(0, timeout=0))
            self._caches: ThreadCache | None = None
            self.store: KeyValueStore
            if plan.store_kind is StoreKind.IN_MEMORY:
                self._order.resize(sizes.cache_bytes // ORDER_SHARE)
                self._caches = ThreadCache(sizes.cache_bytes - self._order.size_bytes, budget, name="store")
                stack.callback(self._caches.close)
                self.store = MemoryStore(
                    path, self._caches, self._open_moved, on_move=self._say_that_it_moves
                )
            else:
                if plan.store_kind is not StoreKind.UNCACHED:
                    self._caches = ThreadCache(sizes.cache_bytes, budget)
                    stack.callback(self._caches.close)
                self.store = self._open(sizes, plan.store_kind)
            stack.callback(self.store.close)
            self._opened = stack.pop_all()

    @property
    def is_in_memory(self) -> bool:
        """Whether the entries are in memory only."""
        return isinstance(self.store, MemoryStore) and self.store.is_in_memory

    def resize(self, sizes: ThreadPlan) -> None:
        """Change the sizes at a rebalance. A store in memory, or one that moved from there, keeps its bytes."""
        if isinstance(self.store, MemoryStore):
            return
        if self._caches is not None:  # release bytes before more are reserved
            self._caches.resize(min(sizes.cache_bytes, self._caches.total_bytes))
        self._state.resize(sizes.state_bytes)
        self.store.resize(
            block_cache_bytes=sizes.block_cache_bytes, write_buffer_bytes=sizes.write_buffer_bytes
        )
        if self._caches is not None:
            self._caches.resize(sizes.cache_bytes)

    @contextmanager
    def without_cache(self) -> Iterator[None]:
        """Release the bytes of the cache during the block. The store must be committed."""
        if self._caches is None or self.is_in_memory:
            yield
            return
        size = self._caches.total_bytes
        self._caches.resize(0)
        try:
            yield
        finally:
            self._caches.resize(size)

    def close(self) -> None:
        """Close the store, and release all bytes."""
        self._opened.close()

    def _open(self, sizes: ThreadPlan, kind: StoreKind) -> RocksDBStore:
        options: dict[str, Any] = {
            "block_cache": sizes.block_cache_bytes,
            "write_buffer_bytes": sizes.write_buffer_bytes,
            "max_write_buffer_number": sizes.max_write_buffer_number,
        }
        if kind is StoreKind.DIRTY_MAP:
            assert self._caches is not None
            return DirtyMapStore(self._path, dirty_keys=self._caches, **options)
        return RocksDBStore(self._path, cache=self._caches, **options)

    def _open_moved(self) -> RocksDBStore:
        """Open the store that a store in memory moved to, with the sizes of a RocksDBStore with a cache."""
        sizes = replace(self._plan, store_kind=StoreKind.CACHED).thread_plan(1, 1)
        assert self._caches is not None
        self._order.release()
        self._caches.resize(sizes.cache_bytes)
        self._state.resize(sizes.state_bytes)
        return self._open(sizes, StoreKind.CACHED)

    def _say_that_it_moves(self, entries: int) -> None:
        assert self._caches is not None
        self._on_move(
            f"the state of {entries:,} keys outgrew {self._caches.total_bytes:,} bytes of memory: moved into RocksDB"
        )
