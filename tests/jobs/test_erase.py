"""`kafkafmt erase` against a slow scan of the bytes it wrote, for all formats and codecs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.records.key_table import KeySet
from cli.logs import flip, is_one_line, run
from jobs.erase_logs import NOW, SECRET, Log, batches, is_secret, logs, payloads, report_of, rows
from kafkafmt.jobs.erase import (
    EraseOptions,
    EraseTarget,
    KeysError,
    Replacement,
    read_keys,
)
from kafkafmt.jobs.erase.batches import OffsetRanges
from kafkafmt.jobs.rewrite import RewriteError
from kafkafmt.log import LogDirectory, PartitionLog, PartitionLogWriter
from kafkafmt.log.isolation import AbortedTransaction
from log.samples import marker


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_erasure_when_bytes_are_scanned_then_no_erased_key_or_value_is_left_and_all_else_is(
    tmp_path: Path, magic: int, seed: int
) -> None:
    log = Log(tmp_path / "src" / "orders-0", magic, seed)
    before, after = log.folder, tmp_path / "dst" / "orders-0"
    assert any(SECRET in data for data in payloads(before))
    keys = log.write_keys(tmp_path / "keys.txt")
    found = run("erase", before.parent, after.parent, "--keys", keys, "--jobs", 1, "--json")
    assert found.exit_code == 0, found.output

    assert not any(SECRET in data for data in payloads(after.parent))
    assert rows(after) == [row for row in rows(before) if not is_secret(row)]
    erased = [row.offset for row in rows(before) if is_secret(row)]
    row, summary = report_of(found)
    assert [o for first, last in row["erased_offsets"] for o in range(first, last + 1)] == erased
    assert (row["records"], row["records_erased"]) == (len(rows(before)), len(erased))
    sound = [batch for batch in batches(before) if batch.is_control or not any(map(is_secret, batch.rows()))]
    assert row["batches_identical"] == len(sound) == summary["batches_identical"]
    written = {batch.data for batch in batches(after)}
    assert all(batch.data in written for batch in sound)
    assert sorted(path.name for path in (tmp_path / "dst").iterdir()) == [".lock", "orders-0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dst", "keys.txt", "src"]


def test_batch_when_it_loses_records_then_keeps_offsets_producer_and_sequences(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    assert run("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1).exit_code == 0
    before = {batch.fields["base_offset"]: batch for batch in batches(log.folder)}
    after = batches(tmp_path / "dst" / "orders-0")
    kept = [
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "partition_leader_epoch",
        "base_offset",
    ]
    emptied = 0
    for batch in after:
        source = before[batch.fields["base_offset"]]
        assert [batch.fields[name] for name in kept] == [source.fields[name] for name in kept]
        assert batch.attributes & ~7 == source.attributes & ~7
        emptied += batch.fields["count"] == 0
        if batch.fields["count"] and batch.data != source.data and not batch.attributes & ref.TIMESTAMP_TYPE:
            assert batch.fields["max_timestamp"] == max(row.timestamp for row in batch.rows())
    assert emptied
    assert LogDirectory(tmp_path / "dst").partition("orders", 0).end_offset == log.next_offset


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("value", [None, b"", b"gone"])
def test_values_when_replaced_then_records_and_keys_stay(
    tmp_path: Path, magic: int, value: bytes | None
) -> None:
    log = Log(tmp_path / "src" / "orders-0", magic)
    keys = log.write_keys(tmp_path / "keys.txt")
    text = "null" if value is None else value.decode()
    found = run(
        *("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--replace-values", text, "--jobs", 1)
    )
    assert found.exit_code == 0, found.output
    wanted = [row._replace(value=value) if is_secret(row) else row for row in rows(log.folder)]
    assert rows(tmp_path / "dst" / "orders-0") == wanted


def test_where_when_it_selects_records_then_they_go_and_it_sees_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    (tmp_path / "rules.py").write_text(
        "def secret(record, where):\n"
        "    assert where.topic == 'orders' and where.partition == 0\n"
        "    return b'SECRET' in (record.value or b'')\n"
        "def broken(record, where):\n    return 1 // 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    base = ("erase", log.folder.parent, tmp_path / "dst", "--jobs", 1)
    found = run(*base, "--where", "rules:broken")
    assert found.exit_code == 1
    assert "--where: orders-0, offset 0: ZeroDivisionError" in found.stderr
    found = run(*base, "--where", "rules:secret", "--force")
    assert found.exit_code == 0, found.output
    assert rows(tmp_path / "dst" / "orders-0") == [row for row in rows(log.folder) if not is_secret(row)]


def test_log_when_its_last_batch_is_emptied_then_keeps_its_end(tmp_path: Path) -> None:
    for magic, topic in ((0, "old"), (1, "older"), (2, "new")):
        with PartitionLogWriter(tmp_path / "src" / f"{topic}-0") as writer:
            for offset in range(3):
                builder = kf.RecordBatchBuilder(magic, base_offset=offset)
                builder.append(NOW, SECRET, b"value")
                writer.append(builder.build())
    keys = tmp_path / "keys.txt"
    keys.write_bytes(SECRET)
    found = run("erase", tmp_path / "src", tmp_path / "dst", "--keys", keys, "--jobs", 1)
    assert found.exit_code == 0, found.output
    for topic in ("old", "older", "new"):
        folder = tmp_path / "dst" / f"{topic}-0"
        assert PartitionLog(folder).end_offset == 3
        (batch,) = batches(folder)
        assert (batch.magic, batch.fields["count"], batch.fields["base_offset"]) == (2, 0, 2)


def test_files_of_a_broker_when_erased_then_are_carried(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    first = logs(log.folder)[0]
    aborted = [AbortedTransaction(7, 0, 20, 21)]
    with PartitionLogWriter(tmp_path / "src" / "orders-1") as writer:
        writer.append(ref.batch_of([ref.Row(0, NOW, b"k", b"v")]))
        writer.add_aborted_transactions(aborted[:0])
    files = {
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n",
        f"{first.stem}.snapshot": b"snapshot",
    }
    for name, data in files.items():
        (log.folder / name).write_bytes(data)
    (log.folder / "stray.txt").write_bytes(SECRET)
    (tmp_path / "src" / "topics.ini").write_text("[orders]\npartitions = 2\n")
    (tmp_path / "src" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    keys = log.write_keys(tmp_path / "keys.txt")
    assert run("erase", tmp_path / "src", tmp_path / "dst", "--keys", keys, "--jobs", 1).exit_code == 0
    after = tmp_path / "dst" / "orders-0"
    assert {name: (after / name).read_bytes() for name in files} == files
    assert not (after / "stray.txt").exists()
    assert (tmp_path / "dst" / "topics.ini").exists()
    assert PartitionLog(after).log_start_offset == 5


def test_transactions_when_their_records_are_erased_then_their_index_stays(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "orders-0"
    with PartitionLogWriter(folder) as writer:
        builder = kf.RecordBatchBuilder(
            producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        builder.append(NOW, SECRET, b"value")
        writer.append(builder.build())
        writer.append(marker(1, 7, commit=False))
        writer.add_aborted_transactions([AbortedTransaction(7, 0, 1, 2)])
    keys = tmp_path / "keys.txt"
    keys.write_bytes(SECRET)
    assert run("erase", tmp_path / "src", tmp_path / "dst", "--keys", keys, "--jobs", 1).exit_code == 0
    before, after = PartitionLog(folder), PartitionLog(tmp_path / "dst" / "orders-0")
    assert before.aborted_transactions() == after.aborted_transactions() != []
    assert [batch.is_control for batch in after.batches()] == [False, True]


def test_damage_when_a_batch_cannot_be_searched_then_nothing_is_written_unless_it_is_left_out(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    segment = logs(log.folder)[1]
    flip(segment, 70)
    base = ("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1)
    found = run(*base)
    assert found.exit_code == 1
    assert str(segment) in found.stderr
    assert not (tmp_path / "dst").exists()
    found = run(*base, "--on-corrupt", "skip", "--json")
    assert found.exit_code == 0, found.output
    assert [damage["position"] for damage in report_of(found)[0]["damage"]] == [0]
    assert not any(SECRET in data for data in payloads(tmp_path / "dst"))


def test_wrapper_when_it_ends_in_a_partial_message_then_that_is_left_out(tmp_path: Path) -> None:
    wanted = [ref.Row(0, NOW, b"k", b"v"), ref.Row(1, NOW, b"k", b"v")]
    inner = ref.messages(1, wanted) + ref.messages(1, [ref.Row(2, NOW, SECRET, b"v")])[:-1]
    folder = tmp_path / "src" / "orders-0"
    with PartitionLogWriter(folder) as writer:
        writer.append(ref.wrapper(1, ref.GZIP, wanted, inner=inner))
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"another")
    found = run("erase", tmp_path / "src", tmp_path / "dst", "--keys", keys, "--jobs", 1)
    assert found.exit_code == 0, found.output
    assert "a partial message at the end of 1 wrapper" in found.stderr
    assert not any(SECRET in data for data in payloads(tmp_path / "dst"))
    assert [row.key for row in rows(tmp_path / "dst" / "orders-0")] == [b"k", b"k"]


# Arguments


def test_keys_when_in_a_format_then_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"user-1\r\n\nuser-2\nuser-2")
    assert set(read_keys(path)) == {b"user-1", b"user-2"}
    path.write_bytes(b"AAH/\n")
    assert set(read_keys(path, "base64")) == {b"\x00\x01\xff"}
    path.write_bytes(b"0001ff\n")
    assert set(read_keys(path, "hex")) == {b"\x00\x01\xff"}
    path.write_bytes(b"0001f\n")
    with pytest.raises(KeysError, match="line 1: expected base64, found '0001f'"):
        read_keys(path, "base64")
    path.write_bytes(b"\n\n")
    with pytest.raises(KeysError, match="found no key"):
        read_keys(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_keys_when_an_editor_wrote_a_byte_order_mark_then_refused_as_a_key_would_be_missed(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "keys"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes(f"{mark}user-1\nuser-2\n".encode(encoding))
    with pytest.raises(KeysError, match=r"line 1: expected UTF-8 .* found a byte order mark"):
        read_keys(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["either --keys or --where"]),
        (["--keys", "{keys}", "--where", "a:b"], ["either --keys or --where"]),
        (["--where", "json:dumps", "--keys-format", "hex"], ["--keys-format is for --keys"]),
        (["--where", "nothing"], ["MODULE:CALLABLE"]),
        (["--keys", "{keys}", "--keys-format", "hex"], ["line 1: expected hex"]),
        (["--keys", "{keys}", "--topics", "other"], ["no topic matches"]),
        (["--keys", "{keys}", "--master", "local[2]"], ["--master is for --engine spark"]),
        (["--keys", "{keys}", "--engine", "spark", "--jobs", "2"], ["--jobs is for --engine local"]),
        (["--keys", "{keys}", "--report", "/nowhere/at/all"], ["its folder does not exist"]),
    ],
)
def test_arguments_when_wrong_then_one_line_and_nothing_written(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    Log(tmp_path / "src" / "orders-0", 1)
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"user-1\n")
    given = [argument.format(keys=keys) for argument in arguments]
    found = run("erase", tmp_path / "src", tmp_path / "dst", *given)
    assert found.exit_code in (1, 2)
    assert is_one_line(found.stderr, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.txt", "src"]


def test_target_when_not_empty_or_in_the_source_then_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 1)
    (tmp_path / "dst").mkdir()
    assert EraseTarget(tmp_path / "dst").plan(log.folder.parent)
    (tmp_path / "dst" / "file").touch()
    with pytest.raises(RewriteError, match="expected a new or an empty folder"):
        EraseTarget(tmp_path / "dst").plan(log.folder.parent)
    with pytest.raises(RewriteError, match="is in the source folder"):
        EraseTarget(tmp_path / "src" / "dst").plan(log.folder.parent)
    keys = log.write_keys(tmp_path / "keys.txt")
    found = run("erase", tmp_path / "src", tmp_path / "src" / "new" / "dst", "--keys", keys)
    assert is_one_line(found.stderr, ["is in the source folder"])
    assert not (tmp_path / "src" / "new").exists()  # a broker would not start with it


def test_report_when_in_a_file_then_has_the_lines_of_json(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    arguments = ("--keys", keys, "--jobs", 1, "--report", tmp_path / "report.jsonl")
    found = run("erase", log.folder.parent, tmp_path / "dst", *arguments, "--json")
    row, summary = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert found.stdout == (tmp_path / "report.jsonl").read_text()
    assert list(row) == [
        *("topic", "partition", "target", "segments", "records", "records_erased", "batches"),
        *("batches_identical", "batches_changed", "batches_emptied", "batches_removed", "partial_messages"),
        *("damage", "erased_offsets"),
    ]
    kinds = ("batches_identical", "batches_changed", "batches_emptied", "batches_removed")
    assert sum(row[name] for name in kinds) == row["batches"] == summary["summary"]["batches"]


def test_ranges_when_offsets_are_added_then_consecutive_ones_are_joined() -> None:
    ranges = OffsetRanges()
    for offsets in ([], [1, 2, 5], [6, 8], [9]):
        ranges.add(np.array(offsets, np.int64))
    assert ranges.ranges == [[1, 2], [5, 6], [8, 9]]


def test_options_when_both_or_none_are_given_then_refused() -> None:
    with pytest.raises(ValueError, match="either keys or where"):
        EraseOptions()
    with pytest.raises(ValueError, match="on_corrupt"):
        EraseOptions(KeySet([b"a"]), on_corrupt="maybe")  # type: ignore[arg-type]
    assert EraseOptions(KeySet([b"a"]), replacement=Replacement(None)).keys_digest
