"""Payloads that Apicurio's serializers of versions 2 and 3 write are decoded with the schemas that they register."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from broker.jars import APICURIO_2, APICURIO_3, JarSet
from decode.rows import Headers, batch
from decode.stand_in import CONFLUENT_PATH, Registry
from decode.test_decoding import decode
from decode.test_protobuf_schemas import with_imports
from kafkafmt.decode import Decoding, Schema, SchemaRegistry
from kafkafmt.decode.protobuf import FORMAT
from kafkafmt.decode.protobuf.schemas import message_descriptors
from oracle.kafka import java

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.xdist_group("apicurio")]

PROGRAM = Path(__file__).with_name("Payloads.java")
PREFIX = "io.apicurio.registry.serde"
SERIALIZERS = {
    "avro": f"{PREFIX}.avro.AvroKafkaSerializer",
    "json": f"{PREFIX}.jsonschema.JsonSchemaKafkaSerializer",
    "protobuf": f"{PREFIX}.protobuf.ProtobufKafkaSerializer",
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
PROTOBUF = (
    'syntax = "proto3"; package shop; message Other {} message Order { int64 id = 1; string name = 2; }'
)
ROWS = [{"id": 1, "name": ""}, {"id": 2, "name": "é"}, {"id": 3, "name": "x" * 300}]


class Payloads:
    """A program that writes payloads with the serializers of a version."""

    def __init__(self, jars: JarSet) -> None:
        command = [java("java"), "-Xmx128m", "-XX:+UseSerialGC", "-cp", jars.classpath(), str(PROGRAM)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write(self, name: str, settings: dict[str, str], schema: bytes = b"") -> list[tuple[bytes, Headers]]:
        """Return the values and headers of the records."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        fields = [SERIALIZERS[name], name, b64encode(schema or schema_bytes(name)).decode()]
        fields += [f"{key}={value}" for key, value in settings.items()]
        self.process.stdin.write("\t".join(fields) + "\n")
        self.process.stdin.flush()
        records = []
        for line in iter(self.process.stdout.readline, ""):
            if line == "end\n":
                return records
            value, *headers = line.rstrip("\n").split("\t")
            pairs = [header.split("=") for header in headers]
            records.append((bytes.fromhex(value), [(key, bytes.fromhex(text)) for key, text in pairs]))
        raise AssertionError("the program has ended")


def schema_bytes(name: str) -> bytes:
    if name == "protobuf":
        from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

        file = FileDescriptorProto()
        message_descriptors(Schema("PROTOBUF", PROTOBUF))[0].file.CopyToProto(file)
        return FileDescriptorSet(file=[file]).SerializeToString()
    return json.dumps(AVRO if name == "avro" else JSON).encode()


def running(jars: JarSet) -> Iterator[Payloads]:
    payloads = Payloads(jars)
    yield payloads
    assert payloads.process.stdin is not None
    assert payloads.process.stdout is not None
    payloads.process.stdin.close()
    payloads.process.stdout.close()
    assert payloads.process.wait(60) == 0


@pytest.fixture(scope="module")
def version_2() -> Iterator[Payloads]:
    yield from running(APICURIO_2)


@pytest.fixture(scope="module")
def version_3() -> Iterator[Payloads]:
    yield from running(APICURIO_3)


class Case(NamedTuple):
    """Settings of a serializer, and how its payloads start or what their headers are named."""

    framing: Any
    start: bytes | str
    settings: dict[str, str] = {}  # noqa: RUF012
    ids: Any = None


NO_HEADERS = {"apicurio.registry.headers.enabled": "false"}
CONFLUENT = {**NO_HEADERS, "apicurio.registry.as-confluent": "true", "apicurio.registry.use-id": "contentId"}
INDEXES = {"apicurio.registry.serde.send-type-ref": "false", "apicurio.registry.serde.send-indexes": "true"}
EIGHT_BYTES = {"apicurio.registry.id-handler": f"{PREFIX}.Legacy8ByteIdHandler"}
GLOBAL_IDS = {"apicurio.registry.use-id": "globalId"}
CASES_2 = {
    "headers": Case("apicurio-headers", "apicurio.value.globalId"),
    "headers with the contentId": Case(
        "apicurio-headers", "apicurio.value.contentId", {"apicurio.registry.use-id": "contentId"}
    ),
    "8 bytes": Case("apicurio", (1001).to_bytes(9, "big"), NO_HEADERS),
    "as Confluent": Case("apicurio", (1).to_bytes(5, "big"), CONFLUENT),
}
CASES_3 = {
    "4 bytes": Case("apicurio", (1).to_bytes(5, "big")),
    "4 bytes with the globalId": Case("apicurio", (1001).to_bytes(5, "big"), GLOBAL_IDS, "globalId"),
    "8 bytes": Case("apicurio", (1001).to_bytes(9, "big"), EIGHT_BYTES | GLOBAL_IDS),
    "8 bytes with the contentId": Case("apicurio", (1).to_bytes(9, "big"), EIGHT_BYTES, "contentId"),
    "headers": Case(
        "apicurio-headers", "apicurio.value.contentId", {"apicurio.registry.headers.enabled": "true"}
    ),
    "as Confluent": Case("confluent", (1).to_bytes(5, "big"), INDEXES),
}


def assert_decoded(payloads: Payloads, registry: Registry, name: Any, case: Case, version: str) -> None:
    if name == "avro":
        pytest.importorskip("kafkafmt.decode.avro")
    if name == "json":  # its serializer takes the newest schema of the artifact
        registry.register("orders-value", {"schema": json.dumps(JSON), "schemaType": "JSON"})
    path = f"/apis/registry/{version}"
    settings = {"apicurio.registry.url": registry.url + path, "apicurio.registry.auto-register": "true"}
    records = payloads.write(name, settings | case.settings)
    assert len(records) == len(ROWS)
    for value, headers in records:
        if isinstance(case.start, bytes):
            assert value.startswith(case.start)
        else:
            assert case.start in [key for key, _ in headers]
    rows = batch([value for value, _ in records], headers=[headers for _, headers in records])
    source = SchemaRegistry(registry.url + CONFLUENT_PATH, apicurio_path=path, apicurio_id=case.ids)
    decoded = decode(Decoding(value=name, schemas=source, framing=case.framing), rows, topics=("orders",))
    assert decoded.column("value_error").null_count == len(ROWS)
    assert decoded.column("value").to_pylist() == ROWS
    assert decoded.schema.field("value").type == pa.struct([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize("name", SERIALIZERS)
@pytest.mark.parametrize("case", CASES_2)
def test_payloads_when_written_by_apicurio_2_then_are_decoded(
    version_2: Payloads, registry: Registry, name: str, case: str
) -> None:
    assert_decoded(version_2, registry, name, CASES_2[case], "v2")


@pytest.mark.parametrize("name", SERIALIZERS)
@pytest.mark.parametrize("case", CASES_3)
def test_payloads_when_written_by_apicurio_3_then_are_decoded(
    version_3: Payloads, registry: Registry, name: str, case: str
) -> None:
    assert_decoded(version_3, registry, name, CASES_3[case], "v3")


IMPORTS = {
    "common/id.proto": 'syntax = "proto3"; package common; message Id { int64 number = 1; }',
    "shop/item.proto": 'syntax = "proto3"; package shop; import "common/id.proto"; message Item { common.Id id = 1; }',
}
WITH_IMPORTS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/item.proto";
message Order { int64 id = 1; string name = 2; Item item = 3; google.protobuf.Timestamp at = 4; }
"""


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_payloads_when_the_schema_has_imports_then_their_references_are_followed(
    request: pytest.FixtureRequest, registry: Registry, version: str
) -> None:
    payloads: Payloads = request.getfixturevalue(f"version_{version[1:]}")
    inner = tuple((name, Schema("PROTOBUF", text)) for name, text in IMPORTS.items())
    schema = Schema("PROTOBUF", WITH_IMPORTS, inner)
    path = f"/apis/registry/{version}"
    settings = {"apicurio.registry.url": registry.url + path, "apicurio.registry.auto-register": "true"}
    records = payloads.write("protobuf", settings | NO_HEADERS, with_imports(schema).content)  # type: ignore[arg-type]
    rows = batch([value for value, _ in records])
    source = SchemaRegistry(registry.url, apicurio_path=path)
    decoded = decode(Decoding(value="protobuf", schemas=source, framing="apicurio"), rows)
    assert decoded.column("value").to_pylist() == [{**row, "item": None, "at": None} for row in ROWS]
    assert decoded.schema.field("value").type == FORMAT.read_type(schema)
    assert {"shop/item.proto", "common/id.proto"} <= set(registry.subjects)
