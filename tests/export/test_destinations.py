"""Destinations that an export refuses before its first table, in one line, and with nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.logs import run as command
from export.scans import write_log
from kafkafmt.export import (
    Destination,
    ExportArgumentError,
    ExportError,
    ExportOptions,
    WriteOptions,
    compact,
    export_topics,
)


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(folder: Path, *arguments: object) -> str:
    """Return the one line with which a command refuses its arguments. It changes nothing in the folder."""
    before = contents(folder)
    result = command("export", *arguments)
    assert (result.exit_code, result.stdout, contents(folder)) == (2, "", before)
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("within", ["", "orders-0", "lake", "orders-0/lake"])
def test_export_when_the_destination_is_in_the_source_then_is_refused(
    tmp_path: Path, within: str, kind: str
) -> None:
    source = tmp_path / "logs"
    write_log(source, "orders-0", 0, 10)
    target = source / within
    assert refused(tmp_path, source, target, "--format", kind) == (
        f"kafkafmt: {target}: expected a folder outside of the source, {source}"
    )
    assert "outside of the source" in refused(tmp_path, source, f"file://{target}", "--dry-run")
    assert "outside of the source" in refused(tmp_path, source, target, "--format", kind, "--one-table")


def test_export_when_the_destination_has_logs_then_is_refused(tmp_path: Path) -> None:
    for directory in ("one", "two"):
        write_log(tmp_path / directory, "orders-0", 0, 10)
    source, other = tmp_path / "one", tmp_path / "two"
    assert "found the partition folder orders-0" in refused(tmp_path, source, other)
    assert "found the segment 00000000000000000000.log" in refused(tmp_path, source, other / "orders-0")


def test_export_when_a_table_is_named_as_a_partition_then_continues(tmp_path: Path) -> None:
    write_log(tmp_path / "logs", "orders-2026-0", 0, 10)
    for records in (10, 0):
        (report,) = export_topics(tmp_path / "logs", str(tmp_path / "lake"))
        assert (report.rows, report.error) == (records, None)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_the_destination_is_a_table_then_only_one_table_is_exported(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    one_table = Destination(str(lake), kind, one_table=True)
    assert [report.rows for report in export_topics(source, one_table)] == [10]
    assert "expected a folder for tables, found a table" in refused(tmp_path, source, lake, "--format", kind)
    assert [report.rows for report in export_topics(source, one_table)] == [0]


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("", [], "expected a folder or a URI, found ''"),
        ("{}/file", [], "{}/file: expected a folder, found a file"),
        ("{}/file/lake", [], "{}/file/lake: expected a folder, found a file"),
        ("s3://", [], "s3:"),
        ("nosuch://lake", [], "nosuch://lake: no file system has that scheme"),
        ("{}/lake", ["--nested"], "--nested is for --value-format"),
        ("{}/lake", ["--schemas", "{}/x"], "--schemas is for --key-format and --value-format"),
        ("{}/lake", ["--mode", "upsert"], "mode upsert: plain Parquet files cannot replace rows"),
    ],
)
def test_export_when_an_argument_is_wrong_for_all_tables_then_is_one_error(
    tmp_path: Path, target: str, options: list[str], message: str
) -> None:
    (tmp_path / "file").touch()
    for topic in ("orders", "users"):
        write_log(tmp_path / "logs", f"{topic}-0", 0, 10)
    found = refused(tmp_path, tmp_path / "logs", target.format(tmp_path), *options)
    assert found.startswith("kafkafmt: ")
    assert message.format(tmp_path) in found


def test_export_topics_when_the_destination_is_wrong_then_raises(tmp_path: Path) -> None:
    write_log(tmp_path / "logs", "orders-0", 0, 10)
    for target in ("", "s3://", str(tmp_path / "logs")):
        with pytest.raises(ExportError):
            export_topics(tmp_path / "logs", target, ExportOptions(processes=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_file_bytes": 0}, "target_file_bytes: expected 1 to 9223372036854775807, found 0"),
        ({"row_group_bytes": -1}, "row_group_bytes: expected 1 to 9223372036854775807, found -1"),
        ({"buffered_bytes": -5}, "buffered_bytes: expected 1 to 9223372036854775807, found -5"),
        ({"compression": "brotli"}, "compression: expected zstd, snappy, lz4, gzip, none, found 'brotli'"),
    ],
)
def test_write_options_when_a_value_is_invalid_then_argument_error_names_it(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportArgumentError) as raised:
        WriteOptions(**arguments)
    assert str(raised.value) == message


@pytest.mark.parametrize("count", [0, -1])
def test_export_options_when_there_is_no_process_then_argument_error(count: int) -> None:
    with pytest.raises(ExportArgumentError, match=f"processes: expected 1 to .*, found {count}"):
        ExportOptions(processes=count)


def test_options_of_exports_when_a_number_is_no_integer_then_type_error_names_it() -> None:
    with pytest.raises(TypeError, match="target_file_bytes: expected an int, found str"):
        WriteOptions(target_file_bytes="1m")  # type: ignore[arg-type]
    for count in (1.5, "2"):
        with pytest.raises(TypeError, match="processes: expected an int"):
            ExportOptions(processes=count)  # type: ignore[arg-type]


def test_destination_when_its_format_or_catalog_is_wrong_then_argument_error() -> None:
    with pytest.raises(ExportArgumentError, match="format: expected parquet, delta, iceberg, found 'csv'"):
        Destination("lake", "csv")
    for kind in ("parquet", "delta"):
        with pytest.raises(ExportArgumentError, match=f"catalog: expected format iceberg, found {kind}"):
            Destination("lake", kind, catalog="main")


def test_compact_when_the_size_of_files_is_not_positive_then_argument_error(tmp_path: Path) -> None:
    with pytest.raises(ExportArgumentError, match=r"target_file_bytes: expected 1 to .*, found 0"):
        compact(Destination(str(tmp_path), "delta"), "orders", target_file_bytes=0)


def test_export_argument_error_then_is_an_export_error_and_a_value_error() -> None:
    assert issubclass(ExportArgumentError, ExportError)
    assert issubclass(ExportArgumentError, ValueError)
