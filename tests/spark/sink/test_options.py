"""What the sink can be asked for: options and columns, refused in one line where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructField, StructType

from kafkafmt.spark.data_source import KafkafmtDataSource
from kafkafmt.spark.sink.columns import InputColumns
from kafkafmt.spark.sink.options import WriteOptions
from spark.reads import TYPES, options_of
from spark.writes import schema_of, write


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"codek": "zstd"}, "unknown option 'codek': did you mean 'codec'?"),
        ({"checkpointLocation": "/c"}, "unknown option 'checkpointLocation': expected one of"),
        ({"compresion": "zstd"}, "unknown option 'compresion': did you mean 'codec'?"),
        ({"compression": "zstd"}, "unknown option 'compression': did you mean 'codec'?"),
        (
            {"level": 3},
            "none has no compression levels, but level is 3: expected codec gzip, lz4, zstd, or no level",
        ),
        ({"txnAppId": "daily"}, "option txnAppId: expected both txnAppId and txnVersion"),
        ({"txnVersion": 3}, "option txnVersion: expected both txnAppId and txnVersion"),
        (
            {"txnAppId": "a/b", "txnVersion": 3},
            "option txnAppId: expected up to 100 letters, digits, .*found 'a/b'",
        ),
        ({"txnAppId": "a", "txnVersion": -1}, "option txnVersion: expected a number from 0 to"),
        ({"codec": "zip"}, "option codec: expected none, gzip, snappy, lz4 or zstd, found 'zip'"),
        ({"codec": "zstd", "magic": 1}, "zstd needs message format v2, not v1"),
        ({"codec": "gzip", "level": 30}, "gzip level must be 1 to 9, not 30"),
        ({"codec": "gzip", "level": "high"}, "option level: expected a codec's level, as 9, found 'high'"),
        ({"magic": 3}, "option magic: expected a number from 0 to 2, found '3'"),
        ({"offsets": "kept"}, "option offsets: expected keep or dense, found 'kept'"),
        ({"topic": "a b"}, "option topic: expected a topic's name"),
        ({"topic": ".."}, "option topic: expected a topic's name"),
        ({"partition": -1}, "option partition: expected a number from 0 to 2147483647, found '-1'"),
        ({"segmentBytes": "2g"}, "option segmentBytes: expected at most 2\\^31 - 1 bytes, found '2g'"),
        ({"unit": "batches", "codec": "lz4"}, "option codec: batches are written as they are"),
        ({"path": ""}, "no path: expected a log directory, as save\\(path\\) or start\\(path\\)"),
        (
            {"path": "tiered+file:///logs"},
            "tiered\\+file:///logs: expected a store, found a read-only view of one",
        ),
        ({"path": "ftp://key:hunter2@host/logs"}, "ftp://host/logs: no file system has that scheme"),
        ({"region": "eu-west-1"}, "option region: a local folder has no such setting"),
        ({"path": "file://host/logs"}, "file://host/logs: expected file:///path"),
    ],
)
def test_option_when_it_cannot_be_then_one_line(
    tmp_path: Path, options: dict[str, object], line: str
) -> None:
    given = {"path": str(tmp_path), **{name: str(value) for name, value in options.items()}}
    with pytest.raises(ValueError, match=line) as caught:
        KafkafmtDataSource(given).writer(schema_of("value"), overwrite=False)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_path_when_a_file_uri_or_with_a_colon_then_is_a_folder() -> None:
    assert WriteOptions.parse({"path": "file:///a/b"}).folder == Path("/a/b")
    assert WriteOptions.parse({"path": "file:/a/b"}).folder == Path("/a/b")
    assert WriteOptions.parse({"path": "/a/b:c"}).folder == Path("/a/b:c")
    assert WriteOptions.parse({"path": "logs"}).folder == Path.cwd() / "logs"


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        (["value", "ofset"], {}, "unknown column 'ofset': did you mean 'offset'?"),
        (["value", "batch"], {}, "unknown column 'batch': expected one of"),
        (["batch"], {"topic": "t", "partition": 0, "codec": "zstd"}, "option codec: batches are written as they are"),
        (["key", "topic"], {}, "no column value: found key, topic"),
        (["value", "partition"], {}, "no topic: expected a column topic, or the option topic for all rows"),
        (["value", "topic"], {}, "no partition: expected a column partition, or the option partition for all"),
        (["value"], {"topic": "t", "partition": 0, "offsets": "keep"}, "option offsets: keep needs a column offset"),
        (["value", "VALUE"], {}, "column VALUE: found twice"),
        (["topic", "partition"], {"unit": "batches"}, "no column batch: found topic, partition"),
    ],
)  # fmt: skip
def test_columns_when_they_do_not_fit_then_one_line(
    tmp_path: Path, columns: list[str], options: dict[str, object], line: str
) -> None:
    parsed = WriteOptions.parse(options_of(tmp_path, **options))
    with pytest.raises(ValueError, match=line):
        InputColumns.of(parsed, schema_of(*columns, VALUE="binary", ofset="bigint"))


def test_column_when_of_another_type_then_one_line(tmp_path: Path) -> None:
    parsed = WriteOptions.parse(options_of(tmp_path, topic="t", partition=0))
    for name, kind, expected in [
        ("value", "int", "binary or string or void"),
        ("timestamp", "bigint", "timestamp"),
        ("partition", "string", "int or bigint or smallint or tinyint"),
    ]:
        fields = {"value": "binary", name: kind}
        schema = StructType([StructField(one, TYPES[kind]) for one, kind in fields.items()])
        with pytest.raises(ValueError, match=f"column {name}: expected {expected}, found {kind}"):
            InputColumns.of(parsed, schema)


@pytest.mark.parametrize(
    ("columns", "options", "keeps"),
    [
        (["value", "offset"], {}, True),
        (["value"], {}, False),
        (["value", "offset"], {"offsets": "dense"}, False),
        (["batch", "baseOffset"], {"unit": "batches"}, True),
        (["BATCH"], {}, True),
        (["batch"], {"unit": "batches", "offsets": "dense"}, False),
    ],
)
def test_offsets_when_not_told_then_are_kept_where_the_data_has_them(
    tmp_path: Path, columns: list[str], options: dict[str, object], keeps: bool
) -> None:
    parsed = WriteOptions.parse(options_of(tmp_path, topic="t", partition=0, **options))
    found = InputColumns.of(parsed, schema_of(*columns, baseOffset="bigint", BATCH="binary"))
    assert found.keeps_offsets is keeps


def test_stream_when_it_replaces_its_output_then_refused(tmp_path: Path) -> None:
    options = {
        "path": str(tmp_path),
        "checkpointLocation": "/c",
        "queryName": "q",
        "topic": "t",
        "partition": "0",
    }
    KafkafmtDataSource(options).streamWriter(schema_of("value"), overwrite=False)
    with pytest.raises(ValueError, match="outputMode complete: a log cannot be replaced batch by batch"):
        KafkafmtDataSource(options).streamWriter(schema_of("value"), overwrite=True)


def test_path_when_a_partition_s_folder_or_a_file_then_refused(tmp_path: Path) -> None:
    write(tmp_path, [{"value": b"a"}], topic="t", partition=0)
    with pytest.raises(
        ValueError, match="t-0: expected a log directory, found segments: a partition's folder"
    ):
        write(tmp_path / "t-0", [{"value": b"a"}], topic="t", partition=0)
    with pytest.raises(FileExistsError):
        write(next(tmp_path.glob("t-0/*.log")), [{"value": b"a"}], topic="t", partition=0)


def test_identity_when_of_a_stream_then_refused(tmp_path: Path) -> None:
    given = options_of(tmp_path, txnAppId="a", txnVersion=1)
    with pytest.raises(ValueError, match="option txnAppId: a stream numbers its batches"):
        WriteOptions.parse(given, streaming=True)
