"""ApiVersions: what is served, told even to those who ask at a version to come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import UnsupportedVersionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from kafkafmt.serve.apis import served_apis
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.request import Handler, Request
from kafkafmt.server.wire import SUPPORTED
from serve.apis.asking import ask


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.ApiVersions])
def test_api_versions_are_those_that_are_served(apis: dict[int, Handler], version: int) -> None:
    asked = ApiVersionsRequest(version=version, client_software_name="c", client_software_version="1")
    response = ask(apis, asked)
    assert response.error_code == 0
    told = {one.api_key: range(one.min_version, one.max_version + 1) for one in response.api_keys}
    assert told == served_apis(ServeOptions(Path()))


def test_api_versions_of_a_version_to_come_are_told_at_version_0(apis: dict[int, Handler]) -> None:
    async def answer() -> Any:
        asked = Request(ApiKey.ApiVersions, 9, 1, None, ApiVersionsRequest(version=0), "")
        return await apis[ApiKey.ApiVersions](asked)

    response = asyncio.run(answer())

    assert (response.API_VERSION, response.error_code) == (0, UnsupportedVersionError.errno)
    (told,) = response.api_keys
    assert (told.api_key, told.min_version, told.max_version) == (ApiKey.ApiVersions, 0, 4)
