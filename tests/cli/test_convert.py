"""`kafkafmt convert`, without Spark."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import reference as ref
from child_processes import started
from cli.logs import (
    FIRST_TIMESTAMP,
    command,
    content,
    flip,
    growth_mib,
    is_one_line,
    json_lines,
    run,
    run_process,
    segments,
    write_copies,
    write_log,
)
from kafkafmt import Codec, FileRecords, LazyDownConvertRecords
from kafkafmt._util.locks import locked_file
from kafkafmt.jobs.convert import ConvertOptions, convert_in_processes, convert_segment, plan
from kafkafmt.jobs.rewrite import RewriteError
from kafkafmt.jobs.rewrite import segment as segment_module
from kafkafmt.log import PartitionLog, Segment
from kafkafmt.log.listing import Listing

LOGS = Path(__file__).parents[1] / "data" / "logs"
IN_ONE_PROCESS = ("--jobs", 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A partition folder in a log directory."""
    return write_log(tmp_path / "logs" / "orders-0")


def convert(log: Path, target: Path, *arguments: object) -> tuple[list[dict], dict, int]:
    """Run it; the reports, the summary and the exit status."""
    result = run("convert", log.parent, target, "--to-magic", 1, *IN_ONE_PROCESS, "--json", *arguments)
    *reports, summary = json_lines(result.stdout)
    return reports, summary["summary"], result.exit_code


@pytest.mark.parametrize("to_magic", [0, 1, 2])
def test_segments_when_converted_then_are_what_the_library_makes_of_each(
    log: Path, tmp_path: Path, to_magic: int
) -> None:
    target = tmp_path / "out"
    assert run("convert", log.parent, target, "--to-magic", to_magic).exit_code == 0
    assert [path.name for path in segments(target)] == [path.name for path in segments(log)]
    for path in segments(log):
        with FileRecords(path) as records:
            wanted = b"".join(LazyDownConvertRecords(records, to_magic).chunks())
        assert (target / "orders-0" / path.name).read_bytes() == wanted
    assert run("inspect", "--verify", target).exit_code == 0


def test_real_logs_when_converted_down_and_up_then_hold_what_consumers_read(tmp_path: Path) -> None:
    down, up = tmp_path / "v1", tmp_path / "v2"
    arguments = ("--to-magic", 1, "--zstd-fallback", "lz4")
    assert run("convert", LOGS, down, *arguments).exit_code == 0
    assert run("convert", down, up, "--to-magic", 2).exit_code == 0
    for folder in (down, up):
        assert run("inspect", "--verify", folder).exit_code == 0
    for source in segments(LOGS):
        relative = source.relative_to(LOGS)
        with FileRecords(source) as records:
            magics = {batch.magic for batch in records.batches()}
            wanted = [
                (record.offset, record.timestamp, record.key, record.value)
                for batch in records.batches()
                if not batch.is_control
                for record in batch
            ]
        for folder in (down, up) if 0 not in magics else (down,):
            with FileRecords(folder / relative) as records:
                found = [(r.offset, r.timestamp, r.key, r.value) for r in records.records()]
            assert found == wanted, folder / relative


def test_transaction_index_when_converted_to_v2_then_is_kept_and_below_is_not(tmp_path: Path) -> None:
    assert list(LOGS.glob("transactions-0/*.txnindex"))
    run("convert", LOGS / "transactions-0", tmp_path / "v2", "--to-magic", 2)
    run("convert", LOGS / "transactions-0", tmp_path / "v1", "--to-magic", 1)
    for path in LOGS.glob("transactions-0/*.txnindex"):
        kept = tmp_path / "v2" / "transactions-0" / path.name
        assert (kept.read_bytes() if kept.exists() else b"") == path.read_bytes()
    assert not list(tmp_path.glob("v1/*/*.txnindex"))


def test_transaction_index_when_damaged_then_is_made_from_the_log(tmp_path: Path) -> None:
    source = tmp_path / "logs" / "transactions-0"
    shutil.copytree(LOGS / "transactions-0", source)
    wanted = PartitionLog(source).aborted_transactions()
    for path in source.glob("*.txnindex"):
        flip(path, 2)
    assert run("convert", source, tmp_path / "v2", "--to-magic", 2).exit_code == 0
    found = [
        segment.aborted_transactions() for segment in PartitionLog(tmp_path / "v2/transactions-0").segments()
    ]
    assert wanted
    assert [one for segment in found for one in segment or ()] == wanted


def test_second_run_when_nothing_changed_then_converts_nothing(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    _, first, _ = convert(log, target)
    inodes = {path: path.stat().st_ino for path in segments(target)}
    reports, second, status = convert(log, target)
    assert (first["converted"], second["unchanged"], status) == (len(inodes), len(inodes), 0)
    assert {report["status"] for report in reports} == {"unchanged"}
    assert {path: path.stat().st_ino for path in segments(target)} == inodes


def test_active_segment_when_it_has_grown_then_is_converted_again(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(log, target)
    other = write_log(tmp_path / "more-0", 13, segment_bytes=1 << 20)
    last = segments(log)[-1]
    last.write_bytes(last.read_bytes() + list(FileRecords(segments(other)[0]).batches())[-1].buffer)
    reports, summary, _ = convert(log, target)
    assert [report["path"] for report in reports if report["status"] == "converted"] == [str(last)]
    assert summary["unchanged"] == len(segments(log)) - 1
    records = [record.offset for record in FileRecords(segments(target)[-1]).records()]
    assert records[-1] == 129


def test_other_options_when_they_change_the_outcome_then_are_refused_and_with_force_convert_again(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert(log, target)
    before = content(target)
    refused = run("convert", log.parent, target, "--to-magic", 0)
    message = f"{target}: holds segments that were converted with --to-magic 1: --force replaces them"
    assert (refused.exit_code, refused.stderr) == (2, f"kafkafmt: {message}\n")
    report = convert_segment(plan(log.parent, target)[0], ConvertOptions(0))
    assert report.error == f"{report.target}: was converted with --to-magic 1: force replaces it"
    assert content(target) == before
    assert run("convert", log.parent, target, "--to-magic", 0, "--force").exit_code == 0
    assert {batch.magic for path in segments(target) for batch in FileRecords(path).batches()} == {0}
    # There is no zstd in it, and no damage.
    for arguments in (("--zstd-fallback", "gzip"), ("--on-corrupt", "skip")):
        result = run("convert", log.parent, target, "--to-magic", 0, "--json", *arguments)
        assert json_lines(result.stdout)[-1]["summary"]["unchanged"] == len(segments(log))


def test_outdated_segment_when_its_source_is_damaged_then_stays_until_it_can_be_replaced(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert(log, target)
    source = segments(log)[0]
    before = (target / "orders-0" / source.name).read_bytes()
    flip(source, 100)
    reports, _, status = convert(log, target)
    assert status == 1
    assert {report["status"] for report in reports} == {"failed", "unchanged"}
    assert (target / "orders-0" / source.name).read_bytes() == before


def test_commit_when_it_was_killed_before_it_replaced_a_segment_then_is_done_again(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert(log, target)
    sidecar = next((target / "orders-0").glob("*.converted"))
    written = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**written, "outdated": written["targets"]}))  # of the same size
    reports, _, _ = convert(log, target)
    assert [report["status"] for report in reports].count("converted") == 1
    assert json.loads(sidecar.read_text()) == written


def test_segment_beside_folders_of_partitions_when_found_then_hides_none_of_them(
    log: Path, tmp_path: Path
) -> None:
    stray = log.parent / segments(log)[0].name
    shutil.copy(segments(log)[0], stray)
    flip(segments(log)[0], 100)
    assert run("inspect", "--verify", log.parent).exit_code == 1
    refused = run("convert", log.parent, tmp_path / "out", "--to-magic", 1)
    assert refused.exit_code == 2
    assert "beside folders of partitions" in refused.stderr


def test_segment_of_someone_else_when_in_the_way_then_is_never_replaced(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    shutil.copytree(log, target / "orders-0")
    before = content(target)
    reports, summary, status = convert(log, target)
    assert (summary["failed"], status) == (len(segments(log)), 1)
    assert "in the way" in reports[0]["error"]
    assert content(target) == before


def test_other_source_when_of_the_same_topic_then_never_replaces_what_the_first_became(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert(log, target)
    before = content(target)
    other = shutil.copytree(log, tmp_path / "other" / "orders-0")
    reports, summary, status = convert(other, target)
    assert (summary["failed"], status) == (len(segments(log)), 1)
    first = min(reports, key=lambda report: report["base_offset"])
    assert f"in the way, it was made from {segments(log)[0]}; remove it and" in first["error"]
    assert content(target) == before


def test_sidecar_when_empty_or_of_others_then_the_error_says_what_to_remove(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert(log, target)
    segment, sidecar = segments(target)[0], segments(target)[0].with_suffix(".converted")
    sidecar.write_bytes(b"")
    reports, _, _ = convert(log, target)
    (error,) = [report["error"] for report in reports if report["status"] == "failed"]
    assert error.startswith(f"{segment}: is in the way, ")
    assert f"{sidecar.name} does not tell of it; remove it and {sidecar.name}" in error
    segment.unlink()
    sidecar.unlink()
    assert convert(log, target)[1]["converted"] == 1


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_kill_when_converting_then_the_second_run_does_what_is_missing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 30, codec=Codec.GZIP, segment_bytes=60_000, records=1500)
    for partition in range(1, 3):
        shutil.copytree(log, log.parent / f"orders-{partition}", copy_function=os.link)
    wanted, target = tmp_path / "wanted", tmp_path / "out"
    assert run("convert", log.parent, wanted, "--to-magic", 1).exit_code == 0
    waited_for = target / "orders-0" / f".{segments(log)[1].stem}.converted.lock"
    waited_for.parent.mkdir(parents=True)
    with (
        locked_file(waited_for),  # so that it is at it still when the signal comes
        started(
            command("convert", log.parent, target, "--to-magic", 1, "--jobs", 2),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        while len(segments(target)) < 3:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while is_running(process.pid):  # the workers notice, and end
            time.sleep(0.002)
    left = [path for path in segments(target) if not path.name.startswith(".")]
    assert 3 <= len(left) < len(segments(log.parent))
    assert all(path.read_bytes() == (wanted / path.relative_to(target)).read_bytes() for path in left)
    _, summary, status = convert(log, target)
    assert (summary["unchanged"], summary["converted"], status) == (
        len(left),
        len(segments(log.parent)) - len(left),
        0,
    )
    assert content(target) == content(wanted)
    assert not [path for path in target.rglob(".*") if path.suffix == ".tmp"]


@pytest.mark.usefixtures("interrupts")
def test_interrupt_when_converting_then_ends_soon_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    log = write_copies(
        tmp_path / "logs" / "orders-0", 300, codec=Codec.GZIP, segment_bytes=60_000, records=1500
    )
    for partition in range(1, 30):  # a minute of work: enough to be at it still when the signal comes
        shutil.copytree(log, log.parent / f"orders-{partition}", copy_function=os.link)
    target = tmp_path / "out"
    with started(
        command("convert", log.parent, target, "--to-magic", 1, "--jobs", 2),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not segments(target):
            assert process.poll() is None
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors.strip()) == (130, "kafkafmt: interrupted")
    assert not [path for path in target.rglob(".*") if path.suffix == ".tmp"]


def test_damaged_batch_when_on_corrupt_is_fail_then_its_segment_alone_fails(
    log: Path, tmp_path: Path
) -> None:
    path = segments(log)[1]
    second = list(FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    target = tmp_path / "out"
    reports, summary, status = convert(log, target)
    (failed,) = [report for report in reports if report["status"] == "failed"]
    assert (summary["failed"], summary["converted"], status) == (1, len(segments(log)) - 1, 1)
    assert failed["path"] == str(path)
    for word in (
        str(path),
        f"position {second.position}",
        f"offsets {second.base_offset} to {second.last_offset}",
    ):
        assert word in failed["error"]
    assert (failed["damage"][0]["position"], failed["error_type"]) == (second.position, "CorruptRecordError")
    assert not list((target / "orders-0").glob(f"*{path.stem}*"))
    told = run("convert", log.parent, target, "--to-magic", 1)
    assert told.stderr.count("failed: ") == 1
    assert "--on-corrupt skip" in told.stderr


def test_damaged_batches_when_on_corrupt_is_skip_then_are_left_out_and_told(
    log: Path, tmp_path: Path
) -> None:
    path = segments(log)[0]
    batches = list(FileRecords(path).batches())
    flip(path, batches[0].position + 70)  # a record
    flip(path, batches[2].position + 9)  # the length
    target = tmp_path / "out"
    reports, summary, status = convert(log, target, "--on-corrupt", "skip")
    (report,) = [report for report in reports if report["damage"]]
    assert next((stretch["base_offset"], stretch["next_offset"]) for stretch in report["damage"]) == (0, 10)
    assert report["damage"][1]["position"] == batches[2].position
    assert (summary["stretches_left_out"], summary["failed"], status) == (2, 0, 0)
    offsets = [record.offset for record in FileRecords(target / "orders-0" / path.name).records()]
    kept = [batch for number, batch in enumerate(batches) if number not in (0, 2)]
    assert offsets == [offset for batch in kept for offset in range(batch.base_offset, batch.next_offset)]
    again, summary, _ = convert(log, target, "--on-corrupt", "skip")
    assert summary["unchanged"] == len(segments(log))
    assert [report["damage"] for report in again if report["damage"]] == [report["damage"]]
    # A segment with batches left out is not what --on-corrupt fail asks for.
    assert convert(log, target)[1]["failed"] == 1


def write_partial_wrappers(folder: Path) -> Path:
    """A segment of two wrappers that end in a part of a message, and a whole one between them."""
    folder.mkdir(parents=True)
    wrappers = []
    for number, part in enumerate((20, 0, 1)):
        rows = [ref.Row(2 * number + i, FIRST_TIMESTAMP, b"key", b"value") for i in range(2)]
        inner = ref.messages(1, rows, rows[0].offset)
        wrappers.append(ref.wrapper(1, ref.GZIP, rows, inner=inner + inner[:part]))
    path = folder / f"{0:020d}.log"
    path.write_bytes(b"".join(wrappers))
    return path


@pytest.mark.parametrize("to_magic", [0, 2])
def test_part_of_a_message_when_a_wrapper_ends_in_it_then_told_and_in_json(
    tmp_path: Path, to_magic: int
) -> None:
    path = write_partial_wrappers(tmp_path / "logs" / "orders-0")
    arguments = ("convert", path.parents[1], tmp_path / "out", "--to-magic", to_magic, *IN_ONE_PROCESS)
    told = run(*arguments)
    assert told.exit_code == 0
    assert told.stderr == f"left out: {path}: a partial message at the end of 2 wrappers\n"
    again = run(*arguments, "--json")
    report, summary = json_lines(again.stdout)
    assert (report["status"], report["partial_messages"]) == ("unchanged", 2)
    assert summary["summary"]["partial_messages"] == 2
    offsets = [record.offset for record in FileRecords(tmp_path / "out" / "orders-0" / path.name).records()]
    assert offsets == list(range(6))


def test_part_of_a_message_when_its_batch_is_copied_or_recoded_then_stays_and_is_not_told(
    tmp_path: Path,
) -> None:
    path = write_partial_wrappers(tmp_path / "logs" / "orders-0")
    for number, arguments in enumerate((("--to-magic", 1), ("--codec", "lz4"))):
        target = tmp_path / f"out-{number}"
        told = run("convert", path.parents[1], target, *arguments, *IN_ONE_PROCESS)
        assert (told.exit_code, told.stderr) == (0, "")
        batches = list(FileRecords(target / "orders-0" / path.name).batches())
        assert [batch.is_valid() for batch in batches] == [False, True, False]


def test_part_of_a_message_when_damaged_batches_are_skipped_then_its_wrapper_is_converted(
    tmp_path: Path,
) -> None:
    path = write_partial_wrappers(tmp_path / "logs" / "orders-0")
    flip(path, list(FileRecords(path).batches())[1].position + 40)
    reports, summary, status = convert(path.parent, tmp_path / "out", "--to-magic", 2, "--on-corrupt", "skip")
    assert (summary["stretches_left_out"], summary["partial_messages"], status) == (1, 2, 0)
    assert reports[0]["damage"][0]["kind"] == "corrupt"
    offsets = [record.offset for record in FileRecords(tmp_path / "out" / "orders-0" / path.name).records()]
    assert offsets == [0, 1, 4, 5]


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\0\0\0\0\0\0\0\x78\0\0\1\0part"])
def test_tail_when_of_the_last_segment_then_is_left_out_and_elsewhere_is_damage(
    log: Path, tmp_path: Path, tail: bytes
) -> None:
    with segments(log)[-1].open("ab") as file:
        file.write(tail)
    _, summary, status = convert(log, tmp_path / "out")
    assert (summary["converted"], summary["stretches_left_out"], status) == (len(segments(log)), 0, 0)
    with segments(log)[0].open("ab") as file:
        file.write(tail)
    assert convert(log, tmp_path / "out")[1]["failed"] == 1
    _, summary, status = convert(log, tmp_path / "out", "--on-corrupt", "skip")
    assert (summary["stretches_left_out"], status) == (1, 0)


def test_zstd_when_without_fallback_then_fails_with_advice_and_never_is_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 3, codec=Codec.ZSTD)
    for arguments in ((), ("--on-corrupt", "skip")):
        result = run("convert", log, tmp_path / "out", "--to-magic", 1, *arguments)
        assert result.exit_code == 1
        assert "--zstd-fallback" in result.stderr.splitlines()[-1]
    for name, codec in {
        "gzip": Codec.GZIP,
        "snappy": Codec.SNAPPY,
        "lz4": Codec.LZ4,
        "none": Codec.NONE,
    }.items():
        target = tmp_path / name
        assert run("convert", log, target, "--to-magic", 1, "--zstd-fallback", name).exit_code == 0
        assert {batch.codec for path in segments(target) for batch in FileRecords(path).batches()} == {codec}


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_real_logs_when_given_a_codec_then_all_batches_have_it_and_hold_what_they_held(
    tmp_path: Path, codec: Codec
) -> None:
    target = tmp_path / "out"
    result = run("convert", LOGS, target, "--codec", codec.name.lower(), *IN_ONE_PROCESS, "--json")
    *reports, _ = json_lines(result.stdout)
    assert run("inspect", "--verify", target).exit_code == 0
    for report in reports:
        with FileRecords(report["path"]) as records:
            before = [(batch.magic, batch.is_control, list(batch)) for batch in records.batches()]
        if codec == Codec.ZSTD and min(magic for magic, *_ in before) < 2:
            assert "zstd: expected message format v2 or later" in report["error"]
            continue
        with FileRecords(report["target"]) as records:
            after = [(batch.magic, batch.is_control, list(batch)) for batch in records.batches()]
            codecs = {batch.codec for batch in records.batches() if batch.count and not batch.is_control}
        assert _records(after) == _records(before)
        assert codecs == {codec}
    assert result.exit_code == (1 if codec == Codec.ZSTD else 0)


def _records(batches: list[tuple]) -> list[tuple]:
    fields = ("offset", "timestamp", "timestamp_type", "sequence", "key", "value", "headers")
    return [
        (magic, is_control, *(getattr(record, name) for name in fields))
        for magic, is_control, records in batches
        for record in records
    ]


def test_codec_when_all_of_it_is_v2_then_positions_alone_change_and_transactions_stay(tmp_path: Path) -> None:
    source, target = LOGS / "transactions-0", tmp_path / "out" / "transactions-0"
    assert run("convert", source, target.parent, "--codec", "zstd", "--level", 19).exit_code == 0
    assert PartitionLog(target).aborted_transactions() == PartitionLog(source).aborted_transactions()
    for path in segments(source):
        kept = ("base_offset", "count", "last_offset", "producer_id", "base_sequence", "is_transactional")
        with FileRecords(path) as before, FileRecords(target / path.name) as after:
            assert [[getattr(batch, name) for name in kept] for batch in after.batches()] == [
                [getattr(batch, name) for name in kept] for batch in before.batches()
            ]


def test_codec_when_format_changes_too_then_both_do_and_every_batch_goes_through_one_codec(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    _, summary, status = convert(log, target, "--codec", "gzip", "--level", 9)
    assert (summary["records_converted"], status) == (120, 0)
    batches = [batch for path in segments(target) for batch in FileRecords(path).batches()]
    assert {(batch.magic, batch.codec) for batch in batches} == {(1, Codec.GZIP)}
    assert [record.offset for batch in batches for record in batch] == list(range(120))


def test_codec_when_another_or_another_level_is_asked_for_then_converts_again(
    log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    for options, wanted in (
        (("--codec", "gzip"), "converted"),
        (("--codec", "gzip"), "unchanged"),
        (("--codec", "gzip", "--level", 9), "converted"),
        (("--codec", "lz4"), "converted"),
        ((), "converted"),
    ):
        reports, _, _ = convert(log, target, *options, "--force")
        assert {report["status"] for report in reports} == {wanted}, options


def test_zstd_when_asked_for_and_the_log_is_old_then_fails_with_advice(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 2)
    assert run("convert", log, tmp_path / "v1", "--to-magic", 1).exit_code == 0
    result = run("convert", tmp_path / "v1", tmp_path / "out", "--codec", "zstd")
    assert result.exit_code == 1
    assert (
        result.stderr.splitlines()[-1]
        == "v0 and v1 have no zstd: --to-magic 2 converts their batches as well"
    )
    assert not segments(tmp_path / "out")
    assert (
        run("convert", tmp_path / "v1", tmp_path / "out", "--codec", "zstd", "--to-magic", 2).exit_code == 0
    )


def test_topics_when_a_pattern_is_given_then_others_are_left(tmp_path: Path) -> None:
    for name in ("page-views-0", "page-clicks-1", "orders-0"):
        write_log(tmp_path / "logs" / name, 2)
    run("convert", tmp_path / "logs", tmp_path / "out", "--to-magic", 1, "--topics", "page-*")
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == [
        "page-clicks-1",
        "page-views-0",
    ]


def test_segment_when_it_outgrows_what_a_segment_holds_then_becomes_several(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_BYTES", 2000)
    options = ("--chunk-size", 500)
    target = tmp_path / "out"
    reports, _, status = convert(log, target, *options)
    assert status == 0
    assert len(segments(target)) > len(segments(log))
    assert sum(report["target_bytes"] for report in reports) == sum(
        p.stat().st_size for p in segments(target)
    )
    assert run("inspect", "--verify", target).exit_code == 0
    offsets = [record.offset for path in segments(target) for record in FileRecords(path).records()]
    assert offsets == list(range(120))
    assert convert(log, target, *options)[1]["unchanged"] == len(segments(log))
    segments(target)[1].unlink()
    assert convert(log, target, *options)[1]["converted"] == 1
    monkeypatch.undo()
    run("convert", log.parent, target, "--to-magic", 2, "--force", *IN_ONE_PROCESS)
    assert [path.name for path in segments(target)] == [path.name for path in segments(log)]


def test_segment_of_someone_else_when_where_a_further_part_goes_then_is_never_replaced(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_BYTES", 2000)
    options = ("--chunk-size", 500)
    convert(log, tmp_path / "wanted", *options)
    target = tmp_path / "out"
    part = segments(tmp_path / "wanted")[1]
    other = target / "orders-0" / part.name
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of someone else")
    reports, summary, status = convert(log, target, *options)
    assert (summary["failed"], status) == (1, 1)
    (error,) = [report["error"] for report in reports if report["status"] == "failed"]
    assert error.startswith(f"{other}: is in the way")
    assert other.read_bytes() == b"of someone else"


def test_two_attempts_at_once_when_at_the_same_segments_then_both_end_well(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    arguments = command("convert", log.parent, target, "--to-magic", 1, "--json")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(arguments, stdout=subprocess.PIPE, text=True)) for _ in range(3)
        ]
        summaries = [json_lines(process.communicate()[0])[-1]["summary"] for process in processes]
    assert [summary["failed"] for summary in summaries] == [0, 0, 0]
    assert sum(summary["converted"] for summary in summaries) == len(segments(log))
    assert run("inspect", "--verify", target).exit_code == 0
    assert [path.name for path in target.rglob(".*")] == [".lock"]


def test_progress_when_converting_then_adds_up_to_the_source(log: Path, tmp_path: Path) -> None:
    tasks = plan(log.parent, tmp_path / "out")
    for jobs in (1, 2):
        done: list[int] = []
        list(convert_in_processes(tasks, ConvertOptions(jobs - 1, force=True), jobs, done.append))
        assert sum(done) == sum(task.source_bytes for task in tasks)


def test_plan_when_made_then_has_the_largest_segment_first(log: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "large-0", 10, segment_bytes=1 << 20)
    sizes = [task.source_bytes for task in plan(log.parent, tmp_path / "out")]
    assert sizes == sorted(sizes, reverse=True)


def test_links_when_in_the_source_then_go_by_the_names_they_are_listed_under(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "out"
    source.mkdir()
    for number, name in enumerate(("page-0", "clicks-0")):
        disk = tmp_path / f"disk{number}" / "volume"
        (source / name).symlink_to(write_log(disk, 3 + number, segment_bytes=1 << 20))
    blob = tmp_path / "disk0" / "blob-abc"
    segments(tmp_path / "disk0")[0].rename(blob)
    (source / "page-0" / f"{0:020d}.log").symlink_to(blob)
    assert run("convert", source, target, "--to-magic", 1).exit_code == 0
    counts = {
        path.parent.name: sum(1 for _ in FileRecords(path).records()) for path in target.rglob("0*.log")
    }
    assert counts == {"page-0": 30, "clicks-0": 40}


def test_plan_when_two_partitions_share_a_target_folder_then_refuses(log: Path, tmp_path: Path) -> None:
    shutil.copytree(log, log.parent / "orders-1")
    target = tmp_path / "out"
    (target / "orders-0").mkdir(parents=True)
    (target / "orders-1").symlink_to("orders-0")
    with pytest.raises(RewriteError, match=r"orders-1: the segments of .* go into the folder of .*orders-0"):
        plan(log.parent, target)


def test_plan_when_a_segment_is_deleted_meanwhile_then_passes_over_it(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Listing.logs

    def listed(self: Listing, directory: Path) -> dict[Path, list[Segment]]:
        found = original(self, directory)
        gone.unlink(missing_ok=True)
        return found

    gone, *wanted = segments(log)
    monkeypatch.setattr(Listing, "logs", listed)
    assert sorted(task.segment.path for task in plan(log, tmp_path / "out")) == wanted


def test_segment_that_vanishes_when_converted_then_is_gone_unless_the_whole_directory_is(
    log: Path, tmp_path: Path
) -> None:
    task = plan(log.parent, tmp_path / "out")[0]
    task.segment.path.unlink()
    report = convert_segment(task, ConvertOptions(1))
    assert report.status == "gone"
    assert report.error == f"{task.segment.path}: No such file or directory"
    shutil.rmtree(log.parent)  # as a file system that was unmounted
    assert convert_segment(task, ConvertOptions(1)).status == "failed"


def test_memory_when_a_segment_is_large_then_is_bounded_by_the_chunk(tmp_path: Path) -> None:
    log = write_copies(tmp_path / "logs" / "orders-0", 400, records=4000, segment_bytes=1 << 30)
    assert segments(log)[0].stat().st_size > 100_000_000
    assert growth_mib("convert", log, tmp_path / "out", "--to-magic", 1, "--jobs", 1) < 40


def test_report_when_in_json_then_has_these_fields(log: Path, tmp_path: Path) -> None:
    reports, summary, _ = convert(log, tmp_path / "out")
    assert list(reports[0]) == [
        *("path", "target", "topic", "partition", "base_offset", "status", "source_bytes", "target_bytes"),
        *("seconds", "damage", "removed", "kept", "error", "error_type"),
        *("records_converted", "partial_messages"),
    ]
    assert list(summary) == [
        *("segments", "converted", "unchanged", "gone", "failed", "removed", "kept"),
        *("source_bytes", "target_bytes", "records_converted", "stretches_left_out", "partial_messages"),
    ]
    assert summary["records_converted"] == 120
    sidecar = json.loads((tmp_path / "out" / "orders-0" / "00000000000000000000.converted").read_text())
    assert sidecar["to_magic"] == 1


def test_table_when_printed_then_has_a_line_a_topic_and_a_total(log: Path, tmp_path: Path) -> None:
    found = run_process("convert", log.parent, tmp_path / "out", "--to-magic", 1)
    lines = found.stdout.splitlines()
    assert lines[1].split()[:4] == ["orders", "1", str(len(segments(log))), "120"]
    assert lines[-1] == f"{len(segments(log))} segments: {len(segments(log))} converted"
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["SRC"]),
        (["logs"], ["DST"]),
        (["logs", "out", "--to-magic", "3"], ["--to-magic"]),
        (["missing", "out", "--to-magic", "1"], ["missing: no such folder"]),
        (["file", "out", "--to-magic", "1"], ["file: expected a folder, found a file"]),
        (["empty", "out", "--to-magic", "1"], ["empty: no segments"]),
        (["logs", "file", "--to-magic", "1"], ["file: expected a folder, found a file"]),
        (["logs", "logs", "--to-magic", "1"], ["in the source folder"]),
        (["logs", "logs/orders-0/out", "--to-magic", "1"], ["in the source folder"]),
        (["logs/orders-0", "logs", "--to-magic", "1"], ["that folder itself"]),
        (["logs", "out", "--to-magic", "1", "--topics", "x*"], ["no topic matches 'x*'"]),
        (["logs", "out", "--to-magic", "1", "--chunk-size", "0"], ["--chunk-size"]),
        (["logs", "out", "--to-magic", "1", "--jobs", "0"], ["--jobs"]),
        (["logs", "out", "--to-magic", "1", "--zstd-fallback", "zstd"], ["--zstd-fallback"]),
        (["logs", "out", "--to-magic", "1", "--on-corrupt", "no"], ["--on-corrupt"]),
        (["logs", "out", "--to-magic", "2", "--zstd-fallback", "lz4"], ["--zstd-fallback", "v2 has zstd"]),
        (["logs", "out"], ["--to-magic", "--codec"]),
        (["logs", "out", "--codec", "lzma"], ["--codec", "lzma", "lz4"]),
        (["logs", "out", "--codec", "zstd", "--to-magic", "1"], ["v1 has no zstd"]),
        (["logs", "out", "--codec", "snappy", "--level", "1"], ["snappy has no compression levels"]),
        (["logs", "out", "--codec", "gzip", "--level", "10"], ["gzip level must be 1 to 9"]),
        (["logs", "out", "--to-magic", "1", "--level", "3"], ["level: expected a codec"]),
        (["logs", "out", "--codec", "gzip", "--zstd-fallback", "lz4"], ["codec and zstd_fallback"]),
        (["logs", "out", "--to-magic", "1", "--engine", "no"], ["--engine"]),
        (["logs", "out", "--to-magic", "1", "--master", "local"], ["--master"]),
        (["logs", "out", "--to-magic", "1", "--engine", "spark", "--jobs", "2"], ["--jobs"]),
    ],
)
def test_bad_input_when_given_then_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("logs/orders-0"), 2)
    Path("file").write_text("")
    Path("empty").mkdir()
    result = run("convert", *arguments)
    assert is_one_line(result.stderr, words), result.stderr
    assert (result.exit_code, result.stdout) == (2, "")
    assert not Path("out").exists()
