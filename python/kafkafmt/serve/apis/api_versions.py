"""ApiVersions: which APIs are served at which versions (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.errors import NoError, UnsupportedVersionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsResponse

from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.wire import SUPPORTED


class ApiVersionsApi:
    """Answers ApiVersions with all that is served."""

    def __init__(self, served: Mapping[int, range]) -> None:
        self._served = served

    async def answer(self, request: Request) -> Message:
        """A request of a later version than is known gets, at version 0, the versions it may have."""
        if request.version not in SUPPORTED[ApiKey.ApiVersions]:
            return _response(0, UnsupportedVersionError.errno, [ApiKey.ApiVersions])
        return _response(request.version, NoError.errno, sorted(self._served))


def _response(version: int, error_code: int, api_keys: list[int]) -> Message:
    return ApiVersionsResponse(
        version=version,
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                version=version,
                api_key=api_key,
                min_version=SUPPORTED[api_key][0],
                max_version=SUPPORTED[api_key][-1],
            )
            for api_key in api_keys
        ],
    )
