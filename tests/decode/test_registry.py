from __future__ import annotations

import base64
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from decode.stand_in import Registry
from kafkafmt._util.user_errors import UserError
from kafkafmt.decode import (
    RegistryOptions,
    Schema,
    SchemaError,
    SchemaId,
    SchemaRegistry,
    SchemaSourceError,
    UnknownSchemaError,
)

AVRO = '{"type":"record","name":"A","fields":[]}'
FIRST = SchemaId("id", 1)


class Waits(list[float]):
    """Records how long a registry would wait, and does not wait."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client(registry: Registry, options: RegistryOptions | None = None) -> SchemaRegistry:
    return SchemaRegistry(registry.url, options, sleep=Waits())


def test_schema_when_asked_for_again_then_comes_from_the_cache(registry: Registry) -> None:
    registry.register("a-value", {"schema": AVRO})
    source = client(registry)
    assert {source.schema(FIRST, "AVRO") for _ in range(3)} == {Schema("AVRO", AVRO)}
    assert registry.requests == ["/schemas/ids/1"]
    guid = SchemaId("guid", registry.schemas[1]["guid"])
    assert source.schema(guid, "AVRO") == Schema("AVRO", AVRO)


def test_schema_when_many_threads_need_it_then_one_request_is_made(registry: Registry) -> None:
    registry.register("a-value", {"schema": AVRO})
    registry.gate = threading.Event()
    source = client(registry)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(source.schema, FIRST, "AVRO") for _ in range(8)]
        registry.gate.set()
        assert {answer.result() for answer in answers} == {Schema("AVRO", AVRO)}
    assert registry.requests == ["/schemas/ids/1"]


def test_schema_when_it_has_references_then_they_are_fetched_with_theirs(registry: Registry) -> None:
    registry.register("c", {"schema": '"int"'})
    registry.register(
        "b/d", {"schema": '"long"', "references": [{"name": "C", "subject": "c", "version": 1}]}
    )
    registry.register("a", {"schema": AVRO, "references": [{"name": "B", "subject": "b/d", "version": 1}]})
    inner = Schema("AVRO", '"long"', (("C", Schema("AVRO", '"int"')),))
    assert client(registry).schema(SchemaId("id", 3), "AVRO") == Schema("AVRO", AVRO, (("B", inner),))


def test_schema_when_references_go_in_a_circle_then_is_an_error(registry: Registry) -> None:
    registry.register("a", {"schema": AVRO, "references": [{"name": "A", "subject": "a", "version": 1}]})
    with pytest.raises(SchemaError, match="nested too deeply"):
        client(registry).schema(FIRST, "AVRO")


def test_protobuf_schema_when_fetched_then_is_a_set_of_one_file(registry: Registry) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    file = FileDescriptorProto(name="x" * 200)
    text = base64.b64encode(file.SerializeToString()).decode()
    registry.register("a", {"schema": text, "schemaType": "PROTOBUF"})
    found = client(registry).schema(FIRST, "PROTOBUF")
    assert isinstance(found.content, bytes)
    assert list(FileDescriptorSet.FromString(found.content).file) == [file]
    assert registry.requests == ["/schemas/ids/1?format=serialized"]


def test_unknown_id_when_asked_for_again_then_is_not_requested_until_the_time_is_over(
    registry: Registry,
) -> None:
    source = client(registry)
    for _ in range(2):
        with pytest.raises(UnknownSchemaError, match="schema id 1 is unknown to http://127"):
            source.schema(FIRST, "AVRO")
    assert len(registry.requests) == 1
    impatient = client(registry, RegistryOptions(not_found_seconds=0))
    with pytest.raises(UnknownSchemaError):
        impatient.schema(FIRST, "AVRO")
    registry.register("a", {"schema": AVRO})
    assert impatient.schema(FIRST, "AVRO").content == AVRO


def test_registry_when_it_fails_for_a_while_then_requests_are_repeated_with_growing_waits(
    registry: Registry,
) -> None:
    registry.register("a", {"schema": AVRO})
    registry.failures = [429, 503, 500]
    waits = Waits()
    source = SchemaRegistry(registry.url, RegistryOptions(backoff_seconds=1), sleep=waits)
    assert source.schema(FIRST, "AVRO").content == AVRO
    assert waits == [1, 2, 4]


@pytest.mark.parametrize(
    ("failure", "requests", "message"),
    [
        (503, 5, "status 503, 5 times"),
        (400, 1, "found 400"),
        (302, 1, "found 302"),
        (401, 1, "refuses the credentials"),
        (b"<html>", 1, "expected JSON"),
        (b"\xff", 1, "expected JSON"),
        (b"[" * 100_000, 1, "expected JSON"),
        (b"[1]", 1, "expected schema id 1 as a JSON object"),
        (b'{"schema":"x","references":[{}]}', 1, "damaged reference"),
        (b'{"schema":"x","references":1}', 1, "damaged reference"),
        (b"1" * (17 << 20), 1, "more than"),
    ],
)
def test_registry_when_it_answers_badly_then_is_one_clear_error(
    registry: Registry, failure: int | bytes, requests: int, message: str
) -> None:
    registry.failures = [failure] * requests
    with pytest.raises(SchemaSourceError, match=message) as caught:
        client(registry).schema(FIRST, "AVRO")
    assert "\n" not in str(caught.value)
    assert len(registry.requests) == requests


def test_registry_when_it_does_not_answer_then_the_wait_is_bounded(registry: Registry) -> None:
    registry.gate = threading.Event()
    options = RegistryOptions(timeout_seconds=0.1, retries=1)
    with pytest.raises(SchemaSourceError, match=r"does not answer.*2 times"):
        client(registry, options).schema(FIRST, "AVRO")
    registry.gate.set()


def test_registry_when_nobody_listens_then_the_error_names_it() -> None:
    source = SchemaRegistry("http://user:secret@127.0.0.1:9", RegistryOptions(retries=1), sleep=Waits())
    with pytest.raises(SchemaSourceError, match=r"127\.0\.0\.1:9") as caught:
        source.schema(FIRST, "AVRO")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["url", "options", "token"])
def test_credentials_when_given_then_are_sent_and_never_shown(registry: Registry, where: str) -> None:
    registry.register("a", {"schema": AVRO})
    basic = "Basic " + base64.b64encode("käthe:s3cret".encode()).decode()
    registry.authorization = "Bearer s3cret" if where == "token" else basic
    options = {
        "url": None,
        "options": RegistryOptions(username="käthe", password="s3cret"),
        "token": RegistryOptions(token="s3cret"),
    }[where]
    url = registry.url.replace("//", "//k%C3%A4the:s3cret@") if where == "url" else registry.url
    source = pickle.loads(pickle.dumps(SchemaRegistry(url, options, sleep=Waits())))
    assert source.schema(FIRST, "AVRO").content == AVRO
    assert "s3cret" not in repr(source) + repr(options)
    registry.authorization = "other"
    with pytest.raises(SchemaSourceError, match="refuses the credentials") as caught:
        source.newest("a", "AVRO")
    assert "s3cret" not in str(caught.value)


def test_newest_schema_when_a_subject_has_versions_then_is_the_last(registry: Registry) -> None:
    registry.register("orders/a-value", {"schema": '"int"'})
    registry.register("orders/a-value", {"schema": '"long"'})
    source = client(registry)
    assert source.newest("orders/a-value", "AVRO") == Schema("AVRO", '"long"')
    assert source.newest("missing", "AVRO") is None
    assert source.newest_after([FIRST], "AVRO") == Schema("AVRO", '"long"')


def test_schema_when_of_another_kind_then_the_error_names_both(registry: Registry) -> None:
    registry.register("a", {"schema": "{}", "schemaType": "JSON"})
    with pytest.raises(SchemaError, match="schema id 1 is of type JSON; expected AVRO"):
        client(registry).schema(FIRST, "AVRO")


@pytest.mark.parametrize("url", ["registry:8081", "ftp://a", "http://", "file:///x"])
def test_url_when_it_is_not_of_http_then_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="http or https"):
        SchemaRegistry(url)
