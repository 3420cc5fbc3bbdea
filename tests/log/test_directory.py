"""Log directories and partitions: what is listed, and reading across segments while a broker deletes some."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import LogDirectory, PartitionLog, Segment
from log.samples import DAY, batch, batches, name, offsets, put_segment


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """Three segments with gaps: offsets 10 to 29, 40 to 59, 70 to 74; the second one based at 30."""
    folder = tmp_path / "page-views-3"
    put_segment(folder, 10, batches(10, 30, 5))
    put_segment(folder, 30, batches(40, 60, 5))
    put_segment(folder, 70, [batch(70, 5)])
    return folder


def test_directory_lists_partitions_sorted_and_passes_over_all_else(tmp_path: Path) -> None:
    for folder in ("b-10", "b-9", "a.b-0", "__consumer_offsets-7"):
        put_segment(tmp_path / folder, 0, [])
    for folder in ("b-1.0123abcd-delete", "b-2.0123abcd-future", "b-3.0123abcd-stray", "b-04", "b", "-1"):
        put_segment(tmp_path / folder, 0, [])
    put_segment(tmp_path / f"b-{2**31}", 0, [])
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "notes-1").write_text("a file")
    (tmp_path / "itself-0").symlink_to("itself-0")
    (tmp_path / "nowhere-0").symlink_to("nothing")
    (tmp_path / "other-1").mkdir()
    (tmp_path / "other-1" / "12.log").touch()
    (tmp_path / "recovery-point-offset-checkpoint").touch()

    directory = LogDirectory(tmp_path)

    assert directory.topics() == ["__consumer_offsets", "a.b", "b"]
    assert directory.partitions() == [("__consumer_offsets", 7), ("a.b", 0), ("b", 9), ("b", 10)]
    assert directory.partitions("b") == [kf.TopicPartition("b", 9), kf.TopicPartition("b", 10)]


def test_directory_of_one_partition_lists_it(log_folder: Path) -> None:
    directory = LogDirectory(log_folder)
    assert directory.partitions() == [("page-views", 3)]
    assert directory.partition(("page-views", 3)).path == log_folder


def test_directory_without_partitions_lists_none(tmp_path: Path) -> None:
    assert LogDirectory(tmp_path).topics() == []
    assert LogDirectory(tmp_path).partitions() == []


@pytest.mark.parametrize("kind", [LogDirectory, PartitionLog])
def test_folder_that_is_missing_or_a_file_is_refused(kind: type, tmp_path: Path) -> None:
    (tmp_path / "a-0").touch()
    with pytest.raises(NotADirectoryError, match="a-0"):
        kind(tmp_path / "a-0")
    with pytest.raises(FileNotFoundError, match="b-0"):
        kind(tmp_path / "b-0")


def test_partition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()
    with pytest.raises(FileNotFoundError, match="no segments of partition a-0"):
        LogDirectory(tmp_path).partition(("a", 0))


def test_partition_folder_without_segments_is_an_empty_log(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path)
    assert log.topic_partition is None
    assert log.segments() == []
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert list(log.records()) == []
    assert log.find_offset(0) is None
    assert log.find_timestamp(0) is None
    assert log.aborted_transactions() == []


def test_log_with_an_empty_segment_ends_where_that_begins(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 5))
    put_segment(tmp_path, 5, [])
    log = PartitionLog(tmp_path)
    assert log.end_offset == 5
    assert offsets(log.records()) == [0, 1, 2, 3, 4]
    assert log.find_offset(5) is None


def test_segments_are_listed_by_base_offset_with_the_last_one_active(log_folder: Path) -> None:
    for other in (
        name(10, ".index"),
        name(10, ".snapshot"),
        name(80, ".log.deleted"),
        "leader-epoch-checkpoint",
    ):
        (log_folder / other).touch()
    (log_folder / f".{name(90)}.0123456789abcdef.tmp").touch()
    (log_folder / f"{2**63:020d}.log").touch()

    log = PartitionLog(log_folder)

    assert [(one.base_offset, one.is_active) for one in log.segments()] == [
        (10, False),
        (30, False),
        (70, True),
    ]
    assert log.segments()[0].topic_partition == log.topic_partition == ("page-views", 3)
    assert (log.start_offset, log.end_offset) == (10, 75)


def test_segment_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"12\.log"):
        Segment(tmp_path / "12.log")


def test_segment_survives_pickling(log_folder: Path) -> None:
    segment = PartitionLog(log_folder).segments()[-1]
    assert (str(segment), segment.size_in_bytes) == (str(segment.path), segment.path.stat().st_size)
    copy = pickle.loads(pickle.dumps(segment))
    assert copy == segment
    assert copy.is_active


def test_records_come_in_order_across_segments(log_folder: Path) -> None:
    log = PartitionLog(log_folder)
    everything = [*range(10, 30), *range(40, 60), *range(70, 75)]
    assert offsets(log.records()) == everything
    assert [one.base_offset for one in log.batches()] == [10, 15, 20, 25, 40, 45, 50, 55, 70]
    assert [len(run) for run in log.runs()] == [4, 4, 1]


def test_records_between_offsets_are_exact_and_batches_whole(log_folder: Path) -> None:
    log = PartitionLog(log_folder)
    everything = [*range(10, 30), *range(40, 60), *range(70, 75)]
    for start in range(8, 78):
        for end in range(start, 78):
            expected = [offset for offset in everything if start <= offset < end]
            assert offsets(log.records(start, end)) == expected
            touched = list(log.batches(start, end))
            assert {one.base_offset for one in touched} >= {offset - offset % 5 for offset in expected}
            assert all(one.base_offset < end and one.last_offset >= start for one in touched)


def test_wrappers_between_offsets_are_whole(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 20, 5, magic=1, codec=kf.Codec.GZIP))
    log = PartitionLog(tmp_path)
    assert offsets(log.records(7, 12)) == [7, 8, 9, 10, 11]
    assert [one.last_offset for one in log.batches(7, 12)] == [9, 14]
    assert [one.last_offset for one in log.batches(5, 10)] == [9]


def test_offset_is_found_in_its_batch_or_the_next_one_across_segments(log_folder: Path) -> None:
    log = PartitionLog(log_folder)
    segments = log.segments()
    size = len(batch(10, 5))
    assert log.find_offset(0) == (segments[0], 0)
    assert log.find_offset(17) == (segments[0], size)
    assert log.find_offset(30) == (segments[1], 0)
    assert log.find_offset(44) == (segments[1], 0)
    assert log.find_offset(60) == (segments[2], 0)  # a gap at the end of the second segment
    assert log.find_offset(74) == (segments[2], 0)
    assert log.find_offset(75) is None


def test_timestamp_is_found_across_segments(log_folder: Path) -> None:
    log = PartitionLog(log_folder)
    assert log.find_timestamp(0) == (DAY + 10, 10)
    assert log.find_timestamp(DAY + 29) == (DAY + 29, 29)
    assert log.find_timestamp(DAY + 30) == (DAY + 40, 40)
    assert log.find_timestamp(DAY + 74) == (DAY + 74, 74)
    assert log.find_timestamp(DAY + 75) is None
    with pytest.raises(ValueError, match="-1"):
        log.find_timestamp(-1)


def test_segment_before_the_last_with_a_torn_end_is_damage(log_folder: Path) -> None:
    path = log_folder / name(30)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + batch(60)[:-1])
    records = PartitionLog(log_folder).records()
    with pytest.raises(kf.CorruptRecordError) as caught:
        offsets(records)
    assert caught.value.path == str(path)
    assert caught.value.position == whole
    assert offsets(PartitionLog(log_folder).records(end_offset=30)) == list(range(10, 30))


def test_damaged_record_is_told_with_its_file(log_folder: Path) -> None:
    path = log_folder / name(30)
    data = bytearray(path.read_bytes())
    data[-50] ^= 1  # in the last value
    path.write_bytes(data)
    with pytest.raises(kf.CorruptRecordError, match="CRC") as caught:
        offsets(PartitionLog(log_folder).records())
    assert caught.value.path == str(path)
    assert (caught.value.base_offset, caught.value.last_offset) == (55, 59)
    assert len(offsets(PartitionLog(log_folder).records(verify=False))) == 45


def test_segments_deleted_while_they_are_read_are_an_error_that_says_from_where(log_folder: Path) -> None:
    records = PartitionLog(log_folder).records()
    assert next(records).offset == 10
    (log_folder / name(10)).unlink()
    (log_folder / name(30)).unlink()
    with pytest.raises(FileNotFoundError, match=r"offsets from 30 on .* starts at 70"):
        list(records)


def test_log_deleted_whole_while_it_is_read_is_an_error(log_folder: Path) -> None:
    records = PartitionLog(log_folder).records()
    assert next(records).offset == 10
    for path in log_folder.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="no segment is left"):
        list(records)


def test_segment_deleted_before_anything_was_read_is_left_out(log_folder: Path) -> None:
    class RetentionStrikes(PartitionLog):
        def segments(self) -> list[Segment]:
            listed = super().segments()
            (self.path / name(10)).unlink(missing_ok=True)
            return listed

    assert offsets(RetentionStrikes(log_folder).records()) == [*range(40, 60), *range(70, 75)]
    put_segment(log_folder, 10, batches(10, 30, 5))
    assert RetentionStrikes(log_folder).find_timestamp(0) == (DAY + 40, 40)


def test_partition_deleted_while_the_directory_is_listed_is_left_out(
    log_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(log_folder.parent / "other-0", 0, [])
    scandir = os.scandir

    def vanishing(path: str | Path) -> object:
        if Path(path) == log_folder:
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert LogDirectory(log_folder.parent).partitions() == [("other", 0)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_folder_that_may_not_be_read_is_refused_or_told_and_left_out(log_folder: Path) -> None:
    put_segment(log_folder.parent / "denied-0", 0, [])
    (log_folder.parent / "denied-0").chmod(0)
    directory = LogDirectory(log_folder.parent)
    with pytest.raises(PermissionError, match="denied-0"):
        directory.partitions()
    errors: list[PermissionError] = []
    assert list(directory.folders(on_denied=errors.append).values()) == [log_folder]
    assert [error.filename for error in errors] == [str(log_folder.parent / "denied-0")]


def test_segments_merged_by_compaction_while_they_are_read_lose_nothing(log_folder: Path) -> None:
    records = PartitionLog(log_folder).records()
    assert next(records).offset == 10
    merged = (log_folder / name(10)).read_bytes() + (log_folder / name(30)).read_bytes()
    (log_folder / name(30)).unlink()
    (log_folder / "swap").write_bytes(merged)
    (log_folder / "swap").replace(log_folder / name(10))
    assert offsets(records) == [*range(11, 30), *range(40, 60), *range(70, 75)]


def test_segment_that_is_listed_and_cannot_be_opened_is_an_error(
    log_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Segment, **_: object) -> None:
        raise FileNotFoundError(2, "gone", str(self.path))

    monkeypatch.setattr(Segment, "open", refuse)
    with pytest.raises(FileNotFoundError, match="cannot be opened"):
        list(PartitionLog(log_folder).records())
    with pytest.raises(FileNotFoundError, match="gone"):
        PartitionLog(log_folder).find_offset(10)
