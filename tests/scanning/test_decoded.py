"""Scans with `decode=`: the decoded schema, in every task and part, and nothing decoded that is not asked for."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import kafkafmt as kf
from kafkafmt.decode import Decoding, DecodingError
from kafkafmt.decode.batch_decoder import ColumnDecoder
from log.samples import put_segment

ORDER = pa.struct([("id", pa.int64()), ("country", pa.string())])


def json_batch(first: int, values: list[object], key: str = "k") -> bytes:
    builder = kf.RecordBatchBuilder(base_offset=first)
    for number, value in enumerate(values):
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        builder.append(1_700_000_000_000 + number, f"{key}{first + number}".encode(), payload)
    return builder.build()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    orders = [{"id": number, "country": "CH"} for number in range(6)]
    put_segment(tmp_path / "orders-0", 0, [json_batch(0, orders[:3]), json_batch(3, orders[3:])])
    put_segment(tmp_path / "users-0", 0, [json_batch(0, [{"name": "Ada"}, {"name": "Bo"}], "u")])
    return tmp_path


@pytest.fixture
def decoded_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Notes which columns are decoded, and how many rows."""
    noted: list[tuple[str, int]] = []
    decode = ColumnDecoder.decode

    def noting(self: ColumnDecoder, column: pa.Array, headers: pa.Array | None) -> object:
        noted.append((self.side, len(column)))
        return decode(self, column, headers)

    monkeypatch.setattr(ColumnDecoder, "decode", noting)
    return noted


def test_decode_when_the_name_of_a_format_then_values_have_the_type_of_the_first_records(
    folder: Path,
) -> None:
    scan = kf.scan(folder, topics="orders", columns=["offset", "value", "key"], decode="json")
    assert scan.schema == pa.schema(
        [("offset", pa.int64()), ("value", ORDER), ("key", pa.binary()), ("value_error", pa.string())]
    )
    assert scan.to_arrow().to_pylist() == [
        {"offset": n, "value": {"id": n, "country": "CH"}, "key": b"k%d" % n, "value_error": None}
        for n in range(6)
    ]


def test_decode_when_a_value_is_damaged_then_is_null_with_an_error_or_raises(folder: Path) -> None:
    put_segment(folder / "orders-0", 6, [json_batch(6, [b"{", {"id": 7, "country": "FR"}])])
    rows = kf.scan(folder, topics="orders", decode="json", offsets=(6, None)).to_arrow()
    assert rows["value"].to_pylist() == [None, {"id": 7, "country": "FR"}]
    assert [error is not None for error in rows["value_error"].to_pylist()] == [True, False]
    strict = kf.scan(
        folder, topics="orders", decode=Decoding(value="json", on_error="raise"), columns=["value"]
    )
    assert strict.schema.names == ["value"]
    with pytest.raises(DecodingError, match="orders-0, offset 6: the value is damaged"):
        strict.to_arrow()


def test_decode_when_tasks_are_sent_to_other_processes_then_they_decode(folder: Path) -> None:
    scan = kf.scan(folder, topics="orders", decode=Decoding(key="text", value="json"))
    tasks = pickle.loads(pickle.dumps(scan.tasks(split_bytes=100)))
    assert len(tasks) > 1
    rows = pa.Table.from_batches((batch for task in tasks for batch in task.read()), scan.schema)
    assert rows == scan.to_arrow() == pickle.loads(pickle.dumps(scan)).to_arrow()
    assert rows["key"].to_pylist() == [f"k{number}" for number in range(6)]


def test_decode_when_a_part_is_read_then_has_the_schema_of_the_whole(folder: Path) -> None:
    put_segment(folder / "orders-0", 6, [json_batch(6, [{"id": 6, "price": 1.5}])])
    scan = kf.scan(folder, topics="orders", decode="json", offsets=(0, 6))
    part = scan.within({("orders", 0): (4, 6)})
    assert part.schema == scan.schema
    assert part.to_arrow()["value"].to_pylist() == [{"id": n, "country": "CH"} for n in (4, 5)]


def test_decode_when_topics_differ_then_the_scan_of_each_has_its_own_types(folder: Path) -> None:
    scan = kf.scan(folder, decode="json")
    types = {topic: scan.of_topic(topic).schema.field("value").type for topic in ("orders", "users")}
    assert types == {"orders": ORDER, "users": pa.struct([("name", pa.string())])}
    assert scan.of_topic("users").to_arrow()["value"].to_pylist() == [{"name": "Ada"}, {"name": "Bo"}]
    with pytest.raises(kf.ScanError, match="no topic 'x' in"):
        scan.of_topic("x")


def test_decode_when_its_format_is_unknown_then_is_a_scan_error(folder: Path) -> None:
    with pytest.raises(kf.ScanError, match=r"^decode: format: expected .* found 'jsn'$"):
        kf.scan(folder, decode="jsn")


def test_columns_when_not_asked_for_then_are_not_decoded(
    folder: Path, decoded_rows: list[tuple[str, int]]
) -> None:
    scan = kf.scan(folder, topics="orders", decode=Decoding(key="text", value="json"))
    rows = scan.to_dataset()  # noqa: F841
    assert scan.to_polars().select("offset", "topic").collect().height == 6
    assert duckdb.sql('SELECT max("offset") FROM rows').fetchall() == [(5,)]
    assert decoded_rows == []
    assert scan.to_polars().select("key", "offset").collect()["key"].to_list() == [f"k{n}" for n in range(6)]
    assert {side for side, _ in decoded_rows} == {"key"}
    decoded_rows.clear()
    assert scan.to_polars().select("value_error").collect()["value_error"].null_count() == 6
    assert sum(count for side, count in decoded_rows if side == "value") == 6


def test_decoded_values_when_queried_then_have_fields(
    folder: Path, decoded_rows: list[tuple[str, int]]
) -> None:
    scan = kf.scan(folder, topics="orders", decode="json")
    rows = scan.to_dataset()  # noqa: F841
    of_polars = (
        scan.to_polars().filter(pl.col("offset") >= 3).select(pl.col("value").struct.field("id").sum())
    )
    assert of_polars.collect().item() == 12
    assert sum(count for _, count in decoded_rows) == 3
    for source in ("scan", "rows"):
        query = f"SELECT sum(value.id) FROM {source} WHERE value.country = 'CH' AND \"offset\" > 3"
        assert duckdb.sql(query).fetchall() == [(9,)]
