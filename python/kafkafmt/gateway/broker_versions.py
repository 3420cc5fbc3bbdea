"""The versions of requests that the brokers accept. Clients get them before they are authenticated, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkafmt.server.request import Message

_USED_SECONDS = 10.0


class BrokerVersions(NamedTuple):
    """The response of a broker to ApiVersions, and the newest version of ApiVersions that it takes.

    taken: the versions of each API that pass. These are fewer than in the response if `api.version` says so.
    """

    newest: int
    response: Message
    taken: Mapping[int, range]


class VersionsForStrangers:
    """The versions for clients that are not authenticated. All clients of a gateway share one.

    A broker is asked for them once in ten seconds, however many clients there are: strangers must not be able to take
    the connections of a cluster.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asking = asyncio.Lock()
        self._known: BrokerVersions | None = None
        self._until = 0.0

    async def get(self, ask: Callable[[], Awaitable[BrokerVersions]]) -> BrokerVersions:
        """Return the versions. ask: asks a broker. Raises as `ask`; the next client asks again then."""
        async with self._asking:
            if self._known is None or self._clock() >= self._until:
                self._known = await ask()
                self._until = self._clock() + _USED_SECONDS
            return self._known
