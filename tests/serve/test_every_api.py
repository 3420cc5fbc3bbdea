"""Every API at every version that the endpoint advertises is answered over a socket, at that version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from data.real_logs import LOGS
from endpoints.raw_client import RawClient
from endpoints.served import Served
from kafkafmt.server.wire import SUPPORTED, api_name
from server.messages import request_class

VERSIONS = [
    pytest.param(api_key, version, id=f"{api_name(api_key)}-v{version}")
    for api_key, versions in SUPPORTED.items()
    for version in versions
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = shutil.copytree(LOGS, tmp_path_factory.mktemp("served") / "logs")
    with Served(folder, allow_produce=True) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(served.address) as client:
        yield client


def blank(api_key: int, version: int) -> Any:
    """A request with nothing in it: empty names, no partitions."""
    return request_class(api_key)(version=version, **_blank_fields(request_class(api_key)._struct, version))


def one_of_each(api_key: int, version: int) -> Any:
    """A request with one element in each array, whose names and numbers mean nothing here."""
    cls = request_class(api_key)
    return cls(version=version, **_blank_fields(cls._struct, version, elements=1))


BLANKS: dict[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "string": "",
    "bytes": b"",
}


def _blank_fields(schema: Any, version: int, elements: int = 0) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            inner = field.array_of
            element = inner.data_class(version=version, **_blank_fields(inner, version, elements))
            fields[field.name] = [element] * elements
        elif field.is_array():
            fields[field.name] = [BLANKS[field.array_of.type_str]] * elements
        elif field.name == "acks":
            fields[field.name] = 1  # 0 asks for no response
        elif field.type_str in BLANKS:
            fields[field.name] = BLANKS[field.type_str]
    return fields


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@pytest.mark.parametrize("make", [blank, one_of_each])
def test_request_when_it_is_of_an_advertised_version_then_it_is_answered_at_that_version(
    client: RawClient, make: Any, api_key: int, version: int
) -> None:
    client.ask(make(api_key, version), version)


def test_api_versions_when_asked_at_any_version_then_all_that_is_served_is_told(client: RawClient) -> None:
    for version in SUPPORTED[ApiKey.ApiVersions]:
        told = client.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), version)
        assert told.error_code == 0
        assert {api.api_key: (api.min_version, api.max_version) for api in told.api_keys} == {
            api_key: (versions[0], versions[-1]) for api_key, versions in SUPPORTED.items()
        }


def test_api_versions_when_the_logs_are_only_read_then_what_writes_is_not_told() -> None:
    with Served(LOGS) as served, RawClient(served.address) as client:
        told = {api.api_key for api in client.ask(ApiVersionsRequest(), 0).api_keys}
        assert set(SUPPORTED) - told == {
            ApiKey.InitProducerId,
            ApiKey.CreateTopics,
            ApiKey.AlterConfigs,
            ApiKey.IncrementalAlterConfigs,
        }
        client.send(blank(ApiKey.CreateTopics, 0), 0)
        assert client.is_closed_by_peer()
