from __future__ import annotations

import io
import struct
import uuid
import zlib
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.common.serde import SchemaId as ConfluentSchemaId
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.decode import framing
from kafkafmt.decode.binary_rows import binary_rows
from kafkafmt.decode.framing import Frames, Framing, Writer, find_frames
from kafkafmt.decode.header_values import header_values
from kafkafmt.decode.message_names import ref_of
from kafkafmt.decode.schemas.source import SchemaId

ids = st.integers(0, 2**32 - 1) | st.integers(1, 3)
guids = st.uuids() | st.sampled_from([uuid.UUID(int=1), uuid.UUID(int=2**64)])
indexes = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 2), min_size=1, max_size=6)
bodies = st.binary(max_size=12)


def frames(framing: Framing, rows: list[bytes | None], *, messages: bool = False) -> Frames:
    """Find frames in a slice of a column, so that positions are not those of the buffer."""
    array = pa.array([b"before", *rows, b"behind"], pa.binary()).slice(1, len(rows))
    return find_frames(framing, binary_rows(array), {}, with_messages=messages)


def found(result: Frames) -> list[tuple[Writer, bytes] | str | None]:
    """Return the writer and the payload of each row, its error, or None for null."""
    rows: list[Any] = []
    for row, group in enumerate(result.groups.tolist()):
        start, end = result.payloads.starts[row], result.payloads.ends[row]
        body = result.payloads.data[start:end].tobytes()
        rows.append((result.writers[group], body) if group >= 0 else result.errors.get(row))
    return rows


def by_confluent(row: bytes | None, kind: str) -> tuple[Writer, bytes] | None:
    """Return what confluent-kafka's own code finds. None if it refuses the bytes."""
    if row is None:
        return None
    read = ConfluentSchemaId(kind)
    try:
        body = read.from_bytes(io.BytesIO(row)).read()
    except Exception:
        return None
    identity = SchemaId("id", read.id) if read.guid is None else SchemaId("guid", str(read.guid))
    return Writer(identity, None if kind == "AVRO" else tuple(read.message_indexes or (0,))), body


@st.composite
def confluent_rows(draw: st.DrawFn) -> bytes | None:
    choice = draw(st.integers(0, 5))
    if choice == 0:
        return None
    if choice == 1:
        return draw(st.binary(max_size=24))
    if choice < 4:
        made = ConfluentSchemaId("PROTOBUF", draw(ids), None, draw(indexes))
        return made.id_to_bytes() + draw(bodies)
    made = ConfluentSchemaId("PROTOBUF", None, str(draw(guids)), draw(indexes))
    return made.guid_to_bytes() + draw(bodies)


@given(st.lists(confluent_rows(), max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_confluent_framing_when_read_then_is_as_confluent_kafka_reads_it(
    rows: list[bytes | None], messages: bool
) -> None:
    result = found(frames("confluent", rows, messages=messages))
    for row, ours in zip(rows, result, strict=True):
        theirs = by_confluent(row, "PROTOBUF" if messages else "AVRO")
        if theirs is None or isinstance(ours, tuple):
            assert ours == theirs or isinstance(ours, str)
        else:  # confluent-kafka takes more, such as negative indexes and counts
            assert messages
            assert isinstance(ours, str)
            assert theirs[0].message == (0,) or min(theirs[0].message) < 0 or max(theirs[0].message) >= 2**31


@given(st.lists(indexes, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_message_indexes_when_written_by_confluent_kafka_then_are_found(names: list[list[int]]) -> None:
    rows = [ConfluentSchemaId("PROTOBUF", 7, None, name).id_to_bytes() + b"body" for name in names]
    expected = [(Writer(SchemaId("id", 7), tuple(name)), b"body") for name in names]
    assert found(frames("confluent", list(rows), messages=True)) == expected


@pytest.mark.parametrize("length", range(8))
def test_confluent_framing_when_cut_anywhere_then_is_an_error_or_an_empty_payload(length: int) -> None:
    whole = struct.pack(">bI", 0, 5) + b"\x04\x02\x04"
    result = found(frames("confluent", [whole[:length], whole], messages=True))
    assert isinstance(result[0], str)
    assert result[1] == (Writer(SchemaId("id", 5), (1, 2)), b"")


def test_header_ids_when_some_rows_lack_them_then_those_rows_have_ids_in_the_payload() -> None:
    guid = uuid.uuid4()
    name = "__value_schema_id"
    header = ConfluentSchemaId("AVRO", None, str(guid)).guid_to_bytes()
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    entries = [
        [],
        [{"key": name, "value": b"old"}, {"key": "x", "value": b""}, {"key": name, "value": header}],
        None,
        [{"key": name, "value": b"\0\0\0\0\2"}],
        [{"key": name, "value": b"\5"}],
        [{"key": name, "value": None}],
    ]
    headers = header_values(pa.array([[], *entries], kind).slice(1), name)
    payload = b"\0\0\0\0\1body"
    result = find_frames(
        "confluent-headers", binary_rows(pa.array([payload] * 6)), {"id": headers}, with_messages=False
    )
    in_payload = (Writer(SchemaId("id", 1), None), b"body")
    by_header = [
        (Writer(SchemaId("guid", str(guid)), None), payload),
        (Writer(SchemaId("id", 2), None), payload),
    ]
    rows = found(result)
    assert rows[:4] == [in_payload, by_header[0], in_payload, by_header[1]]
    assert isinstance(rows[4], str)
    assert rows[5] == in_payload


def test_apicurio_framing_when_ids_have_4_or_8_bytes_then_both_are_found() -> None:
    rows = [
        b"\0" + struct.pack(">q", 5) + b"x",
        b"\0" + struct.pack(">i", 5) + b"y",
        None,
        b"\0\0\0\0\0\0",
        b"\1",
    ]
    result = found(frames("apicurio", rows))
    assert result[:3] == [
        (Writer(SchemaId("globalId", 5), None), b"x"),
        (Writer(SchemaId("contentId", 5), None), b"y"),
        None,
    ]
    assert [type(row) for row in result[3:]] == [str, str]


def test_apicurio_framing_of_protobuf_when_it_has_a_ref_then_the_message_is_named() -> None:
    start = b"\0" + struct.pack(">i", 5)
    rows = [start + b"\x07\x0a\x05Ordertail", start + b"\x07\x0a\x05Orde", start, start + b"\x02\x12\x00"]
    result = found(frames("apicurio", list(rows), messages=True))
    assert result[0] == (Writer(SchemaId("contentId", 5), "Order"), b"tail")
    assert [type(row) for row in result[1:]] == [str, str, str]


def test_apicurio_headers_of_protobuf_when_they_name_the_message_then_a_ref_is_skipped() -> None:
    ids = binary_rows(pa.array([struct.pack(">q", 5)] * 5))
    names = binary_rows(pa.array([b"Order", b"Order", b"Item", None, b"\xff"]))
    ref = b"\x07\x0a\x05Order"
    rows = binary_rows(pa.array([b"body", ref + b"body", ref + b"body", ref + b"body", b"body"]))
    none = binary_rows(pa.array([None] * 5, pa.binary()))
    headers: Any = {"globalId": none, "contentId": ids}
    result = found(find_frames("apicurio-headers", rows, headers, with_messages=True, names=names))
    order, item = (Writer(SchemaId("contentId", 5), name) for name in ("Order", "Item"))
    assert result[:4] == [(order, b"body"), (order, b"body"), (item, ref + b"body"), (order, b"body")]
    assert "UTF-8" in str(result[4])


def test_apicurio_headers_of_protobuf_when_each_record_has_another_id_then_a_name_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ids are chosen by producers: a look at all records for each id would take the square of their number."""
    looked: list[str] = []

    def noted(name: str) -> bytes:
        looked.append(name)
        return ref_of(name)

    monkeypatch.setattr(framing, "ref_of", noted)
    count = 300
    ids = binary_rows(pa.array([struct.pack(">q", number) for number in range(count)]))
    names = binary_rows(pa.array([(b"Order", b"Item")[number % 2] for number in range(count)]))
    rows = binary_rows(pa.array([b"\x07\x0a\x05Orderbody"] * count))
    headers: Any = {"globalId": ids, "contentId": binary_rows(pa.nulls(count, pa.binary()))}
    result = found(find_frames("apicurio-headers", rows, headers, with_messages=True, names=names))
    assert result[298:] == [
        (Writer(SchemaId("globalId", 298), "Order"), b"body"),
        (Writer(SchemaId("globalId", 299), "Item"), b"\x07\x0a\x05Orderbody"),
    ]
    assert looked == ["Order", "Item"]


@given(st.lists(st.tuples(guids, bodies, st.booleans()) | st.binary(max_size=24), max_size=20))
@settings(max_examples=60, deadline=None)
def test_glue_framing_when_plain_or_compressed_then_the_payloads_are_found(rows: list[Any]) -> None:
    given_rows: list[bytes | None] = []
    for row in rows:
        if isinstance(row, bytes):
            given_rows.append(b"\3\5" + row)
        else:
            name, body, packed = row
            data = zlib.compress(body) if packed else body
            given_rows.append(bytes([3, 5 if packed else 0]) + name.bytes + data)
    result = found(frames("glue", given_rows))
    for row, ours in zip(rows, result, strict=True):
        expected = None if isinstance(row, bytes) else (Writer(SchemaId("glue", str(row[0])), None), row[1])
        assert ours == expected or (expected is None and isinstance(ours, str))


def test_glue_payload_when_it_decompresses_to_too_much_then_is_an_error_in_bounded_memory() -> None:
    bomb = b"\3\5" + uuid.uuid4().bytes + zlib.compress(bytes(70 << 20))
    result = found(frames("glue", [bomb, b"\3\0" + bytes(16) + b"z"]))
    assert str(result[0]).startswith("position 18: expected at most 67108864 decompressed bytes")
    assert result[1] == (Writer(SchemaId("glue", str(uuid.UUID(int=0))), None), b"z")


def test_glue_payloads_when_a_batch_decompresses_to_too_much_then_its_last_ones_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkafmt.decode.framing.MAX_DECOMPRESSED_BATCH_BYTES", 100)
    rows: list[bytes | None] = [
        b"\3\5" + bytes(16) + zlib.compress(bytes(size)) for size in (60, 41, 40, 0, 1)
    ]
    result = found(frames("glue", rows))
    assert [len(row[1]) if isinstance(row, tuple) else row.partition(":")[0] for row in result] == [
        60,
        "position 18",
        40,
        0,
        "position 18",
    ]


def test_auto_framing_when_json_is_with_and_without_ids_then_both_are_found() -> None:
    result = found(frames("auto", [b"{}", b"\0\0\0\0\1{}", b"", None]))
    plain = Writer(None, None)
    assert result == [(plain, b"{}"), (Writer(SchemaId("id", 1), None), b"{}"), (plain, b""), None]
