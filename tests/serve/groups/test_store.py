"""Committed offsets on disk: through SIGKILL, damage and other people's files, within their limit."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kafkafmt.serve.groups import OffsetsFileError, OffsetStore
from kafkafmt.serve.groups.offsets import Commit, CommittedOffset, OffsetsFile
from kafkafmt.serve.groups.store import FILE_NAME
from kafkafmt.types import TopicPartition

MIB = 1 << 20
ORDERS, VIEWS = TopicPartition("orders", 0), TopicPartition("views", 1)


def commit(partition: TopicPartition, offset: int, group: str = "g", note: str = "") -> Commit:
    return Commit(group, partition, CommittedOffset(offset, 3, note, 1_700_000_000_000))


def with_store(state: Path | None, scenario: Callable[[OffsetStore], Awaitable[None]]) -> None:
    async def scene() -> None:
        store = OffsetStore(state, MIB)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(scene())


def kept(state: Path, group: str = "g") -> dict[TopicPartition, int]:
    file = OffsetsFile(state / FILE_NAME, MIB)
    try:
        return {partition: committed.offset for partition, committed in file.read(group, None).items()}
    finally:
        file.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with the offset 5 of the group `g` in it."""

    async def scenario(store: OffsetStore) -> None:
        await store.commit([commit(ORDERS, 5)])

    with_store(tmp_path / "state", scenario)
    return tmp_path / "state"


@pytest.mark.parametrize("on_disk", [True, False])
def test_offsets_when_committed_then_the_last_of_each_partition_is_kept(
    tmp_path: Path, on_disk: bool
) -> None:
    async def scenario(store: OffsetStore) -> None:
        await store.commit([commit(ORDERS, 1), commit(VIEWS, 2, note="näher\0dran"), commit(ORDERS, 3)])
        await store.commit([commit(VIEWS, 9, group="h")])
        assert await store.offsets("g", None) == {
            ORDERS: CommittedOffset(3, 3, "", 1_700_000_000_000),
            VIEWS: CommittedOffset(2, 3, "näher\0dran", 1_700_000_000_000),
        }
        assert list(await store.offsets("g", ["views", "none"])) == [VIEWS]
        assert await store.group_ids() == ["g", "h"]
        await store.delete("g", [ORDERS])
        assert list(await store.offsets("g", None)) == [VIEWS]
        await store.delete("h", None)
        assert (await store.has_group("g"), await store.has_group("h")) == (True, False)

    with_store(tmp_path if on_disk else None, scenario)


def test_commits_when_they_come_together_then_share_transactions(tmp_path: Path) -> None:
    statements: list[str] = []

    async def scenario(store: OffsetStore) -> None:
        store._file._connection.set_trace_callback(statements.append)
        await asyncio.gather(*(store.commit([commit(TopicPartition("t", n), n)]) for n in range(100)))
        assert len(await store.offsets("g", None)) == 100

    with_store(tmp_path, scenario)
    assert 1 <= statements.count("COMMIT") <= 2


def test_commit_when_its_client_is_gone_then_those_that_share_the_transaction_are_kept(
    tmp_path: Path,
) -> None:
    async def scenario(store: OffsetStore) -> None:
        gone = asyncio.ensure_future(store.commit([commit(ORDERS, 1)]))
        stays = asyncio.ensure_future(store.commit([commit(VIEWS, 2)]))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        assert list(await store.offsets("g", None)) == [ORDERS, VIEWS]

    with_store(tmp_path, scenario)


def test_offsets_when_killed_while_committing_then_all_that_were_told_are_there(tmp_path: Path) -> None:
    script = Path(__file__).with_name("commit_and_tell.py")
    for round_number in range(2):
        state = tmp_path / str(round_number)
        with subprocess.Popen([sys.executable, script, state], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) == 20 + 7 * round_number:
                    process.kill()
                    break
            told = int(([line, *process.stdout])[-1])
        found = kept(state)
        assert len(found) == 3
        assert set(found.values()) in ({told}, {told + 1}), (
            "a commit is there for all its partitions, or for none"
        )


def test_file_when_it_cannot_take_more_then_nothing_of_a_commit_is_kept(tmp_path: Path) -> None:
    file = OffsetsFile(tmp_path / FILE_NAME, 64 * 1024)
    file.write([commit(ORDERS, 5)])
    many = [commit(TopicPartition("t", number), 1, note="x" * 4000) for number in range(100)]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.write(many)
    assert list(file.read("g", None)) == [ORDERS]
    file.write([commit(ORDERS, 6)])
    file.close()
    assert kept(tmp_path) == {ORDERS: 6}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 64 * 1024


# Files that are not fit


def line_for(state: Path) -> str:
    with pytest.raises(OffsetsFileError) as caught:
        OffsetStore(state, MIB)
    line = str(caught.value)
    assert line.startswith(f"{state / FILE_NAME}: expected a file of committed offsets")
    assert "\n" not in line
    return line


def test_file_when_it_is_none_of_sqlite_then_one_line_and_it_stays(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"offsets, as one may write them down\n" * 100)
    assert "file is not a database" in line_for(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes().startswith(b"offsets, as")


def test_file_when_it_is_of_another_application_then_one_line_and_it_stays(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("CREATE TABLE notes (note TEXT)")
        other.execute("PRAGMA application_id = 77")
    other.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    assert "a database of something else, application_id 0x4d" in line_for(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_file_when_of_a_later_schema_then_one_line(state: Path) -> None:
    with sqlite3.connect(state / FILE_NAME) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    assert "schema version 2, and 1 is the one known here" in line_for(state)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_file_when_damaged_then_one_line(state: Path, damage: str) -> None:
    file = OffsetsFile(state / FILE_NAME, MIB)
    file.write(commit(TopicPartition("t", number), number, note="x" * 100) for number in range(500))
    file.close()
    content = (state / FILE_NAME).read_bytes()
    middle = len(content) // 2
    damaged = (
        content[:middle] if damage == "cut" else content[:middle] + b"\xff" * 4096 + content[middle + 4096 :]
    )
    (state / FILE_NAME).write_bytes(damaged)
    line_for(state)


def test_file_when_another_has_it_open_then_one_line_and_free_after_that(state: Path) -> None:
    first = OffsetsFile(state / FILE_NAME, MIB)
    assert "database is locked" in line_for(state)
    first.close()
    assert kept(state) == {ORDERS: 5}


def test_state_when_it_is_no_folder_then_an_os_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="state"):
        OffsetStore(tmp_path / "state", MIB)
