"""Records on a `pyarrow.fs.FileSystem`: the same as in a local file, for few requests."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kafkafmt as kf
from file_systems import CountingHandler
from kafkafmt.records.remote import ReadAhead
from records.samples import EVERY_KIND, Sink, as_rows

pa = pytest.importorskip("pyarrow")
fs = pytest.importorskip("pyarrow.fs")

LOGS = Path(__file__).parents[1] / "data" / "logs"
MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND)
    return str(path)


@pytest.fixture
def handler() -> CountingHandler:
    return CountingHandler()


@pytest.fixture
def counted(handler: CountingHandler) -> fs.PyFileSystem:
    return fs.PyFileSystem(handler)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 MiB in batches of 10 KiB."""
    return write_batches(tmp_path_factory.mktemp("large") / "segment", 40 * 100, 10 * 1024)


@pytest.fixture(scope="module")
def large_batches(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 MiB in batches of 4 MiB."""
    return write_batches(tmp_path_factory.mktemp("large") / "segment", 10, 4 * MIB)


def write_batches(path: Path, count: int, size: int) -> str:
    with path.open("wb") as file:
        for offset in range(count):
            builder = kf.RecordBatchBuilder(base_offset=offset)
            builder.append(0, b"", bytes(size))
            file.write(builder.build())
    return str(path)


def local(path: object, *arguments: object, **named: object) -> kf.RemoteRecords:
    return kf.RemoteRecords(fs.LocalFileSystem(), str(path), *arguments, **named)


def outcome(records: kf.Records) -> tuple[list[object], tuple[object, ...] | None]:
    """All records, and what the error says that ended them."""
    rows = []
    try:
        rows.extend(as_rows([record])[0] for record in records.records())
    except kf.KafkaFormatError as error:
        return rows, (type(error), error.message, error.position, error.path)
    return rows, None


@pytest.mark.parametrize(
    "segment", sorted(LOGS.glob("*/*.log")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_remote_records_when_real_segment_then_as_file_records(segment: Path) -> None:
    with kf.FileRecords(segment) as expected, local(segment) as records:
        assert records.topic_partition == expected.topic_partition
        assert records.size_in_bytes == expected.size_in_bytes
        assert (records.index() == expected.index()).all()
        assert as_rows(records.records()) == as_rows(expected.records())
        assert records.to_arrow().equals(expected.to_arrow())


def test_remote_records_when_damaged_or_cut_off_then_as_file_records(tmp_path: Path) -> None:
    data = (LOGS / "none-0" / "00000000000000000000.log").read_bytes()
    path = tmp_path / "segment"
    for position in range(0, len(data), 97):
        for damaged in (data[:position], data[:position] + b"\xff" + data[position + 1 :]):
            path.write_bytes(damaged)
            with kf.FileRecords(path) as expected, local(path, uri=str(path)) as records:
                assert outcome(records) == outcome(expected)


def test_remote_records_when_damaged_then_go_on_where_file_records_do(tmp_path: Path) -> None:
    data = bytearray((LOGS / "none-0" / "00000000000000000000.log").read_bytes())
    data[8:12] = b"\x7f\xff\xff\xff"
    path = tmp_path / "segment"
    path.write_bytes(data)
    error = kf.CorruptRecordError("", position=0)
    with kf.FileRecords(path) as expected, local(path) as records:
        assert 0 < records.position_after(error) == expected.position_after(error) < len(data)


@pytest.mark.parametrize("run_bytes", [1, 1000, MIB])
def test_runs_when_from_any_batch_then_as_file_records(path: str, run_bytes: int) -> None:
    starts = [int(row["position"]) for row in kf.MemoryRecords(EVERY_KIND).index()]
    for start in starts:
        with kf.FileRecords(path, start) as expected, local(path, start) as records:
            found = [run.index.tolist() for run in records.runs(run_bytes=run_bytes)]
            assert found == [run.index.tolist() for run in expected.runs(run_bytes=run_bytes)]


def test_range_when_no_range_then_refused(path: str) -> None:
    for start, end in ((-1, None), (5, 4)):
        with pytest.raises(ValueError, match="expected 0 <= start <= end"):
            local(path, start, end)
    with local(path, len(EVERY_KIND) + 5) as records:
        assert list(records.batches()) == []


def test_index_when_small_batches_then_a_request_for_eight_mebibytes(
    large: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    with kf.RemoteRecords(counted, large) as records:
        assert len(records.index()) == 4000
        size = records.size_in_bytes
    assert sum(taken for _, taken in handler.reads) == size  # nothing twice
    assert len(handler.reads) <= 3 + -(-size // (8 * MIB))


def test_runs_when_small_then_no_request_each(
    large: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    with kf.RemoteRecords(counted, large) as records:
        assert sum(len(run) for run in records.runs(run_bytes=20 * 1024)) == 4000
        assert len(handler.reads) <= 7 + -(-records.size_in_bytes // (8 * MIB))


def test_range_when_read_then_nothing_behind_it_is_asked_for(
    large: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    with kf.FileRecords(large) as whole:
        start, end = whole.index()["position"][[100, 200]].tolist()
    with kf.RemoteRecords(counted, large, start, end) as records:
        assert len(records.index()) == 100
    assert min(position for position, _ in handler.reads) == start
    assert max(position + size for position, size in handler.reads) == end


def test_find_batch_start_when_batches_are_large_then_little_is_read(
    large_batches: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    with kf.FileRecords(large_batches) as expected:
        start = expected.find_batch_start(35 * MIB)
        assert start in expected.index()["position"]
        assert 35 * MIB <= start < 39.1 * MIB
    with kf.RemoteRecords(counted, large_batches) as records:
        assert records.find_batch_start(35 * MIB) == start
    assert sum(size for _, size in handler.reads) <= 10 * 64 * 1024


def test_records_when_read_by_many_threads_then_each_gets_all(path: str) -> None:
    expected = as_rows(kf.MemoryRecords(EVERY_KIND).records())
    with local(path) as records, ThreadPoolExecutor(4) as threads:
        for rows in threads.map(lambda _: as_rows(records.records()), range(8)):
            assert rows == expected


def test_remote_records_when_pickled_then_opened_again(path: str) -> None:
    partition = kf.TopicPartition("t", 1)
    with local(path, 0, 500, uri="far://away", topic_partition=partition) as records:
        copy = pickle.loads(pickle.dumps(records))
        with copy:
            assert repr(copy) == repr(records) == "RemoteRecords('far://away', start=0, end=500)"
            assert copy.topic_partition == partition
            assert as_rows(copy.records()) == as_rows(records.records())


def test_remote_records_when_missing_then_error_names_the_uri(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        local(tmp_path / "nothing", uri="far://away")
    assert error.value.filename == "far://away"


def test_remote_records_when_the_file_system_says_it_at_length_then_one_line_names_the_uri(path: str) -> None:
    class Talkative(CountingHandler):
        def open_input_file(self, path: str) -> pa.NativeFile:
            raise pa.ArrowException("Unknown error: no token\nSee also")

    with pytest.raises(OSError, match=r"cannot be opened: Unknown error: no token: 'far://away'$") as error:
        kf.RemoteRecords(fs.PyFileSystem(Talkative()), path, uri="far://away")
    assert error.value.filename == "far://away"


def test_remote_records_when_damaged_then_error_names_the_uri(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(EVERY_KIND[:-1] + b"?")
    with local(path) as records, pytest.raises(kf.CorruptRecordError) as error:
        list(records.records())
    assert error.value.path == f"local://{path}"


@pytest.mark.thread_unsafe
def test_remote_records_when_file_became_shorter_then_end_of_file_error(path: str) -> None:
    with local(path, uri="far://away") as records:
        Path(path).write_bytes(EVERY_KIND[:100])
        with pytest.raises(
            EOFError, match=r"far://away: file truncated: expected \d+ bytes at position 0"
        ) as error:
            list(records.records())
    assert isinstance(error.value, OSError)


def test_read_at_when_behind_the_end_then_is_empty(path: str) -> None:
    size = len(EVERY_KIND)
    with local(path) as records, kf.FileRecords(path) as expected:
        for position in (size, size + 1, 2 * size):
            assert bytes(records.read_at(position, 10)) == bytes(expected.read_at(position, 10)) == b""


def test_read_ahead_when_many_records_are_read_in_turn_then_is_bounded(
    large: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    shared, step = ReadAhead(4 * MIB), 256 * 1024
    opened = [kf.RemoteRecords(counted, large, read_ahead=shared) for _ in range(20)]
    with kf.FileRecords(large) as expected:
        for position in range(0, 16 * step, step):
            for records in opened:
                assert records.read_at(position, step) == expected.read_at(position, step)
                assert sum(one._chunk.held_bytes for one in opened) <= 4 * MIB
    assert sum(size for _, size in handler.reads) <= 2 * len(opened) * 16 * step


def test_read_ahead_when_records_are_read_one_after_the_other_then_requests_stay_large(
    large: str, counted: fs.PyFileSystem, handler: CountingHandler
) -> None:
    shared = ReadAhead(32 * MIB)
    opened = [kf.RemoteRecords(counted, large, read_ahead=shared) for _ in range(10)]
    for records in opened:
        assert len(records.index()) == 4000
    size = opened[0].size_in_bytes
    assert sum(taken for _, taken in handler.reads) == 10 * size
    assert len(handler.reads) <= 10 * (3 + -(-size // (8 * MIB)))


def test_read_ahead_when_a_batch_is_larger_then_it_is_not_kept(
    large_batches: str, counted: fs.PyFileSystem
) -> None:
    with kf.RemoteRecords(counted, large_batches, read_ahead=ReadAhead(4 * MIB)) as records:
        for run in records.runs():
            assert len(run) == 1
            assert run.valid().all()
            assert records._chunk.held_bytes <= MIB


def test_remote_records_when_closed_then_refuse_to_read(path: str) -> None:
    with local(path, uri="far://away") as records:
        list(records.batches())
    with pytest.raises(ValueError, match="far://away is closed"):
        list(records.batches())


def test_write_to_when_repeated_then_all_bytes_are_written(path: str) -> None:
    sink = Sink()
    with local(path) as records:
        position = 0
        while position < records.end_position:
            position += records.write_to(sink, position)
        with pytest.raises(ValueError, match="expected a range"):
            records.write_to(sink, position + 1)
    assert bytes(sink.taken) == EVERY_KIND
