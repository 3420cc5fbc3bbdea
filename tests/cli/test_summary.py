"""`kafkafmt inspect --summary` and `kafkafmt verify`, without Spark."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.logs import FIRST_TIMESTAMP, flip, is_one_line, json_lines, run, segments, write_log
from kafkafmt import Codec, FileRecords, RecordBatchBuilder, TimestampType
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.summary import merge_summaries, summarize_file
from kafkafmt.jobs.verify import check_file

LOGS = Path(__file__).parents[1] / "data" / "logs"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs" / "orders-0")


def summaries(*arguments: object) -> dict[str, dict[str, Any]]:
    """Those that the command prints, by topic."""
    return {row["topic"]: row for row in json_lines(run("inspect", "--summary", "--json", *arguments).stdout)}


def expected(folders: list[Path], *, deep: bool) -> dict[str, Any]:
    """What batches and records, one after another, tell of a topic."""
    batches, offsets = [], []
    for folder in folders:
        found = [batch for path in segments(folder) for batch in FileRecords(path).batches()]
        partition = int(folder.name.rpartition("-")[2])
        first, last = found[0].base_offset, found[-1].last_offset
        offsets.append({"partition": partition, "first_offset": first, "last_offset": last})
        batches += found
    wrappers = [batch for batch in batches if batch.magic < 2 and batch.codec]
    uncounted = [] if deep else wrappers
    return {
        "partitions": len(folders),
        "segments": sum(len(segments(folder)) for folder in folders),
        "failed_segments": 0,
        "size_in_bytes": sum(path.stat().st_size for folder in folders for path in segments(folder)),
        "batches": len(batches),
        "records": sum(batch.count for batch in batches if batch not in uncounted),
        "uncounted_batches": len(uncounted),
        "formats": grouped(batches, "magic", lambda batch: batch.magic),
        "timestamp_types": grouped(batches, "timestamp_type", lambda batch: batch.timestamp_type),
        "offsets": offsets,
        "producers": len({batch.producer_id for batch in batches} - {-1}),
        "idempotent_batches": sum(b.producer_id >= 0 and not b.is_transactional for b in batches),
        "transactional_batches": sum(batch.is_transactional for batch in batches),
        "control_batches": sum(batch.is_control for batch in batches),
        "records_with_headers": sum(bool(r.headers) for b in batches for r in b) if deep else None,
        "last_timestamp": max(
            (batch.max_timestamp for batch in batches if batch.max_timestamp != -1), default=None
        ),
        "damaged_stretches": 0,
        "errors": [],
    }


def grouped(batches: list[Any], name: str, key: Any) -> list[dict[str, Any]]:
    counts = Counter(key(batch) for batch in batches)
    sizes: Counter[Any] = Counter()
    for batch in batches:
        sizes[key(batch)] += batch.size_in_bytes
    return [
        {
            name: each.name.lower() if isinstance(each, TimestampType) else each,
            "batches": counts[each],
            "size_in_bytes": sizes[each],
        }
        for each in sorted(counts)
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_real_logs_when_summarized_then_are_what_their_batches_tell(deep: bool) -> None:
    found = summaries(LOGS, *(["--deep"] if deep else []))
    topics: dict[str, list[Path]] = {}
    for folder in sorted(LOGS.iterdir()):
        topics.setdefault(folder.name.rpartition("-")[0], []).append(folder)
    assert list(found) == sorted(topics)
    for topic, folders in topics.items():
        wanted = expected(folders, deep=deep)
        assert {name: found[topic][name] for name in wanted} == wanted, topic


def test_codecs_when_deep_then_tell_what_the_batches_would_take_without(tmp_path: Path) -> None:
    for number, codec in enumerate((Codec.NONE, Codec.GZIP, Codec.ZSTD)):
        write_log(tmp_path / f"orders-{number}", 5, codec=codec, segment_bytes=1 << 20)
    (plain, *_), shallow = segments(tmp_path), summaries(tmp_path)["orders"]["codecs"]
    deep = summaries(tmp_path, "--deep")["orders"]["codecs"]
    assert [row["codec"] for row in deep] == ["none", "gzip", "zstd"]
    assert [row["size_in_bytes"] for row in deep] == [path.stat().st_size for path in segments(tmp_path)]
    assert [row["uncompressed_bytes"] for row in deep] == [plain.stat().st_size] * 3
    assert [row["uncompressed_bytes"] for row in shallow] == [None] * 3
    ratio = deep[1]["size_in_bytes"] / plain.stat().st_size
    assert re.search(
        rf"gzip [\d.]+ KiB \({ratio:.2f}\)", run("inspect", "--summary", "--deep", tmp_path).stdout
    )


def test_first_timestamp_when_the_field_is_no_timestamp_then_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "orders-0" / f"{0:020d}.log"
    path.parent.mkdir()
    stamped = [
        RecordBatchBuilder(base_offset=0, delete_horizon_ms=5),
        RecordBatchBuilder(
            base_offset=1, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=FIRST_TIMESTAMP + 9
        ),
        RecordBatchBuilder(base_offset=2),
    ]
    for builder, timestamp in zip(stamped, (FIRST_TIMESTAMP, 7, -1), strict=True):
        builder.append(timestamp, None, b"value")
    path.write_bytes(b"".join(builder.build() for builder in stamped))
    found = summaries(tmp_path)["orders"]
    assert (found["first_timestamp"], found["last_timestamp"]) == (FIRST_TIMESTAMP, FIRST_TIMESTAMP + 9)


def test_needs_when_told_then_name_what_old_clients_do_not_know(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "upgraded-0", tmp_path / "orders-0")
    shutil.copytree(LOGS / "zstd-0", tmp_path / "orders-1")
    shutil.copytree(LOGS / "transactions-0", tmp_path / "orders-2")
    needs = [(need["feature"], need["since"]) for need in summaries(tmp_path)["orders"]["needs"]]
    wanted = [("message format v1", "0.10.0"), ("message format v2", "0.11.0")]
    assert needs == [*wanted, ("transactions", "0.11.0"), ("zstd", "2.1.0")]
    told = run("inspect", "--summary", tmp_path).stdout.splitlines()[-1]
    assert told.startswith(
        "orders: clients need message format v1 (Kafka 0.10.0): 11 batches; message format v2"
    )


def test_damage_when_summarized_then_is_counted_and_the_rest_is_told(log: Path) -> None:
    path = segments(log)[0]
    second = list(FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    result = run("inspect", "--summary", "--json", log.parent)
    (row,) = json_lines(result.stdout)
    assert (row["batches"], row["damaged_stretches"], row["damaged_bytes"]) == (11, 1, second.size_in_bytes)
    assert result.exit_code == 1
    assert "orders: 1 damaged range" in result.stderr


def test_empty_segment_when_summarized_then_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(b"")
    row = summaries(tmp_path)["orders"]
    assert (row["partitions"], row["segments"], row["batches"], row["offsets"]) == (1, 1, 0, [])
    assert (row["first_timestamp"], row["needs"]) == (None, [])
    assert run("inspect", "--summary", tmp_path).exit_code == 0
    assert run("verify", tmp_path).exit_code == 0


def test_verify_when_run_then_is_inspect_verify(log: Path) -> None:
    flip(segments(log)[0], 100)
    one, other = run("verify", log, "--json"), run("inspect", "--verify", log, "--json")
    assert (one.stdout, one.exit_code) == (other.stdout, other.exit_code)
    assert [row["status"] for row in json_lines(one.stdout)] == ["damaged"] + ["ok"] * (
        len(segments(log)) - 1
    )


def test_file_that_is_deleted_meanwhile_when_its_turn_comes_then_the_report_says_so(log: Path) -> None:
    sources = find_sources([str(log)])
    path = sources[0].path
    path.unlink()
    check = check_file(sources[0])
    assert (check.status, check.error) == ("gone", f"{path}: No such file or directory")
    (report,) = merge_summaries(map(summarize_file, sources))
    assert (report.segments, report.gone_segments, report.failed_segments) == (len(sources) - 1, 1, 0)
    assert report.errors == []
    assert report.records == 120 - 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify"], ["PATH"]),
        (["verify", "missing"], ["missing", "no such file or folder"]),
        (["verify", "empty"], ["empty", "no segments"]),
        (["verify", "orders-0", "--master", "local"], ["--master"]),
        (["inspect", "orders-0", "--deep"], ["--deep is for --summary"]),
        (["inspect", "orders-0", "--summary", "--records"], ["--summary reads whole files"]),
        (["inspect", "orders-0", "--summary", "--verify"], ["--verify checks whole files"]),
        (["inspect", "orders-0", "--engine", "spark"], ["--engine spark is for --verify and --summary"]),
        (["inspect", "missing", "--summary"], ["missing", "no such file or folder"]),
    ],
)
def test_bad_input_when_given_then_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("orders-0"), 2)
    Path("empty").mkdir()
    result = run(*arguments)
    assert is_one_line(result.stderr, words), result.stderr
    assert (result.exit_code, result.stdout) == (2, "")
