"""ApiVersions: which APIs are served at which versions (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.errors import NoError, UnsupportedVersionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsResponse

from kafkafmt.server.request import Message, Request


class ApiVersionsApi:
    """Answers ApiVersions with the versions of the APIs in `served`, which includes ApiVersions itself."""

    def __init__(self, served: Mapping[int, range]) -> None:
        self._served = served

    async def answer(self, request: Request) -> Message:
        """Return the versions. A request of a later version than is known gets those of ApiVersions, at version 0."""
        if request.version not in self._served[ApiKey.ApiVersions]:
            return self._response(0, UnsupportedVersionError.errno, [ApiKey.ApiVersions])
        return self._response(request.version, NoError.errno, sorted(self._served))

    def _response(self, version: int, error_code: int, api_keys: list[int]) -> Message:
        return ApiVersionsResponse(
            version=version,
            error_code=error_code,
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=api_key,
                    min_version=self._served[api_key][0],
                    max_version=self._served[api_key][-1],
                )
                for api_key in api_keys
            ],
        )
