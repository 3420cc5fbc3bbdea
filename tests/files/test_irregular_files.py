"""FIFOs, sockets, devices and folders where files are expected: nothing waits for them, nothing is written to them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkafmt as kf
from cli.logs import run, write_log
from kafkafmt._util.files import NotRegularFileError, open_regular, read_regular, replace_file
from kafkafmt.log import LogAppender, PartitionLog, PartitionLogWriter, remove_stale_temporaries
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config

RECORDS = 120
LAST = "00000000000000000090"
FIRST = "00000000000000000000"
# Files of a log directory that is read: what none of them may do is to stop a reader. The error names those that a
# reader cannot do without.
NEEDED = ("topics.ini", "log-start-offset-checkpoint")
PASSED_OVER = (
    "meta.properties",
    "cleaner-offset-checkpoint",
    "orders-0/partition.metadata",
    "orders-0/leader-epoch-checkpoint",
    f"orders-0/{FIRST}.index",
    f"orders-0/{FIRST}.timeindex",
    f"orders-0/{FIRST}.txnindex",
    f"orders-0/{LAST}.index",
    f"orders-0/{LAST}.snapshot",
    f"orders-0/.{FIRST}.log.0123456789abcdef.tmp",
)
Reader = Callable[[Path, Path], tuple[object, ...]]
READERS: dict[str, Reader] = {
    "inspect": lambda source, out: ("inspect", source / "orders-0", "--records", "--json"),
    "summary": lambda source, out: ("inspect", "--summary", source, "--json"),
    "verify": lambda source, out: ("verify", source),
    "convert": lambda source, out: ("convert", source, out / "c", "--codec", "zstd", "--jobs", 1),
    "mirror": lambda source, out: ("mirror", source, out / "m", "--once"),
    "replay": lambda source, out: ("replay", source, out / "r"),
    "table": lambda source, out: ("table", source, out / "t.parquet"),
}


def make_fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_log(tmp_path / "source" / "orders-0")
    assert (tmp_path / "source" / "orders-0" / f"{LAST}.log").exists()
    return tmp_path / "source"


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device"])
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC]
)
def test_open_when_the_path_is_no_file_then_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, flags: int
) -> None:
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to(os.devnull)
    else:
        monkeypatch.chdir(tmp_path)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(NotRegularFileError, match=f"expected a regular file, found a {kind}|FIFO") as caught:
        open_regular(path, flags)
    assert caught.value.filename == str(path)
    assert len(list(Path("/dev/fd").iterdir())) <= before


def test_open_when_the_file_is_not_there_then_the_error_is_that_of_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    os.close(open_regular(tmp_path / "new", os.O_WRONLY | os.O_CREAT))
    assert read_regular(tmp_path / "new") == b""


@pytest.mark.parametrize("left", ["fifo", "link", "file"])
def test_file_when_replaced_then_what_a_killed_writer_left_is_not_written_to(
    tmp_path: Path, left: str
) -> None:
    temporary, other = tmp_path / ".x.tmp", tmp_path / "other"
    other.write_bytes(b"other")
    if left == "fifo":
        os.mkfifo(temporary)
    elif left == "link":
        temporary.symlink_to(other)
    else:
        temporary.write_bytes(b"longer than what is written")
    replace_file(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert other.read_bytes() == b"other"
    assert not os.path.lexists(temporary)


def test_file_when_it_cannot_be_replaced_then_is_as_it_was_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "x", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_records_when_the_segment_is_a_fifo_then_are_refused_at_once(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "orders-0" / f"{FIRST}.log")
    with pytest.raises(NotRegularFileError, match="found a FIFO"):
        kf.FileRecords(path)
    result = run("inspect", path)
    assert result.exit_code == 2
    assert f"{path}: expected a regular file, found a FIFO" in result.stderr


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PASSED_OVER)
def test_reader_when_a_file_that_it_can_do_without_is_a_fifo_then_reads_all(
    source: Path, tmp_path: Path, name: str, reader: str
) -> None:
    make_fifo(source / name)
    result = run(*READERS[reader](source, tmp_path))
    assert result.exit_code in {0, 1} if reader == "verify" else result.exit_code == 0, result.stderr
    if reader == "inspect":
        assert result.stdout.count("\n") == RECORDS


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", NEEDED)
def test_reader_when_a_file_that_it_needs_is_a_fifo_then_says_so_in_one_line(
    source: Path, tmp_path: Path, name: str, reader: str
) -> None:
    path = make_fifo(source / name)
    result = run(*READERS[reader](source, tmp_path))
    if result.exit_code == 0:  # it does not ask for that file
        assert (name, reader) != ("topics.ini", "mirror")
        return
    assert "expected a regular file" in result.stderr
    assert str(path) in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", [f"{LAST}.index", f"{LAST}.timeindex", f"{LAST}.txnindex", ".lock"])
def test_appender_when_a_file_of_the_log_is_a_fifo_then_is_refused_and_the_log_is_as_it_was(
    source: Path, name: str
) -> None:
    folder = source / "orders-0"
    make_fifo(folder / name)
    end = PartitionLog(folder).end_offset
    with pytest.raises(NotRegularFileError, match="found a FIFO"):
        LogAppender(folder)
    assert PartitionLog(folder).end_offset == end
    (folder / name).unlink()
    LogAppender(folder).close()


def test_appender_when_its_snapshot_is_a_fifo_then_producers_are_refused(source: Path) -> None:
    path = make_fifo(source / "orders-0" / f"{LAST}.snapshot")
    with LogAppender(source / "orders-0") as log, pytest.raises(NotRegularFileError, match=str(path)):
        _ = log.producers


def test_temporary_when_it_is_a_fifo_then_does_not_stop_a_writer(source: Path) -> None:
    path = make_fifo(source / "orders-0" / f".{FIRST}.log.0123456789abcdef.tmp")
    assert remove_stale_temporaries(path.parent) == []
    PartitionLogWriter(path.parent).commit()
    assert path.exists()


def test_topics_when_the_temporary_is_a_fifo_then_are_written(tmp_path: Path) -> None:
    make_fifo(tmp_path / ".topics.ini.tmp")
    set_topic_config(tmp_path, "orders", TopicConfig(1))
    assert "orders" in (tmp_path / "topics.ini").read_text()


@pytest.mark.parametrize("name", ["out/orders-0/.00000000000000000000.converted.lock", "out/.lock"])
def test_convert_when_a_lock_is_a_fifo_then_says_so(source: Path, tmp_path: Path, name: str) -> None:
    make_fifo(tmp_path / name)
    result = run("convert", source, tmp_path / "out", "--codec", "zstd", "--jobs", 1)
    assert result.exit_code in {1, 2}
    assert "expected a regular file, found a FIFO" in result.stderr


@pytest.mark.parametrize("name", ["table.json", "store/kafkafmt-store.json"])
def test_table_when_a_file_of_its_state_is_a_fifo_then_says_so(
    source: Path, tmp_path: Path, name: str
) -> None:
    make_fifo(tmp_path / "state" / name)
    result = run("table", source, tmp_path / "t.parquet", "--state", tmp_path / "state")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_sink_when_a_file_of_its_own_is_a_fifo_then_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from kafkafmt.spark.sink.commit import recover
    from kafkafmt.spark.sink.manifest import StreamBatch

    make_fifo(tmp_path / ".kafkafmt-lock")
    make_fifo(tmp_path / ".kafkafmt-stream-query")
    with pytest.raises(NotRegularFileError, match="found a FIFO"):
        recover(tmp_path)
    with pytest.raises(NotRegularFileError, match="found a FIFO"):
        StreamBatch("query", 1).is_committed(tmp_path)
