"""`Scan.tail`: what is added to a scanned source, each record once, as it comes."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

import kafkafmt as kf
from file_systems import CountingHandler, far
from kafkafmt.log import PartitionLogWriter
from kafkafmt.log.log_snapshot import LogSnapshot
from kafkafmt.log.overlaps import SegmentEnds
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.scanning.log_source import LogFollower
from log.samples import batch, malformed_marker, marker, put_segment, transactional
from storage.view_counting import opened_views, put_tiered_segment


def add(path: Path, *batches: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(batches))


def offsets_of(batches: object) -> list[int]:
    return [offset for rows in batches for offset in rows["offset"].to_pylist()]


def is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    return any(link.exists() and link.samefile(path) for link in Path("/proc/self/fd").iterdir())


def test_tail_when_a_log_grows_and_rolls_then_has_each_record_once_after_those_of_the_scan(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    scan = kf.scan(tmp_path)
    scan.ranges()
    add(path, batch(5, 5))
    tail = scan.tail()
    assert offsets_of([next(tail)]) == list(range(5, 10))
    add(path, batch(10, 5))
    assert offsets_of([next(tail)]) == list(range(10, 15))
    add(path, batch(15, 5)[:70])  # a broker is writing it
    second = put_segment(tmp_path / "orders-1", 0, [batch(0, 2)])
    assert next(tail).select(["partition", "offset"]).to_pylist() == [
        {"partition": 1, "offset": offset} for offset in range(2)
    ]
    add(path, batch(15, 5)[70:])
    put_segment(tmp_path / "orders-0", 20, [batch(20, 5)])
    add(second, batch(2, 1))
    found = [next(tail) for _ in range(3)]
    assert offsets_of(found) == [*range(15, 25), 2]
    assert offsets_of(scan.to_batches()) == list(range(5))


def test_tail_when_of_a_part_of_a_scan_then_has_no_other_partitions(tmp_path: Path) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    other = put_segment(tmp_path / "orders-1", 0, [batch(0, 5)])
    tail = kf.scan(tmp_path).within({("orders", 0): (0, 5)}).tail(seconds=0)
    put_segment(tmp_path / "orders-2", 0, [batch(0, 5)])
    add(path, batch(5, 5))
    add(other, batch(5, 5))
    assert [(set(rows["partition"].to_pylist()), rows.num_rows) for rows in tail] == [({0}, 5)]


def test_tail_when_of_a_part_of_a_scan_then_looks_at_no_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    follow = LogFollower.follow

    def noting(self: LogFollower, log: LogSnapshot, *, is_committed: bool) -> object:
        looked_at.append(str(log))
        return follow(self, log, is_committed=is_committed)

    monkeypatch.setattr(LogFollower, "follow", noting)
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    put_segment(tmp_path / "orders-1", 0, [batch(0, 5)])
    tail = kf.scan(tmp_path).within({("orders", 0): (0, 5)}).tail(seconds=0)
    add(path, batch(5, 5))
    assert offsets_of(tail) == list(range(5, 10))
    assert looked_at == ["orders-0"]


def test_tail_when_it_looks_again_then_keeps_the_ends_of_segments_of_its_logs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(SegmentEnds, "keep", lambda self, folders: kept.append(folders))
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    put_segment(tmp_path / "orders-1", 0, [batch(0, 5)])
    assert offsets_of(kf.scan(tmp_path).within({("orders", 1): (0, 5)}).tail(seconds=0)) == []
    assert kept == [{tmp_path / "orders-1"}]


def test_tail_when_of_tiered_storage_then_reads_it_through_one_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opened_views(monkeypatch)
    scan = kf.scan(put_tiered_segment(tmp_path))
    assert offsets_of(scan.to_batches()) == list(range(5))
    assert len(opened) == 1
    assert offsets_of(scan.tail(seconds=0.1, poll_seconds=0.01)) == []
    assert len(opened) == 2


def test_tail_when_its_time_is_over_then_has_read_what_is_there_and_ends(tmp_path: Path) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    tail = kf.scan(tmp_path, columns=["offset"]).tail(seconds=0)
    assert offsets_of(tail) == []
    scan = kf.scan(tmp_path, columns=["offset"])
    scan.ranges()
    add(path, batch(5, 5))
    assert offsets_of(scan.tail(seconds=0)) == list(range(5, 10))
    assert offsets_of(scan.tail(seconds=0.01, poll_seconds=0.001)) == list(range(5, 10))


def test_tail_when_it_has_its_rows_then_ends(tmp_path: Path) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    scan = kf.scan(tmp_path, columns=["offset"])
    scan.ranges()
    add(path, batch(5, 5), batch(10, 5))
    assert offsets_of(scan.tail(rows=7)) == list(range(5, 12))
    assert offsets_of(scan.tail(rows=0)) == []


def test_tail_when_closed_while_it_waits_then_ends(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    found: list[int] = []
    with kf.scan(tmp_path).tail(poll_seconds=3600) as tail:
        reader = Thread(target=lambda: found.extend(offsets_of(tail)), daemon=True)
        reader.start()
    reader.join(60)
    assert not reader.is_alive()
    assert found == []


def test_tail_when_closed_between_batches_then_closes_the_files_that_it_reads(tmp_path: Path) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    scan = kf.scan(tmp_path, batch_bytes=1)
    scan.ranges()
    add(path, batch(5, 5), batch(10, 5))
    with scan.tail() as tail:
        next(tail)
        assert is_open(path)
    assert not is_open(path)
    with pytest.raises(StopIteration):
        next(tail)


def test_tail_when_committed_records_are_wanted_then_waits_for_the_ends_of_transactions(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 1)])
    scan = kf.scan(tmp_path, isolation="read_committed", columns=["offset"])
    tail, behind = scan.tail(), scan.tail(seconds=0)
    add(path, transactional(1, 7, 2), batch(3), transactional(4, 8))
    assert offsets_of(behind) == []
    add(path, marker(5, 7, commit=False))
    assert offsets_of([next(tail)]) == [3]
    add(path, marker(6, 8, commit=True), batch(7))
    assert offsets_of([next(tail)]) == [4, 7]


def test_tail_when_a_transaction_is_open_from_below_the_log_start_then_begins_there(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 50), transactional(50, 7, 50)])
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 80\n")
    scan = kf.scan(tmp_path, isolation="read_committed", columns=["offset"])
    assert scan.ranges() == {("orders", 0): (80, 80)}
    assert offsets_of(scan.to_batches()) == []
    assert offsets_of(scan.tail(seconds=0)) == []


def test_tail_when_a_marker_is_malformed_then_it_is_damage_that_is_raised_or_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    position = path.stat().st_size
    tails = {
        on_corrupt: kf.scan(tmp_path, isolation="read_committed", on_corrupt=on_corrupt).tail(seconds=0)
        for on_corrupt in ("fail", "skip")
    }
    add(path, batch(5, 5), transactional(10, 7, 5), malformed_marker(15, 7))
    with pytest.raises(kf.InvalidRecordError, match="control record") as raised:
        next(tails["fail"])
    place = position + len(batch(5, 5)) + len(transactional(10, 7, 5))
    assert (raised.value.path, raised.value.position, raised.value.base_offset) == (str(path), place, 15)
    assert offsets_of(tails["skip"]) == list(range(5, 10))
    (message,) = caplog.messages
    assert message.startswith("passed over a marker, whose transaction stays open: ")
    assert f"position {place}" in message


def test_tail_when_values_are_decoded_then_has_the_schema_of_the_scan(tmp_path: Path) -> None:
    builder = kf.RecordBatchBuilder()
    builder.append(0, None, b'{"id": 1}')
    path = put_segment(tmp_path / "orders-0", 0, [builder.build()])
    scan = kf.scan(tmp_path, decode="json")
    tail = scan.tail()
    builder = kf.RecordBatchBuilder(base_offset=1)
    builder.append(0, None, b'{"id": 2}')
    add(path, builder.build())
    rows = next(tail)
    assert rows.schema == scan.schema
    assert rows["value"].to_pylist() == [{"id": 2}]


def test_tail_when_records_are_deleted_before_they_are_read_then_one_line_says_so(tmp_path: Path) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    first, second = kf.scan(tmp_path).tail(), kf.scan(tmp_path).tail()
    assert offsets_of(kf.scan(tmp_path).to_batches()) == list(range(5))
    (tmp_path / "orders-0" / f"{0:020}.log").unlink()
    put_segment(tmp_path / "orders-0", 8, [batch(8, 5)])
    with pytest.raises(
        DataLossError, match="partition orders-0: expected offset 5, found the log to begin at 8; a new"
    ):
        next(first)
    (tmp_path / "orders-0").rename(tmp_path / "users-0")
    with pytest.raises(DataLossError, match="partition orders-0: expected offset 5, found no such partition"):
        next(second)


@pytest.mark.parametrize(
    ("arguments", "limits", "message"),
    [
        ({"offsets": (0, 3)}, {}, "tail: expected offsets and timestamps without an end"),
        ({"timestamps": (None, 3)}, {}, "tail: expected offsets and timestamps without an end"),
        ({"offsets": (7, None)}, {}, "tail: partition orders-0 ends at 5, before its start 7"),
        ({}, {"rows": -1}, "tail: expected rows and seconds of 0 or more"),
        ({}, {"poll_seconds": 0}, "tail: expected rows and seconds of 0 or more, and a pause longer than 0"),
    ],
)
def test_tail_when_arguments_are_wrong_then_one_line_says_so(
    tmp_path: Path, arguments: dict[str, object], limits: dict[str, object], message: str
) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 5)])
    with pytest.raises(kf.ScanError, match=message):
        kf.scan(tmp_path, **arguments).tail(**limits)


def test_tail_when_a_log_is_long_then_reads_only_what_is_new(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path / "orders-0") as writer:
        for first in range(0, 2000, 20):
            writer.append(batch(first, 20, size=1024))
    handler = CountingHandler()
    scan = kf.scan(far(handler, tmp_path), columns=["offset"])
    tail = scan.tail()
    path = tmp_path / "orders-0" / f"{0:020}.log"
    add(path, batch(2000, 20))
    assert offsets_of([next(tail)]) == list(range(2000, 2020))
    handler.reads.clear()
    add(path, batch(2020, 20))
    assert offsets_of([next(tail)]) == list(range(2020, 2040))
    assert sum(size for _, size in handler.reads) < path.stat().st_size // 4
