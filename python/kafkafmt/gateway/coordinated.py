"""Responses of coordinators that pass. The gateway searches them for error codes of brokers that do not coordinate.

After such a code the client asks for the coordinator. Another gateway or worker may get that request. So each of them
searches for the error codes itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkafmt.gateway.cluster import STALE_COORDINATOR_CODES
from kafkafmt.gateway.passing import PassedResponse, PassedResponses

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection

_CODE_BYTES = 2
_CODES = tuple(code.to_bytes(_CODE_BYTES, "big") for code in STALE_COORDINATOR_CODES)
# Responses with these error codes have little else in them.
_SEARCHED_BYTES = 64 * 1024


class CoordinatedResponse(PassedResponse):
    """A response of a coordinator, which is not decoded.

    on_maybe_none: called if its bytes may have the error code. A needless call costs one request for the coordinator.
    """

    def __init__(
        self,
        responses: PassedResponses,
        connection: BrokerConnection,
        on_maybe_none: Callable[[], None],
    ) -> None:
        super().__init__(responses, connection)
        self._on_maybe_none = on_maybe_none
        self._left = _SEARCHED_BYTES
        self._last = b""

    def take(self, data: memoryview) -> None:
        if self._left > 0:
            searched = self._last + bytes(data[: self._left])
            self._left -= len(data)
            self._last = searched[1 - _CODE_BYTES :]
            if any(code in searched for code in _CODES):
                self._left = 0
                self._on_maybe_none()
        super().take(data)
