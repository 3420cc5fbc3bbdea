"""A fault at each change to a file: run again, the same command ends well, and each record is there exactly once.

A shim in C, preloaded, counts the changes to files under a folder (writes, renames, flushes, removals) and strikes one:
it fails with EIO or ENOSPC, a write after half of its bytes, or the process is killed there. What is left is read by
`reference.py`, which shares no code with the library.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import reference
from cli.logs import write_log
from kafkafmt import Codec
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from kafkafmt.log.writer import PartitionLogWriter
from log.samples import marker, transactional

pytest.importorskip("rocksdict")
pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the shim is preloaded as Linux does it"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.slow,
]

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
_HERE = Path(__file__).parent
_CONTROL = struct.Struct("=qqq")
KILL = 0
KINDS = {"killed": KILL, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
# Of all changes of a command as many are struck where not all are.
_FEW = 5
_NEEDLESS = re.compile(
    r"\.lock|\.kafkafmt-lock|\.kafkafmt-stream-query|topics\.ini|\d{20}\.(log|index|timeindex|txnindex|snapshot|converted)"
    r"|\.kafkafmt-repaired-1|old|removed|leader-epoch-checkpoint|\.kafka_cleanshutdown|recovery-point-offset-checkpoint"
    r"|out\.parquet|orders-\d|partition\.metadata|kafkafmt-mirror-(position|markers)|orders-\d\.[0-9a-f]{32}-stray"
)
Rows = dict[str, list[tuple[int, bytes | None, bytes | None]]]


class Server:
    """Runs jobs with the shim, one at a time."""

    def __init__(self, folder: Path, control: Path, shim: Path) -> None:
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(shim),
            "FAULTS_CONTROL": str(control),
            "FAULTS_FOLDER": str(folder),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(self, arguments: list[str], strike: int = 0, kind: int = KILL) -> tuple[int, str, int]:
        """Run a job; return its status, what it said, and how many changes it came to."""
        self._control[:] = _CONTROL.pack(0, strike, kind)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        changes, _, _ = _CONTROL.unpack(self._control[:])
        return answer["status"], answer["said"], changes

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._control.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where jobs write and faults strike."""
    return tmp_path_factory.mktemp("faults") / "work"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    shim = folder.parent / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, _HERE / "shim.c", "-ldl"], check=True)
    made = Server(folder, folder.parent / "control", shim)
    yield made
    made.close()


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    """Two partitions of several segments, of compressed batches, some keys of which come again."""
    path = folder.parent / "source"
    for number in range(2):
        write_log(path / f"orders-{number}", 6, codec=Codec.GZIP, segment_bytes=700)
        write_topic_id(path / f"orders-{number}", NEW)
    _write_transactions(_transactions(path) / "orders-0")
    set_topic_config(path, "orders", TopicConfig(2, {"segment.bytes": "700"}))
    return path


def rows_under(directory: Path) -> Rows:
    """All records of each partition, in the order in which they stand in its files."""
    found: Rows = {}
    for log in sorted(directory.glob("*-*/*.log")):
        rows = [(row.offset, row.key, row.value) for row in reference.read_rows(log.read_bytes())]
        found.setdefault(log.parent.name, []).extend(rows)
    return found


@dataclass(frozen=True)
class Job:
    """What is run, out of a source into a folder, and what must be there in the end."""

    arguments: Callable[[Path, Path], list[str]]
    check: Callable[[Path, Path], None]
    prepare: Callable[[Path], None] = lambda work: None


def _same(source: Path, work: Path) -> None:
    assert rows_under(work) == rows_under(source)


def _transactions(source: Path) -> Path:
    return source.with_name("transactions")


def _write_transactions(folder: Path) -> None:
    """Transactions that were committed and aborted in turn, the last one aborted, in several segments."""
    data = [
        batch
        for number in range(6)
        for batch in (
            transactional(number * 11, 7, 10),
            marker(number * 11 + 10, 7, commit=number % 2 == 0),
        )
    ]
    with PartitionLogWriter(folder, segment_bytes=700) as writer:
        for batch in data:
            writer.append(batch)


def _same_transactions(source: Path, work: Path) -> None:
    assert _bytes_under(work) == _bytes_under(_transactions(source))


def _committed(source: Path, work: Path) -> None:
    wanted = [
        row for row in rows_under(_transactions(source))["orders-0"] if row[0] % 22 < 10
    ]  # 10 records and a marker each
    assert len(wanted) == 30
    assert rows_under(work)["orders-0"] == wanted


def _bytes_under(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("orders-0/*.log")))


def _put_old_topic(work: Path) -> None:
    """What an earlier run mirrored of the topic before it was created again."""
    for number in range(2):
        write_log(work / f"orders-{number}", 3, codec=Codec.LZ4)
        write_topic_id(work / f"orders-{number}", OLD)


def _restarted(source: Path, work: Path) -> None:
    found = rows_under(work)
    assert {name: found.pop(name) for name in ("orders-0", "orders-1")} == rows_under(source)
    old = source.with_name("old")
    if not old.exists():
        _put_old_topic(old)
    assert {name.partition(".")[0]: rows for name, rows in found.items()} == rows_under(old)
    ids = {name: read_topic_id(work / name) for name in (*found, "orders-0", "orders-1")}
    assert ids == {**dict.fromkeys(found, OLD), "orders-0": NEW, "orders-1": NEW}


def _replayed(source: Path, work: Path) -> None:
    found = [row[1:] for row in rows_under(work / "merged")["orders-0"]]
    assert sorted(map(repr, found)) == sorted(
        repr(row[1:]) for rows in rows_under(source).values() for row in rows
    )
    assert [row[0] for row in rows_under(work / "merged")["orders-0"]] == list(range(len(found)))


def _tabled(source: Path, work: Path) -> None:
    import pyarrow.parquet as pq

    found = {
        (row["partition"], row["key"]): row["value"]
        for row in pq.read_table(work / "out.parquet").to_pylist()
    }
    wanted = {
        (int(name.rpartition("-")[2]), key): value
        for name, rows in rows_under(source).items()
        for _, key, value in rows
    }
    assert found == wanted


def _sunk(source: Path, work: Path) -> None:
    from faults.jobs import SINK_ROWS

    found = rows_under(work)
    for number in range(2):
        assert [(offset, value) for offset, _, value in found[f"orders-{number}"]] == list(
            enumerate(value for partition, value in SINK_ROWS if partition == number)
        )


def _damaged(source: Path) -> Path:
    """The source with damage that loses no record: foreign bytes between batches, wrong and missing indexes."""
    path = source.with_name("damaged")
    if not path.exists():
        shutil.copytree(source, path)
        for folder in path.glob("orders-*"):
            first, *_, last = sorted(folder.glob("*.log"))
            first.write_bytes(first.read_bytes() + b"foreign" * 20)
            last.with_suffix(".index").write_bytes(b"wrong")
            last.with_suffix(".timeindex").unlink()
    return path


def _repaired(source: Path, work: Path) -> None:
    assert rows_under(work / "merged") == rows_under(source)


def _repaired_in_place(source: Path, work: Path) -> None:
    assert rows_under(work) == rows_under(source)
    backups = {path.name for path in work.glob("orders-*/.kafkafmt-repaired-*/old/*.log")}
    first = sorted(_damaged(source).glob("orders-0/*.log"))[0]
    assert first.name in backups


def _put_damaged(source: Path, work: Path) -> None:
    shutil.copytree(_damaged(source), work, dirs_exist_ok=True)


JOBS = {
    "repair": Job(lambda source, work: ["repair", str(_damaged(source)), str(work / "merged")], _repaired),
    "repair in place": Job(
        lambda source, work: ["repair", str(work), "--in-place", "--yes"],
        _repaired_in_place,
        lambda work: _put_damaged(work.parent / "source", work),
    ),
    "mirror": Job(lambda source, work: ["mirror", str(source), str(work), "--once"], _same),
    "convert": Job(
        lambda source, work: ["convert", str(source), str(work), "--codec", "zstd", "--jobs", "1"], _same
    ),
    "convert in processes": Job(
        lambda source, work: ["convert", str(source), str(work), "--codec", "zstd", "--jobs", "2"], _same
    ),
    "convert transactions": Job(
        lambda source, work: ["convert", str(_transactions(source)), str(work), "--jobs", "1"],
        _same_transactions,
    ),
    "mirror transactions": Job(
        lambda source, work: ["mirror", str(_transactions(source)), str(work), "--once"], _same_transactions
    ),
    "mirror committed": Job(
        lambda source, work: [
            *("mirror", str(_transactions(source)), str(work)),
            *("--once", "--isolation", "read_committed"),
        ],
        _committed,
    ),
    "mirror a topic that was created again": Job(
        lambda source, work: ["mirror", str(source), str(work), "--once", "--restart-recreated"],
        _restarted,
        _put_old_topic,
    ),
    "replay": Job(lambda source, work: ["replay", str(source), str(work / "merged")], _replayed),
    "table": Job(lambda source, work: ["table", str(source), str(work / "out.parquet")], _tabled),
    "sink": Job(lambda source, work: ["sink", str(work)], _sunk),
}


def _garbage(work: Path) -> list[str]:
    """What is neither a log nor known to belong there."""
    names = [path.name for path in work.rglob("*")]
    return [name for name in names if name != "merged" and not _NEEDLESS.fullmatch(name)]


def _struck(server: Server, source: Path, work: Path, job: Job, strike: int, kind: int) -> bool:
    """Strike one change, then run the command again, and look at what is there. False: there was no such change."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    job.prepare(work)
    arguments = job.arguments(source, work)
    status, said, changes = server.run(arguments, strike, kind)
    assert "Traceback" not in said, said
    if status == 0:
        job.check(source, work)  # it did without what failed
    if changes < strike:
        return False
    if arguments[0] in ("replay", "repair") and (work / "merged").exists():
        job.check(source, work)  # it is there as a whole, or not at all, and not made again
        return True
    if arguments[0] == "table" and status == 0:
        return True
    status, said, _ = server.run(arguments)
    assert status == 0, said
    job.check(source, work)
    assert _garbage(work) == []
    return True


@pytest.mark.parametrize("name", ["mirror", "convert", "replay", "table", "sink"])
def test_job_when_some_changes_are_struck_then_the_next_run_has_each_record_once(
    server: Server, source: Path, folder: Path, name: str
) -> None:
    job = JOBS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    job.prepare(folder)
    status, said, changes = server.run(job.arguments(source, folder))
    assert status == 0, said
    assert changes > _FEW, "the shim sees nothing"
    for number in range(_FEW):
        strike = 1 + number * (changes - 1) // (_FEW - 1)
        for kind_name, kind in KINDS.items():
            try:
                _struck(server, source, folder, job, strike, kind)
            except AssertionError as error:
                raise AssertionError(f"{kind_name} at change {strike} of {changes}: {error}") from None


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", JOBS)
def test_job_when_each_change_is_struck_then_the_next_run_has_each_record_once(
    server: Server, source: Path, folder: Path, name: str, kind: str
) -> None:
    strike, wrong = 1, []
    while True:
        try:
            if not _struck(server, source, folder, JOBS[name], strike, KINDS[kind]):
                break
        except AssertionError as error:
            wrong.append(f"change {strike}: {str(error)[:2000]}")
        strike += 1
    assert not wrong, f"{len(wrong)} of {strike - 1}: " + "\n".join(wrong[:5])
