from __future__ import annotations

import base64
import pickle
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from decode.stand_in import Registry, running_registry
from kafkafmt.decode import (
    RegistryOptions,
    Schema,
    SchemaError,
    SchemaId,
    SchemaRegistry,
    SchemaSourceError,
    UnknownSchemaError,
)
from server.security.certificates import make_certificates

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


def test_answer_when_its_connection_breaks_then_is_asked_for_again(registry: Registry) -> None:
    registry.register("a", {"schema": AVRO})
    registry.breaks = 2
    waits = Waits()
    source = SchemaRegistry(registry.url, RegistryOptions(backoff_seconds=1), sleep=waits)
    assert source.schema(FIRST, "AVRO").content == AVRO
    assert waits == [1, 2]
    registry.breaks = 5
    with pytest.raises(SchemaSourceError, match=r"the answer ends \d+ bytes before its end, 5 times"):
        source.newest("a", "AVRO")


@pytest.mark.parametrize("sends_anyway", [False, True])
def test_answer_when_it_is_compressed_then_is_not_asked_for_and_not_taken(
    registry: Registry, sends_anyway: bool
) -> None:
    registry.register("a", {"schema": AVRO})
    registry.compresses = "always" if sends_anyway else "asked"
    if not sends_anyway:
        assert client(registry).schema(FIRST, "AVRO").content == AVRO
        return
    with pytest.raises(SchemaSourceError, match="expected no Content-Encoding; found 'gzip'"):
        client(registry).schema(FIRST, "AVRO")


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
    with pytest.raises(ValueError, match="http or https"):
        SchemaRegistry(url)


@pytest.mark.parametrize(
    "url", ["http://user:s3/cret@host", "http://user:s3?cret@host", "http://user:s3#cret@host"]
)
def test_url_when_its_password_is_not_encoded_then_is_refused_without_it(url: str) -> None:
    with pytest.raises(ValueError, match="percent-encode") as caught:
        SchemaRegistry(url)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("http://a:s3cret@host", RegistryOptions(username="b"), "in its URL or in its options"),
        ("http://a:s3cret@host", RegistryOptions(password="s3cret"), "in its URL or in its options"),
        ("http://host", RegistryOptions(password="s3cret"), "needs a user name"),
        ("http://host", RegistryOptions(password="s3cret", token="s3cret"), "needs a user name"),
    ],
)
def test_credentials_when_they_contradict_then_are_refused_without_them(
    url: str, options: RegistryOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SchemaRegistry(url, options)
    assert "s3cret" not in str(caught.value)


def test_token_when_it_has_a_line_feed_then_is_refused_without_it() -> None:
    with pytest.raises(ValueError, match="no token can have") as caught:
        SchemaRegistry("http://host", RegistryOptions(token="s3cret\n"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("answer", [b"1", b'{"a":1}', b'["a"]', b"[{}]"])
def test_apicurio_when_its_references_are_damaged_then_is_one_clear_error(
    registry: Registry, answer: bytes
) -> None:
    registry.failures = [b"{}", answer]
    with pytest.raises(SchemaSourceError, match="/references: expected"):
        client(registry).schema(SchemaId("contentId", 1), "AVRO")


def test_versions_of_an_id_when_damaged_then_the_schema_itself_is_the_newest(registry: Registry) -> None:
    registry.register("a", {"schema": AVRO})
    registry.failures = [b"1"]
    assert client(registry).newest_after([FIRST], "AVRO") == Schema("AVRO", AVRO)


def test_newest_schema_when_no_subject_has_the_first_ids_then_the_others_are_not_asked_for(
    registry: Registry,
) -> None:
    registry.register("a", {"schema": AVRO})
    with pytest.raises(SchemaError, match="several subjects"):
        client(registry).newest_after([FIRST, *(SchemaId("id", number) for number in range(2, 100))], "AVRO")
    assert registry.requests == ["/schemas/ids/1/versions", "/schemas/ids/2/versions"]


def test_unknown_ids_when_there_are_very_many_then_take_bounded_memory(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.decode.schemas.registry._MAX_MISSING", 3)
    source = client(registry)
    for number in (1, 2, 3, 4, 4, 1):
        with pytest.raises(UnknownSchemaError):
            source.schema(SchemaId("id", number), "AVRO")
    assert [path.rpartition("/")[2] for path in registry.requests] == ["1", "2", "3", "4", "1"]


def test_registry_when_it_has_tls_then_its_certificate_and_that_of_the_client_are_checked(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)
    context.load_verify_locations(files.client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    # The certificates that the environment names do not replace those that the options name.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(files.client_ca))
    names = {
        "ssl.ca.location": files.server_ca,
        "ssl.certificate.location": files.client,
        "ssl.key.location": files.client_key,
    }
    settings = {name: str(path) for name, path in names.items()}
    with running_registry(context) as secured:
        secured.register("a", {"schema": AVRO})
        known = SchemaRegistry(secured.url, RegistryOptions.of_settings(settings))
        assert known.schema(FIRST, "AVRO").content == AVRO
        others = {"ssl.ca.location": str(files.client_ca)}, {"ssl.ca.location": str(files.server_ca)}
        for given, problem in zip(others, ("CERTIFICATE_VERIFY_FAILED", "does not answer|SSL"), strict=True):
            stranger = SchemaRegistry(secured.url, RegistryOptions.of_settings(given), sleep=Waits())
            with pytest.raises(SchemaSourceError, match=problem):
                stranger.schema(FIRST, "AVRO")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries: expected 0 to .*, found -1"),
        ({"timeout_seconds": 0}, "timeout_seconds: expected more than 0; found 0"),
        ({"backoff_seconds": -1}, "backoff_seconds: expected 0 or more; found -1"),
        ({"not_found_seconds": float("nan")}, "not_found_seconds: expected 0 or more; found nan"),
    ],
)
def test_registry_options_when_a_number_is_out_of_range_then_value_error_names_it(
    options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RegistryOptions(**options)


def test_registry_settings_when_one_is_unknown_then_value_error_without_its_value() -> None:
    with pytest.raises(ValueError, match="unknown registry setting") as caught:
        RegistryOptions.of_settings({"basic.auth": "s3cret"})
    assert "s3cret" not in str(caught.value)
