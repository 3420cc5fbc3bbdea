"""`kafkafmt inspect`."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from child_processes import started
from cli.logs import (
    command,
    flip,
    growth_mib,
    is_one_line,
    json_lines,
    run,
    run_process,
    segments,
    write_log,
)
from data.real_logs import LOGS, expected
from kafkafmt import Codec, FileRecords, RecordBatchBuilder, TimestampType


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs" / "orders-0")


def test_json_of_a_batch_when_printed_then_has_every_attribute_by_its_name(log: Path) -> None:
    rows = json_lines(run("inspect", log, "--json").stdout)
    batches = [batch for path in segments(log) for batch in FileRecords(path).batches()]
    assert len(rows) == len(batches) == 12
    for row, batch in zip(rows, batches, strict=True):
        assert (row["topic"], row["partition"], row["is_valid"]) == ("orders", 0, True)
        assert row["codec"] == batch.codec.name.lower()
        assert row["timestamp_type"] == batch.timestamp_type.name.lower()
        for name in set(row) - {"path", "topic", "partition", "is_valid", "codec", "timestamp_type"}:
            assert row[name] == getattr(batch, name), name
    assert len(rows[0]) == 24


def test_json_of_records_when_bytes_are_no_text_then_loses_nothing(tmp_path: Path) -> None:
    builder = RecordBatchBuilder()
    builder.append(5, None, b"", [("plain", b"text"), ("null", None), ("bytes", b"\xff\x00")])
    builder.append(6, b"\xfe\xff", "gr\u00fc\u00df".encode(), [("bad\udcff", b"")])
    path = tmp_path / "records.bin"
    path.write_bytes(builder.build())
    first, second = json_lines(run("inspect", path, "--records", "--json").stdout)
    assert (first["key"], first["value"], first["topic"]) == (None, "", None)
    assert first["headers"] == [
        {"key": "plain", "value": "text"},
        {"key": "null", "value": None},
        {"key": "bytes", "value_base64": base64.b64encode(b"\xff\x00").decode()},
    ]
    assert "key" not in second
    assert base64.b64decode(second["key_base64"]) == b"\xfe\xff"
    assert second["value"] == "gr\u00fc\u00df"
    assert base64.b64decode(second["headers"][0]["key_base64"]) == b"bad\xff"


@pytest.mark.parametrize("magic", [0, 1])
def test_json_of_a_wrapper_when_printed_then_has_the_offsets_inside_it(tmp_path: Path, magic: int) -> None:
    builder = RecordBatchBuilder(magic, Codec.GZIP, base_offset=7)
    for i in range(3):
        builder.append(i if magic else -1, None, b"v")
    path = tmp_path / "wrapper.bin"
    path.write_bytes(builder.build())
    (row,) = json_lines(run("inspect", path, "--json").stdout)
    assert (row["base_offset"], row["last_offset"], row["count"], row["codec"]) == (7, 9, 3, "gzip")


def test_table_when_printed_to_a_pipe_then_has_a_line_a_batch(log: Path) -> None:
    found = run_process("inspect", segments(log)[0])
    lines = found.stdout.splitlines()
    assert lines[0] == str(segments(log)[0])
    assert lines[1].split()[:5] == ["position", "offsets", "records", "bytes", "format"]
    assert lines[2].split()[:6] == ["0", "0-9", "10", str(_first_batch_size(log)), "v2", "none"]
    assert found.returncode == 0


def _first_batch_size(log: Path) -> int:
    return next(FileRecords(segments(log)[0]).batches()).size_in_bytes


def test_offsets_and_limit_when_given_then_select_records(log: Path) -> None:
    rows = json_lines(run("inspect", log, "--records", "--json", "--offsets", "15:43").stdout)
    assert [row["offset"] for row in rows] == list(range(15, 43))
    rows = json_lines(run("inspect", log, "--records", "--json", "--offsets", "35:", "--limit", 20).stdout)
    assert [row["offset"] for row in rows] == list(range(35, 55))
    batches = json_lines(run("inspect", log, "--json", "--offsets", ":21").stdout)
    assert [row["base_offset"] for row in batches] == [0, 10, 20]


@pytest.mark.parametrize(("what", "message"), [([], "no batches"), (["--records"], "no records")])
def test_table_when_the_file_is_empty_then_says_so(tmp_path: Path, what: list[str], message: str) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.touch()
    result = run("inspect", path, *what)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{message}\n")


@pytest.mark.parametrize("what", [["--records"], []])
def test_parquet_when_written_then_has_the_rows_of_json(log: Path, tmp_path: Path, what: list[str]) -> None:
    path = tmp_path / "rows.parquet"
    result = run("inspect", log.parent, *what, "--parquet", path)
    assert result.exit_code == 0
    rows = pq.read_table(path).to_pylist()
    wanted = json_lines(run("inspect", log.parent, *what, "--json").stdout)
    for row in rows if what else ():
        row["key"], row["value"] = row["key"].decode(), row["value"].decode()
    assert rows == [{name: row[name] for name in rows[0]} for row in wanted]
    assert set(rows[0]) == set(wanted[0])
    assert list(tmp_path.glob(".*")) == []


def test_parquet_when_no_offset_can_follow_then_the_next_one_is_null(tmp_path: Path) -> None:
    builder = RecordBatchBuilder(base_offset=2**63 - 1)
    builder.append(5, None, b"v")
    path, target = tmp_path / "records.bin", tmp_path / "rows.parquet"
    path.write_bytes(builder.build())
    assert run("inspect", path, "--parquet", target).exit_code == 0
    (row,) = pq.read_table(target).to_pylist()
    assert (row["last_offset"], row["next_offset"]) == (2**63 - 1, None)


def test_parquet_when_a_source_cannot_be_read_then_the_error_names_the_source(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    source, target = segments(log)[0], tmp_path / "rows.parquet"
    monkeypatch.setattr(FileRecords, "read_at", refuse)
    result = run("inspect", source, "--parquet", target)
    assert is_one_line(result.stderr, (f"{source}: Input/output error",))
    assert list(tmp_path.glob("*.parquet*")) == []


def test_pattern_and_folder_and_file_when_given_then_each_file_is_shown_once(log: Path) -> None:
    found = run("inspect", log.parent, log, f"{log}/*.log", segments(log)[0], "--json")
    assert len(json_lines(found.stdout)) == 12


@pytest.mark.parametrize(
    "pattern", ["{orders,users}-0", "**/orders-0/*.log", "**/*.log", "*/", "orders-[0-9]"]
)
def test_pattern_when_relative_then_the_files_that_match_are_shown_under_relative_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    log = write_log(tmp_path / "orders-0")
    (tmp_path / "meta.properties").touch()
    monkeypatch.chdir(tmp_path)
    rows = json_lines(run("inspect", pattern, "--json").stdout)
    assert {row["path"] for row in rows} == {f"orders-0/{path.name}" for path in segments(log)}


def test_files_that_match_a_pattern_when_one_has_no_batch_then_is_refused(log: Path) -> None:
    other = log / "other.bin"
    other.write_bytes(segments(log)[0].read_bytes())
    shown = json_lines(run("inspect", f"{log}/*.bin", "--json").stdout)
    assert {row["path"] for row in shown} == {str(other)}
    (log / "no.bin").write_bytes(bytes(100) + b"x")
    result = run("inspect", f"{log}/*.bin")
    assert is_one_line(result.stderr, (f"{log}/no.bin: no log",))


def test_control_record_when_shown_then_tells_its_type(tmp_path: Path) -> None:
    logs = Path(__file__).parents[1] / "data" / "logs"
    rows = json_lines(run("inspect", logs / "open-transaction-0", "--records", "--json").stdout)
    assert {row["control_type"] for row in rows if row["is_control"]} == {"commit", "abort"}
    assert {row["control_type"] for row in rows if not row["is_control"]} == {None}


def test_log_append_time_when_shown_then_is_named(tmp_path: Path) -> None:
    builder = RecordBatchBuilder(timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=9)
    builder.append(5, None, b"v")
    path = tmp_path / "a.bin"
    path.write_bytes(builder.build())
    assert json_lines(run("inspect", path, "--json").stdout)[0]["timestamp_type"] == "log_append_time"
    assert "log append time" in run("inspect", path).stdout


def test_damage_when_listing_then_is_told_and_what_follows_is_shown(log: Path) -> None:
    path = segments(log)[0]
    batches = list(FileRecords(path).batches())
    flip(path, batches[1].position + 70)
    result = run("inspect", path, "--json")
    assert [row["is_valid"] for row in json_lines(result.stdout)] == [i != 1 for i in range(len(batches))]
    assert f"positions {batches[1].position} to {batches[2].position}" in result.stderr
    assert "offsets 10-19" in result.stderr
    assert result.exit_code == 1
    records = run("inspect", path, "--records", "--json")
    assert {row["offset"] for row in json_lines(records.stdout)}.isdisjoint(range(10, 20))
    assert records.exit_code == 1


def test_length_that_lies_when_listing_then_reading_goes_on_behind_it(log: Path) -> None:
    path = segments(log)[0]
    batches = list(FileRecords(path).batches())
    flip(path, batches[1].position + 9)
    result = run("inspect", path, "--records", "--json")
    assert [row["offset"] for row in json_lines(result.stdout)] == [
        offset for offset in range(len(batches) * 10) if not 10 <= offset < 20
    ]
    assert result.exit_code == 1


def test_verify_when_all_is_well_then_counts(log: Path) -> None:
    result = run("inspect", "--verify", log, "--json")
    rows = json_lines(result.stdout)
    assert sum(row["batches"] for row in rows) == 12
    assert sum(row["records"] for row in rows) == 120
    assert [row["damage"] for row in rows] == [[] for _ in segments(log)]
    assert (rows[0]["base_offset"], rows[-1]["last_offset"]) == (0, 119)
    assert result.exit_code == 0


def test_verify_when_a_batch_is_damaged_then_tells_where_it_starts_and_ends(log: Path) -> None:
    path = segments(log)[0]
    batches = list(FileRecords(path).batches())
    flip(path, batches[1].position + 70)
    result = run("inspect", "--verify", log.parent, "--json")
    (stretch,) = json_lines(result.stdout)[0]["damage"]
    assert (stretch["position"], stretch["end_position"]) == (batches[1].position, batches[2].position)
    assert (stretch["base_offset"], stretch["last_offset"]) == (10, 19)
    assert (stretch["expected_offset"], stretch["next_offset"]) == (10, 20)
    assert stretch["path"] == str(path)
    assert result.exit_code == 1
    told = run("inspect", "--verify", log.parent)
    assert f"{path}: corrupt at positions {batches[1].position} to {batches[2].position}" in told.stderr
    assert told.exit_code == 1


def test_verify_when_records_lie_under_a_crc_that_holds_then_tells(tmp_path: Path) -> None:
    batch = bytearray(one_batch())
    batch[60] = 9  # the count of records
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    path = tmp_path / "lie.bin"
    path.write_bytes(batch)
    result = run("inspect", "--verify", path, "--json")
    assert json_lines(result.stdout)[0]["damage"][0]["kind"] == "invalid"
    assert result.exit_code == 1
    assert run("inspect", path, "--records").exit_code == 1


def one_batch() -> bytes:
    builder = RecordBatchBuilder()
    builder.append(1, b"k", b"v")
    return bytes(builder.build())


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\0\0\0\0\0\0\0\x78\0\0\1\0part"])
def test_tail_when_at_the_end_of_the_last_segment_then_is_no_damage(log: Path, tail: bytes) -> None:
    first, last = segments(log)[0], segments(log)[-1]
    with last.open("ab") as file:
        file.write(tail)
    result = run("inspect", "--verify", log, "--json")
    assert (result.exit_code, json_lines(result.stdout)[-1]["tail_bytes"]) == (0, len(tail))
    assert run("inspect", log, "--json").exit_code == 0
    with first.open("ab") as file:
        file.write(tail)
    assert run("inspect", "--verify", log).exit_code == 1
    assert run("inspect", log, "--json").exit_code == 1


@pytest.mark.parametrize("base_offset", [5, 2**40, 2**63 - 1])
def test_batch_when_its_base_offset_is_damaged_then_is_shown_and_told(
    tmp_path: Path, base_offset: int
) -> None:
    """No CRC covers a base offset."""
    log = write_log(tmp_path / "orders-0", 3, segment_bytes=100_000)
    position = json_lines(run("inspect", log, "--json").stdout)[1]["position"]
    with segments(log)[0].open("r+b") as file:
        file.seek(position)
        file.write(base_offset.to_bytes(8, "big"))
    result = run("inspect", log, "--json")
    assert [row["base_offset"] for row in json_lines(result.stdout)] == [0, base_offset, 20]
    assert result.exit_code == 1
    assert "offsets of a log ascend: expected" in result.stderr
    assert "left out" not in result.stderr
    assert run("inspect", log, "--records").exit_code == 1


def test_reader_that_closes_the_pipe_when_listing_then_ends_quietly_as_by_sigpipe(tmp_path: Path) -> None:
    """Not with 0, which says that there is no damage, and that all was done."""
    log = write_log(tmp_path / "orders-0", 400)
    arguments = command("inspect", log, "--records", "--json")
    with started(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + signal.SIGPIPE


def test_listing_when_the_file_is_large_then_holds_little_of_it(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    builder = RecordBatchBuilder()
    for i in range(100):
        builder.append(i, None, b"v" * 10_000)
    batch = bytes(builder.build())
    with path.open("wb") as file:
        for number in range(64):
            file.write((100 * number).to_bytes(8, "big") + batch[8:])  # 64 MB
    assert growth_mib("inspect", path, "--records", "--offsets", "6399:6400", "--json") < 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["PATH"]),
        (["missing"], ["missing", "no such file or folder"]),
        (["text"], ["text", "no log"]),
        (["empty"], ["empty", "no segments"]),
        (["nothing*"], ["nothing*", "no file matches"]),
        (["orders-0", "--offsets", "7"], ["--offsets", "FIRST:END"]),
        (["orders-0", "--offsets", "7:7"], ["holds no offset"]),
        (["orders-0", "--offsets", f"0:{2**63}"], ["--offsets", f"expected offsets of at most {2**63 - 1}"]),
        (["orders-0", "--limit", "0"], ["--limit"]),
        (["orders-0", "--limit", str(2**63)], ["--limit", f"expected at most {2**63 - 1}", str(2**63)]),
        (["orders-0", "--json", "--parquet", "x"], ["--json and --parquet"]),
        (["orders-0", "--verify", "--records"], ["--verify"]),
        (["orders-0", "--verify", "--from-segment-start"], ["--verify checks whole files"]),
        (["orders-0", "--parquet", "missing/x"], ["missing/x"]),
        (["orders-0", "--wrong"], ["--wrong"]),
    ],
)
def test_bad_input_when_given_then_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("orders-0"), 2)
    Path("text").write_text("not a log, however long it may be\n" * 100)
    Path("empty").mkdir()
    result = run("inspect", *arguments)
    assert is_one_line(result.stderr, words), result.stderr
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_that_may_not_be_read_when_given_then_is_one_line(log: Path) -> None:
    segments(log)[0].chmod(0)
    assert is_one_line(run("inspect", log).stderr)


@pytest.mark.parametrize("name", ["inspect", "verify"])
def test_uri_when_pyarrow_is_missing_then_the_error_tells_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    result = run(name, "s3://bucket/logs")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["s3://bucket/logs", "pip install 'kafkafmt[arrow]'"])


def test_no_arguments_when_run_then_help_names_the_commands() -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    assert "inspect" in result.stdout
    assert "convert" in result.stdout
    for name in ("inspect", "convert"):
        assert f"kafkafmt {name} " in run(name, "--help").stdout
    assert run("--version").stdout.startswith("kafkafmt, version ")


@pytest.mark.parametrize("name", ["transactions-0", "open-transaction-0", "compacted-0", "idempotent-0"])
def test_records_when_in_transactions_then_those_that_a_committed_reader_gets_are_committed(
    name: str,
) -> None:
    """Records after the first open transaction are not aborted, and not read: a reader stops there."""
    rows = json_lines(run("inspect", LOGS / name, "--records", "--json").stdout)
    states = {row["offset"]: row["transaction"] for row in rows if not row["is_control"]}
    first_open = min((offset for offset, state in states.items() if state == "open"), default=2**63)
    for record in expected(name):
        state = states.pop(record.offset)
        if record.offset < first_open:
            assert record.committed == (state in (None, "committed"))
    assert not states
    assert {row["transaction"] for row in rows if row["is_control"]} <= {None}


def test_records_of_one_segment_when_its_folder_is_a_partition_then_the_log_around_it_tells_their_state() -> (
    None
):
    one = segments(LOGS / "transactions-0")[1]
    rows = json_lines(run("inspect", one, "--records", "--json").stdout)
    all_rows = json_lines(run("inspect", LOGS / "transactions-0", "--records", "--json").stdout)
    assert rows == [row for row in all_rows if row["path"] == str(one)]
    table = run("inspect", one, "--records").stdout
    assert table.count("aborted transaction") == [row["transaction"] for row in rows].count("aborted") > 0


def test_records_when_the_folder_is_of_no_partition_then_their_state_is_null_and_this_is_said(
    tmp_path: Path,
) -> None:
    for path in segments(LOGS / "transactions-0")[:2]:
        shutil.copy(path, tmp_path)
    result = run("inspect", tmp_path, "--records", "--json")
    assert {row["transaction"] for row in json_lines(result.stdout)} == {None}
    assert result.stderr.count("transactions not known: ") == 1
    assert result.exit_code == 0


def test_parquet_of_records_when_in_transactions_then_has_their_state(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    run("inspect", LOGS / "open-transaction-0", "--records", "--parquet", path)
    states = pq.read_table(path).column("transaction").to_pylist()
    assert {state: states.count(state) for state in set(states)} == {
        "committed": 5,
        "aborted": 5,
        "open": 6,
        None: 6,
    }


def write_offsets(folder: Path) -> Path:
    """A partition of `__consumer_offsets` with a commit, a type that is not known, a cut value and a tombstone."""
    key = b"\0\1\0\1g\0\1t\0\0\0\7"
    value = b"\0\3" + (5).to_bytes(8, "big") + b"\xff\xff\xff\xff\0\0" + (1000).to_bytes(8, "big")
    builder = RecordBatchBuilder()
    for pair in ((key, value), (b"\0\x63", b"\0\0"), (key, value[:-1]), (key, None)):
        builder.append(5, *pair)
    folder.mkdir(parents=True)
    (folder / "00000000000000000000.log").write_bytes(builder.build())
    return folder


def test_json_of_records_when_the_topic_is_internal_then_keys_and_values_are_decoded(tmp_path: Path) -> None:
    folder = write_offsets(tmp_path / "__consumer_offsets-7")
    commit, unknown, cut, tombstone = json_lines(run("inspect", folder, "--records", "--json").stdout)
    key = {"type": 1, "name": "OffsetCommitKey", "data": {"group": "g", "topic": "t", "partition": 7}}
    data = {"offset": 5, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 1000}
    assert (commit["key"], commit["value"]) == (
        key,
        {"name": "OffsetCommitValue", "version": 3, "data": data},
    )
    assert (unknown["key"], unknown["value"]) == (
        {"type": 99, "base64": "AGM="},
        {"version": 0, "base64": "AAA="},
    )
    assert cut["key"] == key
    assert cut["value"]["error"] == "field ends early: expected 8 bytes, found 7 left, at byte 16"
    assert (tombstone["key"], tombstone["value"]) == (key, None)
    assert [row["offset"] for row in (commit, unknown, cut, tombstone)] == [0, 1, 2, 3]


def test_table_of_records_when_the_topic_is_internal_then_messages_are_words(tmp_path: Path) -> None:
    folder = write_offsets(tmp_path / "__consumer_offsets-7")
    lines = run("inspect", folder, "--records").stdout.splitlines()
    assert (
        "OffsetCommitKey group=g topic=t partition=7  OffsetCommitValue offset=5 leaderEpoch=-1" in lines[2]
    )
    assert "type=99 0x0063" in lines[3]
    assert "OffsetCommitValue version=3 field ends early" in lines[4]
    assert len(lines) == 6


def test_records_of_an_internal_topic_when_raw_or_limited_then_bytes_or_the_first_ones(
    tmp_path: Path,
) -> None:
    folder = write_offsets(tmp_path / "__consumer_offsets-7")
    first = json_lines(run("inspect", folder, "--records", "--json", "--raw", "--limit", "1").stdout)
    assert [row["key"] for row in first] == ["\0\1\0\1g\0\1t\0\0\0\7"]
    rows = json_lines(run("inspect", folder, "--records", "--json", "--offsets", "1:", "--limit", "2").stdout)
    assert [row["offset"] for row in rows] == [1, 2]
    assert run("inspect", folder, "--raw").exit_code == 2
