"""Stores are chosen: RocksDB with a cache, without one or with a map of dirty keys, and memory that moves into RocksDB.

Memory Management in Kafka Streams, "Triggering based Caches" and "Open Questions", 2.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("rocksdict")

from kafkafmt.memory import MemoryBudget, MemoryBudgetError
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.streams.dirty_map import DirtyMapStore
from kafkafmt.streams.memory_store import MemoryStore
from kafkafmt.streams.store import RocksDBStore, StoreError
from kafkafmt.types import TopicPartition

KIB = 1024
ORDERS = TopicPartition("orders", 0)
Store: TypeAlias = "RocksDBStore | MemoryStore"


def in_memory(path: Path, size: int = 1024 * KIB, moved: list[int] | None = None) -> MemoryStore:
    caches = ThreadCache(size)
    return MemoryStore(
        path,
        caches,
        lambda: RocksDBStore(path, cache=caches),
        on_move=(moved if moved is not None else []).append,
    )


KINDS: dict[str, Callable[[Path], Store]] = {
    "cached": lambda path: RocksDBStore(path, cache=ThreadCache(64 * KIB)),
    "uncached": RocksDBStore,
    "dirty map": lambda path: DirtyMapStore(path, dirty_keys=ThreadCache(16 * KIB)),
    "in memory": in_memory,
    "moves": lambda path: in_memory(path, 16 * KIB),
    "moves at once": lambda path: in_memory(path, 0),
}


def put_numbers(store: Store, count: int) -> None:
    for number in range(count):
        store.put(b"%04d" % number, b"v" * 100)


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_store_of_any_kind_when_used_then_is_equal_to_a_dictionary(tmp_path: Path, kind: str) -> None:
    chance = random.Random(7)
    expected: dict[bytes, bytes] = {}
    with KINDS[kind](tmp_path / "store") as store:
        for number in range(6000):
            key = b"%05d" % chance.randrange(2000)
            if chance.random() < 0.2:
                store.delete(key)
                expected.pop(key, None)
            else:
                expected[key] = b"%d" % number * chance.randrange(1, 30)
                store.put(key, expected[key])
            if number % 500 == 0:
                store.commit({ORDERS: number})
                assert list(store.range()) == sorted(expected.items())
                assert store.get(key) == expected.get(key)
        assert [value for _, value in store.range(b"00100", b"00200")] == [
            value for key, value in sorted(expected.items()) if b"00100" <= key < b"00200"
        ]
        assert list(store.prefix(b"01")) == sorted(
            item for item in expected.items() if item[0].startswith(b"01")
        )
        assert store.positions() == {ORDERS: 5500}
        assert store.put_if_absent(b"new", b"1") is None
        assert store.put_if_absent(b"new", b"2") == b"1"


@kinds
def test_commit_of_no_offset_when_the_store_is_of_any_kind_then_value_error(
    tmp_path: Path, kind: str
) -> None:
    with KINDS[kind](tmp_path / "store") as store, pytest.raises(ValueError, match="expected an offset"):
        store.commit({ORDERS: -1})


def test_memory_store_when_it_outgrows_its_memory_then_moves_once_and_stays_within_the_budget(
    tmp_path: Path,
) -> None:
    budget, moved = MemoryBudget(256 * KIB), []
    caches = ThreadCache(200 * KIB, budget)

    def opened() -> RocksDBStore:
        assert caches.used_bytes == 0
        caches.resize(64 * KIB)
        return RocksDBStore(tmp_path / "store", cache=caches)

    with MemoryStore(tmp_path / "store", caches, opened, on_move=moved.append) as store:
        store.commit({ORDERS: 3})
        for number in range(700):
            store.put(b"%04d" % number, b"v" * 100)
        assert store.is_in_memory
        assert not (tmp_path / "store").exists()
        for number in range(700, 3000):
            store.put(b"%04d" % number, b"v" * 100)
        assert not store.is_in_memory
        assert 700 < moved[0] < 1000
        assert len(moved) == 1
        assert budget.peak_bytes <= 200 * KIB
        assert store.positions() == {ORDERS: 3}
        assert [key for key, _ in store.range()] == [b"%04d" % number for number in range(3000)]


def test_memory_store_when_others_need_its_memory_then_it_moves_and_loses_nothing(tmp_path: Path) -> None:
    budget = MemoryBudget(256 * KIB)
    caches = ThreadCache(200 * KIB, budget)
    path = tmp_path / "store"
    with MemoryStore(path, caches, lambda: RocksDBStore(path, cache=caches)) as store:
        put_numbers(store, 500)
        budget.reserve(200 * KIB, timeout=0)
        assert [store.get(b"%04d" % number) for number in range(500)] == [b"v" * 100] * 500
        assert not store.is_in_memory


def test_memory_store_when_it_began_to_move_then_a_range_has_all_entries(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MemoryStore(path, ThreadCache(16 * KIB), lambda: RocksDBStore(path)) as store:
        for count in range(1, 300):
            store.put(b"%04d" % count, b"v" * 100)
            assert sum(1 for _ in store.range()) == count


@pytest.mark.parametrize("kind", ["memory", "dirty map", "cache"])
def test_store_when_another_thread_demands_its_memory_between_two_steps_then_nothing_is_lost(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = MemoryBudget(256 * KIB)
    caches, path = ThreadCache(200 * KIB, budget), tmp_path / "store"

    def demand() -> None:
        def reserve() -> None:
            with suppress(MemoryBudgetError), budget.reserve(200 * KIB, timeout=0):
                pass

        other = threading.Thread(target=reserve)
        other.start()
        other.join()

    def opened() -> RocksDBStore:
        return RocksDBStore(path, cache=caches)

    store: MemoryStore | RocksDBStore
    if kind == "memory":
        store = MemoryStore(path, caches, opened)
    else:
        store = DirtyMapStore(path, dirty_keys=caches) if kind == "dirty map" else opened()
    with store:
        put_numbers(store, 500)
        if isinstance(store, MemoryStore):
            moved = store._moved

            def then_demand() -> RocksDBStore | None:
                found = moved()
                demand()
                return found

            monkeypatch.setattr(store, "_moved", then_demand)
            store.put(b"0007", None)
            monkeypatch.undo()
        elif isinstance(store, DirtyMapStore):
            put, flushed = store._put, []

            def put_then_demand(*args: Any) -> None:
                put(*args)
                demand()

            monkeypatch.setattr(store, "_put", put_then_demand)
            monkeypatch.setattr(store, "_write_entries", lambda *args: flushed.append(args))
            store.put(b"0007", None)
            monkeypatch.undo()
            assert flushed == []  # a flush that read the value before would write it after the put
        else:
            scan = store._scan

            def scan_then_demand(*args: Any) -> Iterator[tuple[bytes, bytes]]:
                found = scan(*args)
                demand()
                return found

            monkeypatch.setattr(store, "_scan", scan_then_demand)
            assert sum(1 for _ in store.range()) == 500
            store.put(b"0007", None)
            monkeypatch.undo()
        assert budget.held_bytes <= 200 * KIB
        assert [key for key, _ in store.range()] == [b"%04d" % one for one in range(500) if one != 7]


def test_memory_store_when_closed_before_it_moved_then_it_was_never_on_disk(tmp_path: Path) -> None:
    with in_memory(tmp_path / "store") as store:
        store.put(b"key", b"value")
        store.commit({ORDERS: 7})
        assert store.positions() == {ORDERS: 7}
    assert list(tmp_path.iterdir()) == []
    with in_memory(tmp_path / "store") as store:
        assert store.positions() == {}
        assert store.get(b"key") is None


def test_memory_store_when_it_moved_before_then_it_continues_there(tmp_path: Path) -> None:
    with in_memory(tmp_path / "store", 0) as store:
        store.put(b"key", b"value")
        store.commit({ORDERS: 7})
    with in_memory(tmp_path / "store") as store:
        assert not store.is_in_memory
        assert (store.get(b"key"), store.positions()) == (b"value", {ORDERS: 7})


def test_memory_store_when_changed_while_iterated_over_then_runtime_error(tmp_path: Path) -> None:
    with in_memory(tmp_path / "store") as store:
        store.put(b"a", b"1")
        found = store.range()
        store.put(b"b", b"1")
        with pytest.raises(RuntimeError, match="changed while they were iterated over"):
            next(found)


def test_memory_store_when_it_cannot_move_then_store_error_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with in_memory(path, 32 * KIB) as store:
        store.put(b"key", b"value")
        path.write_text("a file")
        with pytest.raises(StoreError, match="expected a folder, found a file"):
            put_numbers(store, 1000)
        assert store.get(b"key") == b"value"
        path.unlink()
        store.put(b"last", b"v" * 40_000)
        assert not store.is_in_memory
        assert store.get(b"key") == b"value"


def test_memory_store_when_it_cannot_be_opened_after_its_move_then_errors_until_it_can(
    tmp_path: Path,
) -> None:
    path, full = tmp_path / "store", tmp_path / "full"

    def opened() -> RocksDBStore:
        if full.exists():
            raise StoreError("no more files can be opened")
        return RocksDBStore(path)

    with MemoryStore(path, ThreadCache(16 * KIB), opened) as store:
        full.touch()
        with pytest.raises(StoreError, match="no more files"):
            put_numbers(store, 1000)
        with pytest.raises(StoreError, match="no more files"):
            store.get(b"0000")
        with pytest.raises(StoreError, match="no more files"):
            store.put(b"0000", b"other")
        full.unlink()
        assert store.get(b"0000") == b"v" * 100
        assert not store.is_in_memory


COMMITTER = """
import sys
from pathlib import Path
from streams.test_store_kinds import KINDS, ORDERS

store = KINDS[sys.argv[2]](Path(sys.argv[1]))
begin = store.positions().get(ORDERS, 0)
for number in range(begin, 10**9):
    for key in range(200):
        store.put(b"%03d" % ((number + key) % 1000), b"%d" % number)
    store.commit({ORDERS: number + 1})
    print(number + 1, flush=True)
"""


@pytest.mark.parametrize("kind", ["dirty map", "moves"])
def test_store_when_its_process_is_killed_then_it_has_what_was_committed(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "store"
    for round_ in range(2):
        command = [sys.executable, "-c", COMMITTER, str(folder), kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
            assert process.stdout is not None
            committed = 0
            for line in process.stdout:
                committed = int(line)
                if committed >= 60 * (round_ + 1):
                    process.send_signal(signal.SIGKILL)
                    break
            committed = max([committed, *(int(line) for line in process.stdout if line.endswith(b"\n"))])
        with RocksDBStore(folder) as store:
            position = store.positions()[ORDERS]
            assert committed <= position <= committed + 1
            wanted: dict[bytes, bytes] = {}
            for number in range(position):
                wanted.update({b"%03d" % ((number + key) % 1000): b"%d" % number for key in range(200)})
            found = dict(store.range())
            assert found.keys() >= wanted.keys()
            # Records after the last commit may be there: they are read again, with the same result.
            assert all(int(found[key]) in (int(value), position) for key, value in wanted.items())


def test_dirty_map_when_a_key_is_put_often_then_it_is_logged_once_with_each_flush(tmp_path: Path) -> None:
    def logged(path: Path) -> int:
        return sum(file.stat().st_size for file in path.glob("*.log"))

    with DirtyMapStore(tmp_path / "a", dirty_keys=ThreadCache(64 * KIB), write_buffer_bytes="4m") as store:
        for number in range(1000):
            store.put(b"key", b"%04d" % number * 100)
        store.put(b"gone", b"1")
        store.delete(b"gone")
        assert logged(tmp_path / "a") == 0
        store.commit({ORDERS: 1})
        assert 400 <= logged(tmp_path / "a") < 1000
        assert list(store.range()) == [(b"key", b"0999" * 100)]


@kinds
def test_store_when_closed_then_each_call_is_refused_with_its_folder(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with KINDS[kind](folder) as store:
        store.put(b"key", b"value")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get(b"key"),
        "put": lambda: store.put(b"key", b"other"),
        "delete": lambda: store.delete(b"key"),
        "put_if_absent": lambda: store.put_if_absent(b"new", b"value"),
        "range": lambda: list(store.range()),
        "prefix": lambda: list(store.prefix(b"k")),
        "commit": lambda: store.commit({ORDERS: 1}),
        "positions": store.positions,
    }
    for name, call in calls.items():
        with pytest.raises(StoreError) as raised:
            call()
        assert str(raised.value) == f"store {folder}: expected it to be open, found it closed", name
    store.close()
    assert repr(store).endswith(", closed>")


@kinds
@pytest.mark.parametrize("given", [bytearray(b"key"), memoryview(b"key"), "key", 7])
def test_store_when_a_key_or_value_is_not_bytes_then_type_error_and_nothing_is_stored(
    kind: str, given: Any, tmp_path: Path
) -> None:
    with KINDS[kind](tmp_path / "store") as store:
        calls: list[Callable[[], object]] = [
            lambda: store.put(given, b"value"),
            lambda: store.put(b"other", given),
            lambda: store.delete(given),
            lambda: store.put_if_absent(given, b"value"),
            lambda: store.get(given),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=rf"expected bytes, (found|got) {type(given).__name__}"):
                call()
        assert list(store.range()) == []


@pytest.mark.parametrize("kind", ["cached", "uncached", "dirty map"])
def test_write_and_load_when_an_entry_is_not_bytes_then_type_error_and_nothing_is_stored(
    kind: str, tmp_path: Path
) -> None:
    store = KINDS[kind](tmp_path / "store")
    assert isinstance(store, RocksDBStore)
    with store:
        for write in (store.write, store.load):
            with pytest.raises(TypeError, match="key: expected bytes, found bytearray"):
                write([(b"a", b"1"), (bytearray(b"b"), b"2")])  # type: ignore[list-item]
            with pytest.raises(TypeError, match="value: expected bytes, found str"):
                write([(b"a", b"1"), (b"b", "2")])  # type: ignore[list-item]
        assert list(store.range()) == []
