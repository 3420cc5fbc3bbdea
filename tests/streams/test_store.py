"""RocksDB stores: what is written is read back, what was committed is there again, and errors name the folder."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rocksdict")

import kafkafmt as kf
from kafkafmt.log import LogAppender, PartitionLog
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.streams.store import RocksDBStore, SharedBlockCache, StoreError
from kafkafmt.types import TopicPartition
from log.samples import marker

ORDERS = TopicPartition("orders", 0)
VIEWS = TopicPartition("page-views.v1", 12)


@pytest.fixture(params=["cache", "no cache"])
def cache(request: pytest.FixtureRequest) -> ThreadCache | None:
    return ThreadCache(64 * 1024) if request.param == "cache" else None


def test_store_gives_back_what_was_put(tmp_path: Path, cache: ThreadCache | None) -> None:
    with RocksDBStore(tmp_path, cache=cache) as store:
        store.put(b"a", b"1")
        store.put(b"", b"")
        store.put(b"b", b"2")
        store.delete(b"b")
        store.delete(b"never there")
        assert [store.get(key) for key in (b"a", b"", b"b", b"c")] == [b"1", b"", None, None]
        assert store.put_if_absent(b"a", b"9") == b"1"
        assert store.put_if_absent(b"b", b"9") is None
        assert store.get(b"b") == b"9"


def test_store_of_more_than_the_cache_holds_is_equal_to_a_dictionary(
    tmp_path: Path, cache: ThreadCache | None
) -> None:
    chance = random.Random(7)
    expected: dict[bytes, bytes] = {}
    with RocksDBStore(tmp_path, cache=cache, write_buffer_bytes=64 * 1024) as store:
        for number in range(6000):
            key = b"%05d" % chance.randrange(2000)
            if chance.random() < 0.2:
                store.delete(key)
                expected.pop(key, None)
            else:
                expected[key] = b"%d" % number * chance.randrange(1, 30)
                store.put(key, expected[key])
            if number % 500 == 0:
                assert dict(store.range()) == expected
            if number % 1000 == 0:
                store.commit({ORDERS: number})
        assert all(store.get(b"%05d" % number) == expected.get(b"%05d" % number) for number in range(2000))
        assert list(store.range(b"00500", b"01500")) == sorted(
            (key, value) for key, value in expected.items() if b"00500" <= key < b"01500"
        )
    with RocksDBStore(tmp_path) as store:
        assert list(store.range()) == sorted(expected.items())


def test_range_and_prefix_take_bounds_of_any_bytes(tmp_path: Path, cache: ThreadCache | None) -> None:
    keys = [b"", b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"]
    with RocksDBStore(tmp_path, cache=cache) as store:
        for key in keys[::2]:
            store.put(key, key)
        store.commit({ORDERS: 1})
        for key in keys[1::2]:
            store.put(key, key)
        assert [key for key, _ in store.range()] == keys
        assert [key for key, _ in store.range(b"\x00", b"a")] == [b"\x00"]
        assert [key for key, _ in store.range(stop=b"a")] == [b"", b"\x00"]
        assert [key for key, _ in store.range(b"a\xff\xff")] == keys[5:]
        assert [key for key, _ in store.prefix(b"a\xff")] == [b"a\xff", b"a\xff\xff"]
        assert [key for key, _ in store.prefix(b"\xff")] == [b"\xff", b"\xff\xff"]
        assert [key for key, _ in store.prefix(b"")] == keys


def test_range_sees_the_store_as_it_was_when_it_was_asked_for(
    tmp_path: Path, cache: ThreadCache | None
) -> None:
    with RocksDBStore(tmp_path, cache=cache) as store:
        for number in range(100):
            store.put(b"%03d" % number, b"before")
        found = store.range()
        for number in range(200):
            store.put(b"%03d" % number, b"after")
        store.commit({ORDERS: 1})
        assert list(found) == [(b"%03d" % number, b"before") for number in range(100)]


def test_write_puts_a_batch_past_the_cache_and_over_what_is_in_it(
    tmp_path: Path, cache: ThreadCache | None
) -> None:
    with RocksDBStore(tmp_path, cache=cache) as store:
        for key in (b"a", b"b", b"c"):
            store.put(key, b"old")
        store.write([(b"a", b"new"), (b"b", None), (b"d", b"new")], {ORDERS: 4})
        assert [store.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"new", None, b"old", b"new"]
        assert store.positions() == {ORDERS: 4}
    with RocksDBStore(tmp_path) as store:
        assert list(store.range()) == [(b"a", b"new"), (b"c", b"old"), (b"d", b"new")]


def test_commit_keeps_the_positions_of_partitions_that_it_does_not_name(
    tmp_path: Path, cache: ThreadCache | None
) -> None:
    with RocksDBStore(tmp_path, cache=cache) as store:
        assert store.positions() == {}
        store.commit({ORDERS: 5, VIEWS: 2**40})
        store.put(b"a", b"1")
        store.commit({ORDERS: 6})
    with RocksDBStore(tmp_path) as store:
        assert store.positions() == {ORDERS: 6, VIEWS: 2**40}
        assert list(store.range()) == [(b"a", b"1")]


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_commit_of_what_is_no_offset_raises_and_what_was_dirty_is_so_still(
    tmp_path: Path, offset: int
) -> None:
    cache = ThreadCache(1 << 20)
    with RocksDBStore(tmp_path, cache=cache) as store:
        store.put(b"a", b"1")
        with pytest.raises(ValueError, match=f"expected an offset for orders-0, found {offset}"):
            store.commit({ORDERS: offset})
        assert store.positions() == {}
        store.commit({ORDERS: 2**63 - 1})
        assert store.positions() == {ORDERS: 2**63 - 1}
        assert store.get(b"a") == b"1"


def test_close_writes_what_is_dirty_and_a_second_one_does_nothing(tmp_path: Path) -> None:
    cache = ThreadCache(1 << 20)
    store = RocksDBStore(tmp_path, cache=cache)
    store.put(b"a", b"1")
    store.close()
    store.close()
    assert cache.used_bytes == 0
    with RocksDBStore(tmp_path, cache=cache) as store:
        assert store.get(b"a") == b"1"


def test_store_that_is_closed_refuses_with_its_folder(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path)
    store.close()
    for call in (
        lambda: store.get(b"a"),
        lambda: store.put(b"a", b""),
        store.range,
        store.flush,
        store.positions,
    ):
        with pytest.raises(StoreError, match=f"store {tmp_path}: expected it to be open, found it closed"):
            list(call() or ())  # type: ignore[call-overload]


def test_resize_sets_the_one_block_cache_of_all_stores(tmp_path: Path) -> None:
    blocks = SharedBlockCache(4 << 20)
    with (
        RocksDBStore(tmp_path / "a", block_cache=blocks) as one,
        RocksDBStore(tmp_path / "b", block_cache=blocks) as other,
    ):
        for number in range(20_000):
            one.put(b"%06d" % number, os.urandom(100))
        one.flush()
        assert len(list(one.range())) == 20_000
        assert blocks.used_bytes > 1 << 20
        other.resize(block_cache_bytes=1 << 18, write_buffer_bytes=64 * 1024)
        assert blocks.block_cache_bytes == 1 << 18
        assert blocks.used_bytes <= 1 << 18
        assert one.get(b"000000") is not None


def test_sizes_that_are_texts_are_the_bytes_that_they_say(tmp_path: Path) -> None:
    blocks = SharedBlockCache("8m")
    assert blocks.block_cache_bytes == 8 << 20
    with RocksDBStore(tmp_path / "a", block_cache=blocks, write_buffer_bytes="64k") as store:
        store.resize(block_cache_bytes="1.5m", write_buffer_bytes="128K")
        assert blocks.block_cache_bytes == 3 << 19
    with RocksDBStore(tmp_path / "b", block_cache="1m") as store:
        store.put(b"key", b"value")


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"block_cache": -1}, "block_cache_bytes"),
        ({"block_cache": "8x"}, "block_cache_bytes"),
        ({"write_buffer_bytes": 1000}, "write_buffer_bytes"),
        ({"write_buffer_bytes": "1k"}, "write_buffer_bytes"),
        ({"max_write_buffer_number": 1}, "max_write_buffer_number"),
    ],
    ids=str,
)
def test_size_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, sizes: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected"):
        RocksDBStore(tmp_path / "store", **sizes)
    assert not (tmp_path / "store").exists()


def test_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"expected a store or an empty folder, found 'notes.txt' in it"):
        RocksDBStore(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "notes.txt"]
    with pytest.raises(StoreError, match="expected a folder, found a file"):
        RocksDBStore(tmp_path / "notes.txt")


@pytest.mark.parametrize("marker", ['{"format": 2}', "[]", "", "not JSON"])
def test_store_of_another_format_is_refused(tmp_path: Path, marker: str) -> None:
    RocksDBStore(tmp_path).close()
    (tmp_path / "kafkafmt-store.json").write_text(marker)
    with pytest.raises(StoreError, match=f"store {tmp_path}: expected (format 1|JSON)"):
        RocksDBStore(tmp_path)


def test_store_that_is_open_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    program = "import sys; from kafkafmt.streams.store import RocksDBStore; RocksDBStore(sys.argv[1])"
    with RocksDBStore(tmp_path):
        with pytest.raises(StoreError, match=f"store {tmp_path}: expected it to be free, found it open"):
            RocksDBStore(tmp_path)
        other = subprocess.run(
            [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
        )
        assert f"StoreError: store {tmp_path}: expected it to be free, found it open" in other.stderr


def test_store_that_is_damaged_is_told_with_its_folder(tmp_path: Path) -> None:
    RocksDBStore(tmp_path).close()
    (tmp_path / "CURRENT").write_text("garbage\n")
    with pytest.raises(StoreError, match=f"store {tmp_path}: Corruption"):
        RocksDBStore(tmp_path)


COMMITTER = """
import sys
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.streams.store import RocksDBStore
from kafkafmt.types import TopicPartition

store = RocksDBStore(sys.argv[1], write_buffer_bytes=64 * 1024, cache=ThreadCache(1 << 20))
begin = store.positions().get(TopicPartition("orders", 0), 0)
for number in range(begin, 10**9):
    for key in range(100):
        store.put(b"%03d" % ((number + key) % 1000), b"%d" % number)
    store.commit({TopicPartition("orders", 0): number + 1})
    print(number + 1, flush=True)
"""


def test_store_of_a_killed_process_holds_what_was_committed_and_positions_that_agree(tmp_path: Path) -> None:
    committed = 0
    for round_ in range(4):
        with subprocess.Popen([sys.executable, "-c", COMMITTER, tmp_path], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                committed = int(line)
                if committed >= 50 * (round_ + 1) + round_:
                    process.send_signal(signal.SIGKILL)
                    break
            committed = max([committed, *(int(line) for line in process.stdout if line.endswith(b"\n"))])
        with RocksDBStore(tmp_path) as store:
            position = store.positions()[ORDERS]
            assert committed <= position <= committed + 1
            expected = {}
            for number in range(position):
                expected.update({b"%03d" % ((number + key) % 1000): b"%d" % number for key in range(100)})
            assert dict(store.range()) == expected


KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
from pathlib import Path
from kafkafmt.streams.store import RocksDBStore

Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
RocksDBStore(sys.argv[1])
"""


def test_store_whose_maker_was_killed_before_it_was_one_is_made_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_THE_RENAME, folder], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in folder.iterdir()] == [".kafkafmt-store.json.tmp"]
    with RocksDBStore(folder) as store:
        store.put(b"key", b"value")
    assert not (folder / ".kafkafmt-store.json.tmp").exists()
    with RocksDBStore(folder) as store:
        assert store.get(b"key") == b"value"


FILLER = """
import os, resource, sys
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.streams.store import RocksDBStore, StoreError
from kafkafmt.types import TopicPartition

store = RocksDBStore(sys.argv[1], cache=ThreadCache(20_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
committed = 0
try:
    for number in range(10_000):
        store.put(b"%05d" % number, os.urandom(100))
        if number % 100 == 99:
            store.commit({TopicPartition("orders", 0): number + 1})
            committed = number + 1
except StoreError as error:
    print(committed, error)
try:
    store.close()
except StoreError as error:
    print("close:", error)
store.close()
"""


def test_store_that_can_write_no_more_says_so_and_keeps_what_was_committed(tmp_path: Path) -> None:
    """By a limit on the size of files, which a full disk is to the store."""
    done = subprocess.run(
        [sys.executable, "-c", FILLER, tmp_path], capture_output=True, text=True, check=True
    )
    put, closed = done.stdout.splitlines()
    assert f" store {tmp_path}: IO error: " in put
    assert closed.startswith(f"close: store {tmp_path}: ")
    with RocksDBStore(tmp_path) as store:
        committed = int(put.split()[0])
        assert committed >= 100
        assert store.positions() == {ORDERS: committed}
        assert {key for key, _ in store.range()} >= {b"%05d" % number for number in range(committed)}


LIMITED = """
import os, random, resource, sys
from kafkafmt.streams.cache import ThreadCache
from kafkafmt.memory.process import bound_process
from kafkafmt.streams.store import RocksDBStore, SharedBlockCache, stores_reserved_bytes
from kafkafmt.types import TopicPartition
from process_memory import limit_virtual_bytes

MIB = 1024 * 1024
stores, block_cache, write_buffer, cache, others = 8, 4 * MIB, MIB // 2, 4 * MIB, 2 * MIB
bound_process()
caches, blocks = ThreadCache(cache), SharedBlockCache(block_cache)
values = os.urandom(MIB)
limit_virtual_bytes(block_cache + stores * 2 * write_buffer + cache + stores_reserved_bytes(stores) + others)
opened = [
    RocksDBStore(f"{sys.argv[1]}/{number}", block_cache=blocks, write_buffer_bytes=write_buffer, cache=caches)
    for number in range(stores)
]
chance = random.Random(1)
for number in range(200_000):
    start = chance.randrange(MIB // 2)
    opened[number % stores].put(b"key-%012d" % chance.randrange(10**9), values[start : start + 100])
    if number % 20_000 == 0:
        opened[number % stores].commit({TopicPartition("orders", 0): number})
print(sum(1 for store in opened for _ in store.range()))
for store in opened:
    store.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space by what /proc says")
def test_stores_take_no_more_address_space_than_the_plan_and_what_they_reserve(tmp_path: Path) -> None:
    """Of 25 MB, which they write; 2 MiB are the interpreter's own."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 199_900


def test_cache_that_is_closed_before_its_store_is_no_matter(tmp_path: Path) -> None:
    cache = ThreadCache(1 << 20)
    with RocksDBStore(tmp_path, cache=cache) as store:
        store.put(b"a", b"1")
        cache.close()
        store.put(b"b", b"2")
    with RocksDBStore(tmp_path) as store:
        assert list(store.range()) == [(b"a", b"1"), (b"b", b"2")]


def test_marker_names_the_format(tmp_path: Path) -> None:
    RocksDBStore(tmp_path).close()
    assert json.loads((tmp_path / "kafkafmt-store.json").read_text()) == {"format": 1}


def keyed(base_offset: int, *pairs: tuple[bytes | None, bytes | None], **fields: Any) -> bytes:
    builder = kf.RecordBatchBuilder(base_offset=base_offset, **fields)
    for number, (key, value) in enumerate(pairs):
        builder.append(number, key, value)
    return builder.build()


def of_producer(base_offset: int, *pairs: tuple[bytes | None, bytes | None]) -> bytes:
    return keyed(base_offset, *pairs, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)


def test_restore_keeps_the_latest_value_of_each_key_that_was_committed(
    tmp_path: Path, cache: ThreadCache | None
) -> None:
    folder = tmp_path / "orders-0"
    with LogAppender(folder) as log:
        log.append(keyed(0, (b"a", b"1"), (b"b", b"1"), (None, b"no key"), (b"c", b"1")))
        log.append(of_producer(4, (b"a", b"aborted"), (b"d", b"aborted")))
        log.append(marker(6, 7, commit=False))
        log.append(keyed(7, (b"b", None), (b"c", b"2"), codec=kf.Codec.ZSTD))
        log.append(of_producer(9, (b"c", b"3")))
        log.append(marker(10, 7, commit=True))
        log.append(of_producer(11, (b"c", b"open")))
        log.append(keyed(12, (b"c", b"behind an open one")))
    with RocksDBStore(tmp_path / "store", cache=cache) as store:
        store.put(b"before", b"kept")
        assert store.restore(PartitionLog(folder)) == 11
        assert list(store.range()) == [(b"a", b"1"), (b"before", b"kept"), (b"c", b"3")]
        assert store.positions() == {ORDERS: 11}


def test_restore_goes_on_from_the_position_that_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    with RocksDBStore(tmp_path / "store") as store, LogAppender(folder) as log:
        log.append(keyed(0, (b"a", b"1"), (b"b", b"1")))
        assert store.restore(PartitionLog(folder)) == 2
        store.put(b"a", b"changed since")
        log.append(keyed(2, (b"b", b"2")))
        assert store.restore(PartitionLog(folder)) == 3
        assert list(store.range()) == [(b"a", b"changed since"), (b"b", b"2")]


def test_restore_of_a_log_that_lost_what_was_not_read_warns_and_goes_on_behind_it(tmp_path: Path) -> None:
    folder = tmp_path / "table-0"
    with LogAppender(folder, segment_bytes=1) as log, RocksDBStore(tmp_path / "store") as store:
        log.append(keyed(0, (b"a", b"1"), (b"b", b"2")))
        assert store.restore(PartitionLog(folder)) == 2
        for offset in (2, 3, 4):
            log.append(keyed(offset, (b"a", b"%d" % offset)))
        for offset in (0, 2, 3):
            for path in folder.glob(f"{offset:020}.*"):
                path.unlink()
        with pytest.warns(RuntimeWarning, match="table-0: offsets 2 to 3 were deleted before they were read"):
            assert store.restore(PartitionLog(folder)) == 5
        assert list(store.range()) == [(b"a", b"4"), (b"b", b"2")]


def test_restore_of_a_damaged_log_says_where_and_goes_on_there_once_it_is_mended(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    with LogAppender(folder) as log:
        log.append(keyed(0, (b"a", b"1")))
        log.append(keyed(1, (b"b", b"1")))
        log.append(keyed(2, (b"c", b"1")))
    segment = next(folder.glob("*.log"))
    sound = segment.read_bytes()
    segment.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    with RocksDBStore(tmp_path / "store") as store:
        with pytest.raises(kf.CorruptRecordError, match="orders-0"):
            store.restore(PartitionLog(folder))
        segment.write_bytes(sound)
        assert store.restore(PartitionLog(folder)) == 3
        assert [key for key, _ in store.range()] == [b"a", b"b", b"c"]


def test_restore_of_a_folder_that_names_no_partition_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (
        RocksDBStore(tmp_path / "store") as store,
        pytest.raises(ValueError, match="expected a folder named as a partition's"),
    ):
        store.restore(PartitionLog(tmp_path / "folder"))


def test_commit_without_positions_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Database:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(database, name)

    with RocksDBStore(tmp_path, cache=ThreadCache(1 << 20)) as store:
        database = store._db
        store.put(b"a", b"1")
        monkeypatch.setattr(store, "_db", Database())
        store.commit({})
        assert calls == ["write", "flush_wal"]
        monkeypatch.undo()
