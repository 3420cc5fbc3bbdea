from __future__ import annotations

import errno
import os
import signal
import struct
import sys
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2 as pb
from google.protobuf import message_factory

import kafkafmt
from decode.rows import Headers, batch, payloads
from decode.stand_in import Registry
from decode.test_decoding import decode
from kafkafmt import RecordBatchBuilder
from kafkafmt.decode import Decoding, Schema, SchemaError, SchemaSourceError
from kafkafmt.decode.protobuf import FORMAT
from kafkafmt.decode.protobuf.schemas import message_descriptors

MONEY = Schema(
    "PROTOBUF", 'syntax = "proto3"; package money; message Amount { int64 units = 1; string currency = 2; }'
)
ITEM = Schema(
    "PROTOBUF",
    'syntax = "proto3"; package shop; import "common/money.proto";'
    " message Item { string sku = 1; money.Amount price = 2; }",
    (("common/money.proto", MONEY),),
)
ORDER_TEXT = """
syntax = "proto3";
package shop;
import "shop/item.proto";
import "google/protobuf/timestamp.proto";
message Header { string source = 1; }
message Order {
  map<string, Item> items = 1;
  google.protobuf.Timestamp at = 2;
  message Line { int32 number = 1; Item item = 2; }
}
"""
ORDER = Schema("PROTOBUF", ORDER_TEXT, (("shop/item.proto", ITEM),), "shop.Order")
PAYLOAD = b"\x0a\x11\x0a\x01a\x12\x0c\x0a\x01s\x12\x07\x08\x05\x12\x03EUR"
ROW = {"items": [("a", {"sku": "s", "price": {"units": 5, "currency": "EUR"}})], "at": None}


def serialized(schema: Schema) -> Schema:
    """Return a schema as a registry serves it: a descriptor a file, whose imports are references."""
    file = pb.FileDescriptorProto()
    message_descriptors(Schema(schema.kind, schema.content, schema.references))[0].file.CopyToProto(file)
    file.name = "default"
    references = tuple((name, serialized(found)) for name, found in schema.references)
    return Schema(
        "PROTOBUF", pb.FileDescriptorSet(file=[file]).SerializeToString(), references, schema.message
    )


def with_imports(schema: Schema) -> Schema:
    """Return a schema as `protoc --include_imports` writes it."""
    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        for found in file.dependencies:
            add(found)
        files[file.name] = file.serialized_pb

    add(message_descriptors(schema)[0].file)
    content = pb.FileDescriptorSet(file=[pb.FileDescriptorProto.FromString(file) for file in files.values()])
    return Schema("PROTOBUF", content.SerializeToString(), (), schema.message)


@pytest.mark.parametrize(
    "make", [lambda schema: schema, serialized, with_imports], ids=["text", "registry", "protoc"]
)
def test_schema_when_it_has_imports_then_they_are_found(make: Any) -> None:
    schema = make(ORDER)
    result = FORMAT.decoder(schema, schema).decode(payloads([PAYLOAD]))
    assert result.array.to_pylist() == [ROW]


@pytest.mark.parametrize(
    ("text", "references", "message"),
    [
        ('syntax = "proto3";\nmessage A { int32 a = 1 }', (), r'schema.proto:2:25: Expected ";"'),
        ('syntax = "proto3"; import "a/b.proto";', (), r"a/b.proto: File not found"),
        ('syntax = "proto3"; message A { B b = 1; }', (), r'"B" is not defined'),
        ('syntax = "proto3";', (), "has no message with the index 0"),
        ("message A {}", (("../a.proto", MONEY),), "a Protobuf import has a relative path; found '../a.proto'"),
        ("message A {}", (("/etc/a.proto", MONEY),), "a Protobuf import has a relative path"),
        ("message A {}", (("a.proto", MONEY), ("a.proto", ITEM)), "imports two versions of a.proto"),
        (b"\xff", (), "expected a FileDescriptorSet; found 1 other bytes"),
        (b"", (), "expected a FileDescriptorSet with a file; found none"),
    ],
)  # fmt: skip
def test_schema_when_it_is_damaged_then_the_error_is_one_line(
    text: str | bytes, references: Any, message: str
) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        FORMAT.read_type(Schema("PROTOBUF", text, references))
    assert "\n" not in str(caught.value)
    assert "/tmp" not in str(caught.value)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(path: Path, text: str, encoding: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", write_text)


def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/missing")


def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafmt.decode.protobuf.schemas._COMPILE_SECONDS", 0)


def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    monkeypatch.setattr("kafkafmt.decode.protobuf.schemas._COMPILER", program)


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafmt.decode.protobuf.schemas._COMPILER", "raise MemoryError")


def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")


@pytest.mark.parametrize(
    ("fail", "problem"),
    [
        (full_disk, "No space left on device"),
        (no_folder, "/missing"),
        (late, "does not end within 0 seconds"),
        (killed, "status -9"),
        (no_memory, "status 1: MemoryError"),
        (no_process, "/missing/python"),
    ],
)
def test_schema_when_the_machine_cannot_compile_it_then_no_payload_is_lost(
    fail: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The message differs, so that no other test has compiled the schema.
    schema = Schema("PROTOBUF", f'syntax = "proto3"; message {fail.__name__} {{ int32 a = 1; }}')
    reader = Schema("PROTOBUF", 'syntax = "proto3"; message A { int32 a = 1; }')
    records = batch([b"\0\0\0\0\1\0\x08\x05"])
    decoding = Decoding(value="protobuf", schemas={1: schema}, reader_schema=reader)
    decoder = decoding.decoder(records.schema.names)
    with monkeypatch.context() as machine:
        fail(machine)
        with pytest.raises(SchemaSourceError, match=problem) as caught:
            decoder.decode(records)
        assert "\n" not in str(caught.value)
    assert decoder.decode(records).column("value").to_pylist() == [{"a": 5}]


@pytest.mark.parametrize(
    "names", [["a.proto", "a.proto/b.proto"], [f"{'a' * 300}.proto"]], ids=["folder", "long"]
)
def test_import_when_no_file_can_have_its_path_then_the_schema_is_damaged(names: list[str]) -> None:
    schema = Schema("PROTOBUF", 'syntax = "proto3"; message A {}', tuple((name, MONEY) for name in names))
    with pytest.raises(SchemaError, match="cannot be written"):
        FORMAT.read_type(schema)


@pytest.mark.parametrize(
    "name", ["grpc_tools/protoc.py", "grpc_tools/__init__.py", "sitecustomize.py", "os.py"]
)
def test_import_when_named_as_a_module_of_python_then_is_never_run(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "run"
    program = Schema("PROTOBUF", f"open({str(marker)!r}, 'w')\nraise SystemExit(1)\n")
    schema = Schema("PROTOBUF", 'syntax = "proto3"; message A { int32 a = 1; }', ((name, program),))
    assert str(FORMAT.read_type(schema)) == "struct<a: int32>"
    assert not marker.exists()


def test_descriptors_when_files_import_each_other_then_is_an_error() -> None:
    files = [pb.FileDescriptorProto(name=name, dependency=[other]) for name, other in ["ab", "ba"]]
    content = pb.FileDescriptorSet(file=files).SerializeToString()
    with pytest.raises(SchemaError, match="import each other"):
        FORMAT.read_type(Schema("PROTOBUF", content))


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (pb.FileDescriptorProto(name="TEXT"), "the name of a Protobuf file in UTF-8"),
        (pb.FileDescriptorProto(name="a", dependency=["TEXT"]), "the name of a Protobuf file in UTF-8"),
        (
            pb.FileDescriptorProto(
                name="a",
                message_type=[
                    pb.DescriptorProto(
                        name="A",
                        field=[
                            pb.FieldDescriptorProto(name="t", number=1, type=9, label=1, default_value="TEXT")
                        ],
                    )
                ],
            ),
            r"field A.t: expected a default in UTF-8; found b'\\xff\\xfe\\xfd\\xfc'",
        ),
    ],
    ids=["name", "import", "default"],
)
def test_descriptors_when_text_is_no_utf8_then_are_a_schema_error(
    file: pb.FileDescriptorProto, problem: str
) -> None:
    content = pb.FileDescriptorSet(file=[file]).SerializeToString().replace(b"TEXT", b"\xff\xfe\xfd\xfc")
    with pytest.raises(SchemaError, match=problem):
        FORMAT.read_type(Schema("PROTOBUF", content))


def test_descriptors_when_an_import_is_only_for_options_then_it_may_be_missing() -> None:
    file = pb.FileDescriptorProto(name="a", dependency=["company/options.proto"], public_dependency=[0])
    file.message_type.add(name="A").field.add(name="a", number=1, type=5, label=1)
    schema = Schema("PROTOBUF", pb.FileDescriptorSet(file=[file]).SerializeToString())
    assert str(FORMAT.read_type(schema)) == "struct<a: int32>"
    file.message_type[0].field[0].type = 11
    file.message_type[0].field[0].type_name = ".company.Type"
    with pytest.raises(SchemaError, match=r"company\.Type"):
        FORMAT.read_type(Schema("PROTOBUF", pb.FileDescriptorSet(file=[file]).SerializeToString()))


CLIENT_FILES = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/types/decimal.proto";
import "google/type/date.proto";
message A {
  confluent.type.Decimal price = 1 [(confluent.field_meta).doc = "price", (confluent.field_meta).tags = "PII"];
  google.type.Date day = 2;
}
"""


@pytest.mark.parametrize("make", [lambda schema: schema, serialized], ids=["text", "registry"])
def test_schema_when_it_imports_files_that_clients_have_then_no_reference_is_needed(make: Any) -> None:
    schema = make(Schema("PROTOBUF", CLIENT_FILES))
    result = FORMAT.decoder(schema, schema).decode(
        payloads([b"\x0a\x05\x0a\x01\x05\x18\x02\x12\x03\x08\xe8\x0f"])
    )
    assert result.array.to_pylist() == [
        {"price": {"value": b"\x05", "precision": 0, "scale": 2}, "day": {"year": 2024, "month": 0, "day": 0}}
    ]


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ((0,), ["shop.Header"]),
        ((1,), ["shop.Order"]),
        # The entry of the map is the first nested message for some of Confluent's clients.
        ((1, 0), ["shop.Order.Line"]),
        ((1, 1), ["shop.Order.Line"]),
        ("Order", ["shop.Order"]),
        ("Order.Line", ["shop.Order.Line"]),
        ("money.Amount", ["money.Amount"]),
    ],
)
def test_message_when_named_or_by_index_then_is_found(message: Any, names: list[str]) -> None:
    schema = Schema("PROTOBUF", ORDER_TEXT, ORDER.references, message)
    assert [found.full_name for found in message_descriptors(schema)] == names


def test_message_when_clients_count_differently_then_that_of_the_reader_is_meant() -> None:
    fields = "map<int32, int32> m = 1; message B { int32 b = 1; } message C { int32 c = 1; }"
    text = f'syntax = "proto3"; message A {{ {fields} }}'
    writer = Schema("PROTOBUF", text, (), (0, 1))
    for name, field in (("A.B", "b"), ("A.C", "c")):
        decoder = FORMAT.decoder(writer, Schema("PROTOBUF", text, (), name))
        assert decoder.decode(payloads([b"\x08\x05"])).array.to_pylist() == [{field: 5}]
    assert FORMAT.decoder(writer, writer).decode(payloads([b"\x08\x05"])).array.to_pylist() == [{"c": 5}]


@pytest.mark.parametrize("message", [(2,), (-1,), (1, 2), (), "Missing"])
def test_message_when_there_is_none_then_is_an_error(message: Any) -> None:
    with pytest.raises(SchemaError, match="has no message"):
        FORMAT.read_type(Schema("PROTOBUF", ORDER_TEXT, ORDER.references, message))


def test_edition_when_fields_have_features_then_they_count() -> None:
    text = """
    edition = "2023";
    message A {
      int32 explicit = 1;
      int32 implicit = 2 [features.field_presence = IMPLICIT];
      int32 required = 3 [features.field_presence = LEGACY_REQUIRED];
      A inner = 4 [features.message_encoding = DELIMITED];
      int32 with_default = 5 [default = 9];
    }
    """
    schema = Schema("PROTOBUF", text)
    result = FORMAT.decoder(schema, schema).decode(
        payloads([b"\x18\x01", b"\x18\x01\x23\x18\x02\x24", b"", b"\x18\x01\x23\x24"])
    )
    plain = {"explicit": None, "implicit": 0, "required": 1, "inner": None, "with_default": 9}
    assert result.array.to_pylist() == [plain, {**plain, "inner": b"\x18\x02"}, None, None]
    assert result.errors == {
        2: "position 0, required: expected the field, which is required; found none",
        3: "position 3, required: expected the field, which is required; found none",
    }


def written(
    registry: Registry, schema: Schema, values: list[dict[str, Any]], **settings: Any
) -> list[tuple[bytes, Headers]]:
    """Return messages as confluent-kafka's serializer writes them, and their headers."""
    client = SchemaRegistryClient({"url": registry.url})
    kind = message_factory.GetMessageClass(message_descriptors(schema)[0])
    serializer = ProtobufSerializer(kind, client, settings or {})  # type: ignore[arg-type]
    records = []
    for value in values:
        context = SerializationContext("orders", MessageField.VALUE, [])
        records.append((serializer(kind(**value), context), context.headers))
    return records  # type: ignore[return-value]


@pytest.mark.parametrize("message", ["shop.Order", "shop.Order.Line", "shop.Header"])
@pytest.mark.parametrize("framing", ["confluent", "confluent-headers"])
def test_payloads_when_written_by_confluent_kafka_then_are_decoded(
    registry: Registry, message: str, framing: Any
) -> None:
    schema = Schema("PROTOBUF", ORDER_TEXT, ORDER.references, message)
    value = {
        "shop.Order": {"items": {"a": {"sku": "s", "price": {"units": 5, "currency": "EUR"}}}},
        "shop.Order.Line": {"number": 7},
        "shop.Header": {"source": "x"},
    }[message]
    settings: dict[str, Any] = {}
    if framing == "confluent-headers":
        settings["schema.id.serializer"] = header_schema_id_serializer
    records = written(registry, schema, [value, {}], **settings)
    rows = batch([None, *(record for record, _ in records)], headers=[None, *(found for _, found in records)])
    decoded = decode(
        Decoding(value="protobuf", schemas=registry.url, framing=framing), rows, topics=("orders",)
    )
    first, second, third = decoded.column("value").to_pylist()
    assert first is None
    if message == "shop.Order":
        assert (second, third) == (ROW, {"items": [], "at": None})
    else:
        assert {name: found for name, found in second.items() if found is not None} == value
        assert third is not None
    assert decoded.column("value_error").null_count == 3


def test_scan_when_a_log_has_payloads_of_confluent_kafka_then_its_rows_are_decoded(
    registry: Registry, tmp_path: Path
) -> None:
    values = [{"items": {"a": {"sku": str(number)}}} for number in range(50)]
    builder = RecordBatchBuilder()
    for number, (value, headers) in enumerate(written(registry, ORDER, values)):
        builder.append(number, None, None if number == 7 else value, headers)
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(builder.build())
    decoding = Decoding(value="protobuf", schemas=registry.url)
    table = kafkafmt.scan(tmp_path, columns=["value", "offset"], decode=decoding).to_arrow()
    assert table.schema.field("value").type == FORMAT.read_type(ORDER)
    assert table.column("value_error").null_count == 50
    rows = table.to_pylist()
    assert [row["offset"] for row in rows] == list(range(50))
    assert rows[7]["value"] is None
    assert rows[8]["value"] == {"items": [("a", {"sku": "8", "price": None})], "at": None}


def test_payloads_when_versions_are_mixed_then_rows_have_the_newest_type(registry: Registry) -> None:
    texts = [
        "int32 id = 1; string old = 2;",
        "int64 id = 1; optional string note = 3;",
        "sint64 id = 1;",
    ]
    schemas = [Schema("PROTOBUF", f'syntax = "proto3"; package s; message A {{ {text} }}') for text in texts]
    rows = [
        written(registry, schemas[0], [{"id": -1, "old": "x"}])[0][0],
        written(registry, schemas[2], [{"id": 4}])[0][0],
        written(registry, schemas[1], [{"id": 2**40, "note": ""}])[0][0],
    ]
    decoded = decode(Decoding(value="protobuf", schemas=registry.url), batch(list(rows)), topics=("orders",))
    assert decoded.column("value").to_pylist() == [
        {"id": -1, "note": None},
        None,
        {"id": 2**40, "note": ""},
    ]
    assert decoded.column("value_error").to_pylist() == [None, "id: sint64 cannot be read as int64", None]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(("message", "index"), [("A", 0), ("A.C", 2), ("B", 3)])
def test_payloads_of_glue_when_decoded_then_are_of_the_message_with_the_index(
    tmp_path: Path, is_compressed: bool, message: str, index: int
) -> None:
    name = uuid.uuid4()
    text = "message B { int32 a = 1; } message A { message C { int32 a = 1; } message B {} int32 a = 1; }"
    (tmp_path / f"{name}.proto").write_text(f'syntax = "proto3"; {text}')
    head = struct.pack("BB", 3, 5 if is_compressed else 0) + name.bytes
    bodies = [bytes([index]) + b"\x08\x05", bytes([index]) + b"\x08", b"\x07\x08\x05", b"", b"\x80"]
    rows = batch([head + (zlib.compress(body) if is_compressed else body) for body in bodies])
    reader = Schema("PROTOBUF", f'syntax = "proto3"; {text}', (), message)
    decoding = Decoding(value="protobuf", schemas=tmp_path, framing="glue", reader_schema=reader)
    decoded = decode(decoding, rows)
    assert decoded.column("value").to_pylist() == [{"a": 5}, None, None, None, None]
    errors = decoded.column("value_error").to_pylist()
    assert errors[:3] == [
        None,
        "position 1, a: expected a value; the bytes end in it",
        "the Protobuf schema has no message with the index 7 of AWS Glue",
    ]
    assert "expected a message index after the schema id" in errors[3]
    assert "expected a message index after the schema id" in errors[4]
