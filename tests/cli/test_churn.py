"""Commands on logs that retention, compaction and DeleteRecords have changed, or change meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.logs import flip, json_lines, run, segments, write_log
from kafkafmt import FileRecords
from kafkafmt.jobs.verify import FileCheck, check_logs
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes
from kafkafmt.log.listing import Listing
from kafkafmt.types import TopicPartition
from log.samples import batch, batches, name, put_segment

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log directory with segments 0, 10 and 20 in batches of 5, with their indexes."""
    return write_log(tmp_path / "logs" / "orders-0", 6, records=5, segment_bytes=600).parent


def delete_records(directory: Path, offset: int) -> None:
    (directory / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes({ORDERS: offset}))


def shown(*arguments: Any) -> list[int]:
    result = run("inspect", "--records", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [row["offset"] for row in json_lines(result.stdout)]


def summary(*arguments: Any) -> dict[str, Any]:
    (found,) = json_lines(run("inspect", "--summary", "--json", *arguments).stdout)
    return dict(found)


def findings(result: Any) -> list[str]:
    return [row["message"] for check in json_lines(result.stdout) for row in check["findings"]]


# Records below the log start offset


@pytest.mark.parametrize("start", [0, 3, 5, 12, 29, 30])
def test_records_when_deleted_then_are_shown_and_counted_only_if_asked_for(log: Path, start: int) -> None:
    delete_records(log, start)
    assert shown(log) == shown(log / "orders-0") == list(range(start, 30))
    assert shown(log, "--from-segment-start") == list(range(30))
    for deep in ((), ("--deep",)):
        assert summary(log, *deep)["records"] == 30 - start
        assert summary(log, *deep, "--from-segment-start")["records"] == 30
    told = run("inspect", log).stderr
    assert (f"below the log start offset {start}: --from-segment-start shows them" in told) == (start >= 5)


def test_records_when_deleted_then_are_not_in_parquet(log: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    delete_records(log, 13)
    assert run("inspect", log, "--records", "--parquet", tmp_path / "f.parquet").exit_code == 0
    assert parquet.read_table(tmp_path / "f.parquet")["offset"].to_pylist() == list(range(13, 30))


def test_records_when_deleted_then_verify_reads_them_nevertheless(log: Path) -> None:
    delete_records(log, 13)
    assert sum(row["records"] for row in json_lines(run("verify", log, "--json").stdout)) == 30


def test_checkpoint_when_malformed_then_commands_refuse_with_its_line(log: Path) -> None:
    path = log / LOG_START_OFFSET_CHECKPOINT
    path.write_text("0\n1\norders 0 x\n")
    for command in (("inspect",), ("inspect", "--summary"), ("replay",)):
        result = run(*command, log)
        message = f"kafkafmt: {path}: line 3: expected an offset, found 'x'"
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, message)
    assert shown(log, "--from-segment-start") == list(range(30))


# Segments that overlap


@pytest.fixture
def overlapping(tmp_path: Path) -> Path:
    """As a compaction leaves it that was killed: what was merged is beside what it was merged from."""
    folder = tmp_path / "overlapping" / "orders-0"
    put_segment(folder, 0, batches(0, 30, 5))
    put_segment(folder, 10, batches(10, 20, 5))
    put_segment(folder, 20, batches(20, 35, 5))
    return folder.parent


def test_offsets_when_segments_overlap_then_are_shown_and_counted_once(overlapping: Path) -> None:
    assert shown(overlapping) == list(range(35))
    assert shown(overlapping, "--offsets", "12:32") == list(range(12, 32))
    found = summary(overlapping)
    assert (found["records"], found["overlapping_segments"]) == (35, 2)
    assert (
        "2 segments with offsets of others, counted once" in run("inspect", "--summary", overlapping).stderr
    )
    told = run("inspect", overlapping).stderr
    assert f"left out: {overlapping / 'orders-0' / name(10)}: 2 batches below offset 30" in told


def test_offsets_when_segments_are_named_in_another_order_then_none_is_left_out(log: Path) -> None:
    paths = segments(log)
    assert sorted(shown(*reversed(paths))) == list(range(30))


@pytest.fixture
def stale_end(tmp_path: Path) -> Path:
    """Another one: the last segments are stale, and end before the merged one."""
    folder = tmp_path / "stale" / "orders-0"
    put_segment(folder, 0, batches(0, 30, 5))
    put_segment(folder, 10, batches(10, 20, 5))
    put_segment(folder, 20, batches(20, 25, 5))
    return folder.parent


@pytest.mark.parametrize("command", ["replay", "table"])
def test_overlap_when_last_segment_is_stale_then_all_records_are_read_and_it_is_told(
    stale_end: Path, tmp_path: Path, command: str
) -> None:
    pytest.importorskip("rocksdict")
    line = "orders-0: 2 segments with offsets of others, read once: kafkafmt verify tells which"
    result = run(command, stale_end, tmp_path / "one")
    assert (result.exit_code, result.stderr.splitlines()[-1:]) == (0, [line])
    (summary,) = json_lines(run(command, stale_end, tmp_path / "other", "--json").stdout)
    assert summary["records"] == 30
    assert summary["overlapping_segments"] == [{"topic": "orders", "partition": 0, "segments": 2}]


def test_overlap_when_mirrored_then_all_records_are_there_and_it_is_told(
    stale_end: Path, tmp_path: Path
) -> None:
    result = run("mirror", stale_end, tmp_path / "mirrored", "--once")
    assert result.exit_code == 0, result.stderr
    assert "segments have offsets of segments before them: each offset is read once" in result.stderr
    assert shown(tmp_path / "mirrored") == list(range(30))


def test_overlap_when_verified_then_is_a_finding(overlapping: Path) -> None:
    result = run("verify", overlapping, "--json")
    assert findings(result) == [
        f"offsets {span} are in {name(0)} as well" for span in ("10 to 19", "20 to 29")
    ]
    assert result.exit_code == 1
    told = run("verify", overlapping)
    assert f"finding: {overlapping / 'orders-0' / name(10)}: overlap: offsets 10 to 19 are in" in told.stderr
    assert told.stdout.splitlines()[-1] == (
        "3 files, 11 batches, 55 records, "
        f"{sum(path.stat().st_size for path in segments(overlapping)):,} bytes: "
        "0 damaged ranges, 2 findings, 0 notes"
    )


# What verify finds beside damage


def test_gap_between_segments_when_verified_then_is_a_note(log: Path) -> None:
    segments(log)[1].unlink()
    result = run("verify", log, "--json")
    notes = [row["notes"] for row in json_lines(result.stdout)]
    assert [[row["kind"] for row in rows] for rows in notes] == [[], ["gap"]] + [[]] * (len(notes) - 2)
    assert notes[1][0]["message"].endswith("are in no segment")
    assert result.exit_code == 0


@pytest.mark.parametrize("hurt_from", [0, -1])
def test_segment_when_damaged_to_its_end_then_no_gap_is_noted_after_it(log: Path, hurt_from: int) -> None:
    path = segments(log)[1]
    data = path.read_bytes()
    hurt_from %= len(data)
    path.write_bytes(data[:hurt_from] + bytes(byte ^ 1 for byte in data[hurt_from:]))
    result = run("verify", log, "--json")
    rows = [row for row in json_lines(result.stdout) if "notes" in row]
    assert [row["notes"] for row in rows] == [[]] * len(rows)
    assert len(rows[1]["damage"]) == 1


def test_segment_of_no_bytes_when_not_the_last_then_is_a_note_and_its_index_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    put_segment(folder, 0, batches(0, 10, 5), index=[], time_index=[])
    put_segment(folder, 10, [], index=[(4, 200)], time_index=[])
    put_segment(folder, 20, batches(20, 30, 5), index=[], time_index=[])
    result = run("verify", tmp_path, "--json")
    checks = json_lines(result.stdout)
    assert [row["kind"] for row in checks[1]["notes"]] == ["empty segment"]
    assert checks[1]["findings"][0]["message"] == ".index: entry 0: position 200 is past the last batch"
    assert [row["message"] for row in checks[2]["notes"]] == ["offsets 10 to 19 are in no segment"]
    assert result.exit_code == 1


def write_indexed(tmp_path: Path) -> Path:
    """A closed segment of batches of 1 record with an index entry every few batches, and an active one."""
    from kafkafmt.log import PartitionLogWriter

    with PartitionLogWriter(tmp_path / "orders-0", segment_bytes=20_000, index_interval_bytes=1000) as writer:
        for offset in range(120):
            writer.append(batch(offset))
    return tmp_path


def edit(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize(
    ("suffix", "position", "data", "message"),
    [
        (".index", 4, b"\0\0\0\5", "entry 0: expected a batch that begins there"),
        (".index", 0, b"\0\0\0\0", "entry 0: expected a batch that begins there"),
        (".index", 8, b"\0\0\0\0", "entry 1: expected it to be above the one before it"),
        (".timeindex", 7, b"\1", "entry 0: expected 17"),
        (".timeindex", 14, b"\0", "entry 1: expected it to be above the one before it"),
    ],
)
def test_index_when_an_entry_is_wrong_then_is_a_finding(
    tmp_path: Path, suffix: str, position: int, data: bytes, message: str
) -> None:
    log = write_indexed(tmp_path)
    assert run("verify", log).exit_code == 0
    edit(segments(log)[0].with_suffix(suffix), position, data)
    result = run("verify", log, "--json")
    (found,) = findings(result)
    assert found.startswith(f"{suffix}: {message}")
    assert result.exit_code == 1


def test_index_when_missing_or_cut_then_is_a_finding_unless_the_log_has_none(tmp_path: Path) -> None:
    log = write_indexed(tmp_path)
    index = segments(log)[0].with_suffix(".index")
    index.write_bytes(index.read_bytes()[:-3])
    assert findings(run("verify", log, "--json"))[0].startswith(".index: expected entries of 8 bytes")
    index.unlink()
    assert findings(run("verify", log, "--json")) == [".index: missing"]
    for path in log.rglob("*.index"):
        path.unlink()
    assert run("verify", log).exit_code == 0


def test_index_when_of_the_active_segment_then_may_be_preallocated_and_unfinished(tmp_path: Path) -> None:
    log = write_indexed(tmp_path)
    for suffix in (".index", ".timeindex"):
        path = segments(log)[-1].with_suffix(suffix)
        path.write_bytes(path.read_bytes() + b"\0\0\0\x7f" + bytes(10_000))
    assert run("verify", log).exit_code == 0


def test_index_when_it_cannot_be_read_then_its_segment_fails_and_all_are_checked(tmp_path: Path) -> None:
    log = write_indexed(tmp_path)
    index = segments(log)[0].with_suffix(".index")
    index.unlink()
    index.symlink_to(index)
    result = run("verify", log, "--json")
    checks = json_lines(result.stdout)
    assert [row["status"] for row in checks] == ["failed"] + ["ok"] * (len(segments(log)) - 1)
    assert checks[0]["error"] == f"{index}: {os.strerror(errno.ELOOP)}"
    assert sum(row["records"] for row in checks) == 120
    assert result.exit_code == 1


def test_partition_when_deleted_while_others_are_verified_then_is_gone(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, count = Listing.find, len(segments(log))

    def deleting(*arguments: Any) -> Any:
        found = find(*arguments)
        shutil.rmtree(log / "orders-0")
        return found

    monkeypatch.setattr(Listing, "find", deleting)
    result = run("verify", log, "--json")
    assert [row["status"] for row in json_lines(result.stdout)] == ["gone"] * count
    assert result.exit_code == 0


def test_totals_when_in_json_then_are_on_standard_error(log: Path) -> None:
    result = run("verify", log, "--json")
    assert all("path" in row for row in json_lines(result.stdout))
    assert "6 batches, 30 records" in result.stderr


def test_checks_of_many_logs_when_compared_then_each_log_alone_counts() -> None:
    def check(path: str, last_offset: int | None, status: Any = "ok") -> FileCheck:
        return FileCheck(path, "t", 0, status, last_offset=last_offset)

    checks = [
        check(f"s3://b/t-0/{name(0)}", 9),
        check(f"s3://b/t-1/{name(5)}", 9),
        check(f"s3://b/t-1/{name(10)}", None, "gone"),
        check(f"s3://b/t-1/{name(30)}", 40),
        check("s3://b/t-1/other", 40),
        check(f"s3://b/t-0/{name(8)}", 12),
    ]
    found = list(check_logs(checks))
    assert [len(one.findings) for one in found] == [0, 0, 0, 0, 0, 1]
    assert [one.notes for one in found] == [[]] * 6


# Segments that vanish between listing and opening


@pytest.mark.parametrize(
    "command",
    [
        ("verify",),
        ("verify", "--json"),
        ("inspect", "--summary"),
        ("inspect", "--records", "--json"),
        ("inspect", "--parquet", "f.parquet"),
    ],
)
def test_segment_when_deleted_after_it_was_listed_then_is_told_as_gone_and_the_rest_is_read(
    log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    gone = segments(log)[0]
    find = Listing.find

    def churning(*arguments: Any) -> Any:
        found = find(*arguments)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Listing, "find", churning)
    monkeypatch.chdir(tmp_path)
    result = run(*command, log)
    assert result.exit_code == 0, result.output
    is_told = "gone: " in result.stderr or '"status": "gone"' in result.stdout
    assert is_told
    assert "damage:" not in result.stderr


# Logs that end within a batch


@pytest.fixture
def cut(log: Path) -> tuple[Path, int, int]:
    """A log whose last batch is cut off: the segment, the position of that batch, and the bytes that are left."""
    path = segments(log)[-1]
    with FileRecords(path) as records:
        position = list(records.batches())[-1].position
    os.truncate(path, path.stat().st_size - 7)
    return path, position, path.stat().st_size - position


@pytest.mark.parametrize("command", ["replay", "table"])
def test_log_when_cut_in_its_last_batch_then_the_summary_says_what_was_not_read(
    log: Path, cut: tuple[Path, int, int], tmp_path: Path, command: str
) -> None:
    pytest.importorskip("rocksdict")
    path, position, size = cut
    line = (
        f"not read: orders-0: {size} bytes from position {position} of {path} on: "
        "a partial batch, which was cut off or is being written"
    )
    result = run(command, log, tmp_path / "one")
    assert (result.exit_code, result.stderr.splitlines()[-1:]) == (0, [line])
    (summary,) = json_lines(run(command, log, tmp_path / "other", "--json").stdout)
    assert summary["records"] == 25
    assert summary["unread_tails"] == [
        {"topic": "orders", "partition": 0, "path": str(path), "position": position, "size_in_bytes": size}
    ]


def test_offsets_when_deleted_between_two_runs_of_a_table_then_the_summary_names_them(
    log: Path, tmp_path: Path
) -> None:
    pytest.importorskip("rocksdict")
    table = ("table", log, tmp_path / "orders.parquet", "--state", tmp_path / "state", "--force")
    assert "gone" not in run(*table).stderr
    folder = write_log(tmp_path / "more" / "orders-0", 12, records=5, segment_bytes=600)
    shutil.rmtree(log / "orders-0")
    folder.rename(log / "orders-0")
    starts = [int(path.stem) for path in segments(log)]
    start = next(offset for offset in starts if offset > 40)
    for path in list((log / "orders-0").iterdir()):
        if path.stem.isdecimal() and int(path.stem) < start:
            path.unlink()
    result = run(*table)
    line = f"gone: orders-0: offsets 30 to {start - 1}, deleted before they were read"
    assert (result.exit_code, result.stderr.splitlines()[-1:]) == (0, [line])
    (summary,) = json_lines(run(*table, "--json").stdout)
    assert (summary["records"], summary["gone"], summary["deleted_partitions"]) == (0, [], [])


@pytest.mark.parametrize("end", [b"", bytes(5000)])
def test_log_when_it_ends_with_a_batch_or_zeros_then_nothing_is_said(
    log: Path, tmp_path: Path, end: bytes
) -> None:
    with segments(log)[-1].open("ab") as file:
        file.write(end)
    assert "not read" not in run("replay", log, tmp_path / "out").stderr


@pytest.mark.parametrize("options", [(), ("--by-time",)])
def test_deleted_records_when_replayed_then_are_left_out_unless_asked_for(
    log: Path, options: tuple[str, ...]
) -> None:
    delete_records(log, 13)
    for start, asked in ((13, ()), (0, ("--from-segment-start",))):
        rows = json_lines(run("replay", log, *options, *asked).stdout)
        assert [row["offset"] for row in rows] == list(range(start, 30))


def test_deleted_records_when_tabled_then_are_left_out_unless_asked_for(log: Path, tmp_path: Path) -> None:
    parquet, target = pytest.importorskip("pyarrow.parquet"), tmp_path / "t.parquet"
    pytest.importorskip("rocksdict")
    delete_records(log, 13)
    state = ("--state", tmp_path / "state")
    assert run("table", log, target, *state).exit_code == 0
    assert sorted(parquet.read_table(target)["offset"].to_pylist()) == list(range(13, 30))
    refused = run("table", log, target, "--from-segment-start")
    assert (refused.exit_code, "already exists: --force replaces it" in refused.stderr) == (2, True)
    other = run("table", log, target, *state, "--from-segment-start", "--force")
    assert (other.exit_code, "is the state of a table with from_segment_start False" in other.stderr) == (
        2,
        True,
    )
    assert run("table", log, target, "--from-segment-start", "--force").exit_code == 0
    assert sorted(parquet.read_table(target)["offset"].to_pylist()) == list(range(30))


def test_deleted_records_when_mirrored_then_are_left_out_unless_asked_for(log: Path, tmp_path: Path) -> None:
    delete_records(log, 13)
    for start, asked in ((13, ()), (0, ("--from-segment-start",))):
        target = tmp_path / f"from-{start}"
        result = run("mirror", log, target, "--once", *asked)
        assert result.exit_code == 0, result.stderr
        assert shown(target) == list(range(start, 30))
    refused = run("mirror", "kafka://localhost:1/orders", tmp_path / "x", "--from-segment-start")
    assert (refused.exit_code, "--from-segment-start needs a folder as source" in refused.stderr) == (2, True)


def test_deleted_records_when_verified_by_inspect_then_are_read(log: Path) -> None:
    delete_records(log, 13)
    result = run("inspect", "--verify", log, "--json")
    assert result.exit_code == 0, result.stderr
    assert sum(row["records"] for row in json_lines(result.stdout)) == 30


# Damage that is left out


@pytest.mark.parametrize(
    ("command", "earlier"),
    [
        (("replay",), "stop"),
        (("table",), "stop"),
        (("mirror", "--once"), "stop"),
        (("convert", "--codec", "zstd", "--jobs", 1), None),
    ],
)
def test_damage_when_met_then_on_corrupt_has_one_name_and_status_in_all_commands(
    log: Path, tmp_path: Path, command: tuple[object, ...], earlier: str | None
) -> None:
    pytest.importorskip("rocksdict")
    path = segments(log)[0]
    flip(path, path.stat().st_size - 1)
    name, *options = command
    answers = {"fail": 1, "skip": 0, "stop": 1 if earlier else 2}
    for number, (answer, status) in enumerate(answers.items()):
        result = run(name, log, tmp_path / str(number), *options, "--on-corrupt", answer)
        assert result.exit_code == status, result.stderr
    assert run(name, log, tmp_path / "default", *options).exit_code == 1
    assert "[fail|skip]" in run(name, "--help-all").output


# Files that are there


def test_parquet_file_when_it_is_there_then_is_replaced_with_force_alone(log: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "f.parquet"
    path.write_bytes(b"of someone else")
    result = run("inspect", log, "--records", "--parquet", path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"kafkafmt: {path}: already exists: --force replaces it\n",
    )
    assert path.read_bytes() == b"of someone else"
    assert run("inspect", log, "--records", "--parquet", path, "--force").exit_code == 0
    assert parquet.read_metadata(path).num_rows == 30


def test_json_when_of_a_check_then_has_findings_and_notes(log: Path) -> None:
    row = json.loads(run("verify", log, "--json").stdout.splitlines()[0])
    assert {"findings", "notes", "damage", "status"} <= row.keys()
