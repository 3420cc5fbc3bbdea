"""Committed offsets and generations on disk: through SIGKILL, damage and other people's files, within their limit."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kafkafmt.serve.groups import OffsetsFileError, OffsetStore
from kafkafmt.serve.groups.generation import Generation, GenerationMember
from kafkafmt.serve.groups.offsets import CommittedOffset, OffsetCommit, OffsetsFile
from kafkafmt.serve.groups.store import FILE_NAME
from kafkafmt.serve.options import GroupOptions
from kafkafmt.types import TopicPartition

MIB = 1 << 20
SYNCHRONOUS_FULL = 2
OPTIONS = GroupOptions(max_offsets_bytes=MIB, max_membership_bytes=MIB)
TABLES = ("generations", "members", "protocols")
FIRST_SCHEMA = """
    CREATE TABLE committed_offsets (
        group_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        partition INTEGER NOT NULL,
        committed_offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        commit_timestamp_ms INTEGER NOT NULL,
        PRIMARY KEY (group_id, topic, partition)
    ) WITHOUT ROWID
;
PRAGMA application_id = 0x6B666D74;
PRAGMA user_version = 1;
"""
ORDERS, VIEWS = TopicPartition("orders", 0), TopicPartition("views", 1)


def commit(partition: TopicPartition, offset: int, group: str = "g", note: str = "") -> OffsetCommit:
    return OffsetCommit(group, partition, CommittedOffset(offset, 3, note, 1_700_000_000_000))


def member(member_id: str, instance_id: str | None = None, assignment: bytes = b"\0p0") -> GenerationMember:
    protocols = {"sticky": b"", "range": b"\0\xff"}
    return GenerationMember(
        member_id, instance_id, "a client", "192.0.2.1", 6.0, 300.5, protocols, assignment
    )


def generation(number: int, *members: GenerationMember) -> Generation:
    return Generation(number, "consumer", "range", members[0].member_id, members)


def with_store(state: Path | None, scenario: Callable[[OffsetStore], Awaitable[None]]) -> None:
    async def scene() -> None:
        store = OffsetStore(state, OPTIONS)
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


def generations(state: Path) -> dict[str, Generation]:
    file = OffsetsFile(state / FILE_NAME, MIB)
    try:
        return dict(file.generations())
    finally:
        file.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with the offset 5 of the group `g` in it, and its generation 7."""

    async def scenario(store: OffsetStore) -> None:
        await store.commit([commit(ORDERS, 5)])
        await store.save_generation("g", generation(7, member("m1"), member("m2", "i2")))

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
        await store.delete_groups(["h"])
        assert (await store.has_group("g"), await store.has_group("h")) == (True, False)

    with_store(tmp_path if on_disk else None, scenario)


def test_commits_when_they_come_together_then_share_transactions(tmp_path: Path) -> None:
    statements: list[str] = []

    async def scenario(store: OffsetStore) -> None:
        store._file._connection.set_trace_callback(statements.append)
        commits = (store.commit([commit(TopicPartition("t", n), n)]) for n in range(100))
        keeps = (store.save_generation(str(n), generation(1, member("m1"))) for n in range(100))
        await asyncio.gather(*commits, *keeps)
        assert len(await store.offsets("g", None)) == 100

    with_store(tmp_path, scenario)
    assert 1 <= statements.count("COMMIT") <= 2
    assert len(generations(tmp_path)) == 100


def test_generations_when_kept_then_the_last_of_each_group_is_there_as_it_was(tmp_path: Path) -> None:
    last = generation(3, member("zoë\0m", assignment=b""), member("m1", "i1"), member("a"))

    async def scenario(store: OffsetStore) -> None:
        await store.save_generation("h", generation(1, member("m9")))
        await store.save_generation("g", generation(2, member("m1"), member("m2")))
        await asyncio.gather(
            store.save_generation("g", generation(2, member("m3"))), store.save_generation("g", last)
        )
        await store.save_generation("gone", generation(1, member("m1")))
        await store.save_generation("gone", None)
        await store.save_generation("never", None)

    with_store(tmp_path, scenario)
    found = generations(tmp_path)
    assert found == {"h": generation(1, member("m9")), "g": last}
    assert [list(each.protocols) for each in found["g"].members] == [["sticky", "range"]] * 3
    file = OffsetsFile(tmp_path / FILE_NAME, MIB)
    counts = [file._connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES]
    file.close()
    assert counts == [2, 4, 8]


def test_generations_when_there_is_no_folder_then_none_are_kept() -> None:
    async def scenario(store: OffsetStore) -> None:
        await store.save_generation("g", generation(1, member("m1")))
        assert list(store.generations()) == []

    with_store(None, scenario)


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
        last = generations(state)["g"]
        assert last.generation_id - 1 in (told, told + 1)
        assert [each.assignment for each in last.members] == [b"%d" % (last.generation_id - 1)] * 3


def test_file_when_open_then_each_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    """No kill of a process shows that: SQLite flushes nothing of its log in its other modes."""
    file = OffsetsFile(tmp_path / FILE_NAME, MIB)
    assert file._pragma("synchronous") == SYNCHRONOUS_FULL
    file.close()


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


def test_commits_when_one_has_no_room_then_those_that_came_with_it_are_kept(tmp_path: Path) -> None:
    async def scenario(store: OffsetStore) -> None:
        large = [commit(TopicPartition("t", number), 1, "h", "x" * 4000) for number in range(1000)]
        await store.commit([commit(ORDERS, 5)])
        first, refused, last, generation_kept = await asyncio.gather(
            store.commit([commit(ORDERS, 6)]),
            store.commit(large),
            store.commit([commit(ORDERS, 7), commit(VIEWS, 1)]),
            store.save_generation("g", generation(1, member("m1"))),
            return_exceptions=True,
        )
        assert [first, last, generation_kept] == [None] * 3
        assert isinstance(refused, sqlite3.OperationalError)

    with_store(tmp_path, scenario)
    assert kept(tmp_path) == {ORDERS: 7, VIEWS: 1}
    assert kept(tmp_path, "h") == {}
    assert list(generations(tmp_path)) == ["g"]


def fill_with_offsets(file: OffsetsFile) -> int:
    """Commit offsets while there is room. Return their count."""
    for number in range(10_000):
        try:
            file.write([commit(TopicPartition("t", number), 1, note="x" * 4000)])
        except sqlite3.OperationalError:
            return number
    raise AssertionError("there is always room")


def large_generation(number: int) -> Generation:
    return generation(number, member("m", assignment=bytes(60_000)))


def test_generations_when_offsets_are_committed_without_end_then_have_their_room(tmp_path: Path) -> None:
    file = OffsetsFile(tmp_path / FILE_NAME, 256 * 1024, 256 * 1024)
    before = fill_with_offsets(file)
    for group in ("g", "h", "i"):
        file.write([], {group: large_generation(1)})
        file.write([], {group: large_generation(2)})
    file.close()
    file = OffsetsFile(tmp_path / FILE_NAME, 256 * 1024, 256 * 1024)
    assert [group for group, _ in file.generations()] == ["g", "h", "i"]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.write([commit(TopicPartition("t", before), 1, note="x" * 4000)])
    file.write([commit(TopicPartition("t", 0), 2, note="y" * 4000)])  # in the place of another one
    file.write([], {"g": None, "h": None, "i": None})
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.write([commit(TopicPartition("t", before), 1, note="x" * 4000)])
    file.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 512 * 1024


def test_offsets_when_generations_came_first_then_have_their_room(tmp_path: Path) -> None:
    without, after = (OffsetsFile(tmp_path / name, 256 * 1024, 256 * 1024) for name in ("a", "b"))
    for group in ("g", "h", "i"):
        after.write([], {group: large_generation(1)})
    after.close()
    after = OffsetsFile(tmp_path / "b", 256 * 1024, 256 * 1024)
    assert abs(fill_with_offsets(after) - fill_with_offsets(without)) <= 1
    for file in (without, after):
        file.close()


# Files that are not fit


def line_for(state: Path) -> str:
    async def scenario(store: OffsetStore) -> None:
        list(store.generations())

    with pytest.raises(OffsetsFileError) as caught:
        with_store(state, scenario)
    line = str(caught.value)
    assert line.startswith(f"{state / FILE_NAME}: expected a file of committed offsets")
    assert "\n" not in line
    return line


def test_file_when_it_is_none_of_sqlite_then_one_line_and_it_stays(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"offsets, as one may write them down\n" * 100)
    assert "file is not a database" in line_for(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes().startswith(b"offsets, as")


def test_file_when_a_folder_is_in_its_place_then_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert "found a folder" in line_for(tmp_path)


def test_file_when_it_is_of_another_application_then_one_line_and_it_stays(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("CREATE TABLE notes (note TEXT)")
        other.execute("PRAGMA application_id = 77")
    other.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    assert "a database of another application, application_id 0x4d" in line_for(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_file_when_of_a_later_schema_then_one_line(state: Path) -> None:
    with sqlite3.connect(state / FILE_NAME) as file:
        file.execute("PRAGMA user_version = 3")
    file.close()
    assert "schema version 3, the latest known one is 2" in line_for(state)


def test_file_when_of_the_first_schema_then_its_offsets_are_there_and_generations_can_be(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as first:
        first.executescript(FIRST_SCHEMA)
        first.execute("INSERT INTO committed_offsets VALUES ('g', 'orders', 0, 5, 3, '', 1)")
    first.close()
    assert generations(tmp_path) == {}

    async def scenario(store: OffsetStore) -> None:
        await store.save_generation("g", generation(1, member("m1")))

    with_store(tmp_path, scenario)
    assert generations(tmp_path) == {"g": generation(1, member("m1"))}
    assert kept(tmp_path) == {ORDERS: 5}


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (
            "UPDATE generations SET leader_id = 'm9'",
            "generation 7 of group 'g': a leader that is not a member",
        ),
        ("UPDATE generations SET protocol_name = 'mine'", "a member without the protocol of the others"),
        ("UPDATE members SET member_id = 'm1'", "two members with the same id"),
        ("UPDATE members SET instance_id = 'i2'", "two members with the same id"),
        ("DELETE FROM members", "a leader that is not a member"),
        ("UPDATE members SET session_timeout_ms = 1 << 40", "damage: CHECK constraint failed in members"),
        ("UPDATE members SET assignment = 'text'", "damage: CHECK constraint failed in members"),
        ("UPDATE generations SET generation_id = 'x'", "damage: CHECK constraint failed in generations"),
        ("UPDATE generations SET group_id = CAST(X'FF' AS TEXT)", "Could not decode to UTF-8"),
        ("DROP TABLE protocols", "tables that are not those of schema version 2"),
        ("ALTER TABLE members ADD COLUMN note", "tables that are not those of schema version 2"),
    ],
)
def test_file_when_its_generations_are_nonsense_then_one_line(
    state: Path, statement: str, found: str
) -> None:
    with sqlite3.connect(state / FILE_NAME) as file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute(statement)
    file.close()
    assert found in line_for(state)


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
        OffsetStore(tmp_path / "state", OPTIONS)
