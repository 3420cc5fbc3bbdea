"""Responses that pass and are not decoded. The gateway searches their bytes for error codes of brokers that it chose.

After such a code the client asks for the coordinator, or for the controller. Another gateway or worker may get that
request. So each of them searches for the error codes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafkafmt.gateway.passing import PassedResponse, PassedResponses

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection

_CODE_BYTES = 2
# Responses with these error codes have little else in them.
_SEARCHED_BYTES = 64 * 1024


class SearchedResponse(PassedResponse):
    """A response that is searched for error codes.

    on_maybe_found: called if its bytes may have one. A needless call costs one request for the right broker.
    """

    def __init__(
        self,
        responses: PassedResponses,
        connection: BrokerConnection,
        codes: Iterable[int],
        on_maybe_found: Callable[[], None],
    ) -> None:
        super().__init__(responses, connection)
        self._codes = [code.to_bytes(_CODE_BYTES, "big") for code in codes]
        self._on_maybe_found = on_maybe_found
        self._left = _SEARCHED_BYTES
        self._last = b""

    def take(self, data: memoryview) -> None:
        if self._left > 0:
            searched = self._last + bytes(data[: self._left])
            self._left -= len(data)
            self._last = searched[1 - _CODE_BYTES :]
            if any(code in searched for code in self._codes):
                self._left = 0
                self._on_maybe_found()
        super().take(data)
