"""One client of a gateway: which of its requests pass, which are translated, and to which broker each goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.addresses import NAMING_APIS, replace_addresses
from kafkafmt.gateway.cluster import NOT_CONTROLLER, STALE_COORDINATOR_CODES
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.fetching import TranslatedFetch
from kafkafmt.gateway.leader_requests import LeaderRequests
from kafkafmt.gateway.passing import AlteringResponse, PassedResponse, PassedResponses, framed
from kafkafmt.gateway.producing import TranslatedProduce
from kafkafmt.gateway.routes import Broker, broker_of, coordinator_key
from kafkafmt.gateway.searched import SearchedResponse
from kafkafmt.gateway.splitting import SPLITS, ask_split, is_split
from kafkafmt.gateway.translations import TRANSLATIONS, Translation, passed_version
from kafkafmt.gateway.unreachable import unreachable_response
from kafkafmt.gateway.upstream import Upstream
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.gateway.versions import FIRST_BATCHES, answer_versions, broker_versions, is_offered
from kafkafmt.server.errors import UnsupportedRequestError
from kafkafmt.server.heads import read_head
from kafkafmt.server.wire import api_name

if TYPE_CHECKING:
    from kafkafmt.gateway.broker_versions import BrokerVersions
    from kafkafmt.gateway.cluster import Address
    from kafkafmt.server.request import Handler, Message, Request
    from kafkafmt.server.stream import Stream

_VERSION = slice(2, 4)  # in a request without its size
# Requests of a client that wait for responses. Kafka's clients have 5 by default.
_MAX_WAITING = 16
# Requests that change the configuration of topics.
_ALTERING = frozenset((ApiKey.AlterConfigs, ApiKey.IncrementalAlterConfigs))
_WITH_RECORDS = frozenset((ApiKey.Produce, ApiKey.Fetch, ApiKey.ShareFetch, ApiKey.ShareAcknowledge))


def _described(versions: range) -> str:
    return f"versions {versions[0]} to {versions[-1]}" if versions else "none"


def _or_unreachable(handler: Handler) -> Handler:
    """Return a handler that answers with errors that clients try again for if the cluster cannot be reached."""

    async def answer(request: Request) -> Message:
        try:
            return await handler(request)
        except UpstreamAuthenticationError:
            raise
        except UpstreamError:
            response = unreachable_response(request.body)
            if response is None:
                raise
            return response

    return answer


class ClientSession:
    """The session of one client. Its methods are for the task of its connection.

    advertised: returns the address at which clients reach a broker.
    producing: returns what answers Produce of old versions, by the responses of the client.
    on_end: called with the reason if responses that pass cannot be completed.

    is_authenticated: whether the client has authenticated, or need not.
    """

    def __init__(
        self,
        stream: Stream,
        upstreams: Upstreams,
        advertised: Callable[[int], Address],
        producing: Callable[[PassedResponses], TranslatedProduce],
        fetching: TranslatedFetch,
        write_timeout: float,
        on_end: Callable[[Exception], None],
    ) -> None:
        self.upstreams = upstreams
        self.fetching = fetching
        self.is_authenticated = True
        self._advertised = advertised
        self._passed = PassedResponses(stream, write_timeout, on_end)
        self._producing = producing(self._passed)
        self._to_leaders = LeaderRequests(upstreams, self._passed)
        self._versions: Mapping[int, range] = {}

    @property
    def undecoded(self) -> frozenset[int]:
        """Produce: its handler reads the records where they are."""
        return frozenset((int(ApiKey.Produce),))

    @property
    def is_busy(self) -> bool:
        """Whether responses are on their way."""
        return self._passed.is_busy

    @property
    def idle_seconds(self) -> float:
        """The time since the last response on its way was written; 0 while there are some."""
        return self._passed.idle_seconds

    async def passes(self, api_key: int, version: int) -> bool:
        """Return whether a request passes unchanged. Raises UpstreamError and UnsupportedRequestError."""
        if api_key in NAMING_APIS or broker_of(api_key) is Broker.GATEWAY:
            return False
        await self.upstreams.find_own()
        is_translated = version in self._translated(api_key)
        try:
            taken = await self._taken(api_key)
        except UpstreamAuthenticationError:
            raise
        except UpstreamError:
            if is_translated:  # its response has errors that the client tries again for
                return False
            raise
        passed = passed_version(api_key, version, taken)
        if passed is not None and passed >= FIRST_BATCHES.get(api_key, 0):
            return self.upstreams.own is not None or not is_split(api_key, version)
        if is_translated:
            return False
        raise UnsupportedRequestError(
            f"{api_name(api_key)} v{version}: the cluster takes {_described(taken)}, and it is not translated"
        )

    def keeps_order(self, api_key: int) -> bool:
        """Return whether the response to a request that does not pass is written in its turn: Produce's."""
        return api_key == int(ApiKey.Produce)

    async def pass_on(self, frame: memoryview) -> None:
        """Send a request to its broker. Its response is written when it comes."""
        head = read_head(frame)
        passed = passed_version(head.api_key, head.version, await self._taken(head.api_key))
        if passed is not None and passed != head.version:
            frame = memoryview(
                b"".join((frame[: _VERSION.start], passed.to_bytes(2, "big"), frame[_VERSION.stop :]))
            )
        await self._passed.wait_below(_MAX_WAITING)
        if head.api_key in _WITH_RECORDS:
            await self._to_leaders.pass_on(frame, head)
            return
        broker = broker_of(head.api_key)
        is_chosen = self.upstreams.own is None  # by the gateway, from what its view knows
        is_coordinated = is_chosen and broker in (Broker.GROUP, Broker.TRANSACTION)
        key = coordinator_key(frame, head) if is_coordinated else None
        upstream = await self._upstream_of(broker, key)
        await upstream.wait_free()
        connection, view = upstream.connection, self.upstreams.view
        if key is not None:
            forget = partial(view.forget_coordinator, broker, key)
            response: PassedResponse = SearchedResponse(
                self._passed, connection, STALE_COORDINATOR_CODES, forget
            )
        elif is_chosen and broker is Broker.CONTROLLER:
            response = SearchedResponse(self._passed, connection, [NOT_CONTROLLER], view.forget_controller)
        elif head.api_key in _ALTERING:
            response = AlteringResponse(self._passed, connection, self.fetching.configs_changed)
        else:
            response = PassedResponse(self._passed, connection)
        self._passed.expect(response)
        # The client has a limit of its own for each request: a group may take minutes to rebalance.
        connection.send_passing(framed(frame), head.correlation_id, response, math.inf)

    async def wait_sent(self) -> None:
        """Wait until brokers have taken all of the requests. Raises UpstreamError."""
        await self.upstreams.wait_sent()

    async def wait_idle(self) -> None:
        """Wait until the responses that pass are written."""
        await self._passed.wait_below(1)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._passed.close()
        self.upstreams.close()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the requests that do not pass, by API key."""
        named = dict.fromkeys((int(key) for key in NAMING_APIS), _or_unreachable(self._answer_named))
        answer_decoded = _or_unreachable(self._answer_decoded)
        decoded = {int(key): answer_decoded for key in (*TRANSLATIONS, *SPLITS) if key not in NAMING_APIS}
        return {
            **decoded,
            **named,
            int(ApiKey.ApiVersions): self._answer_versions,
            int(ApiKey.Produce): self._answer_produce,
        }

    async def _answer_produce(self, request: Request) -> None:
        """Pass records on. The response is written in its turn."""
        assert request.frame is not None
        await self._passed.wait_below(_MAX_WAITING)
        await self._producing.answer(request.frame, request.client)
        request.frame = None
        with suppress(UpstreamError):  # the response has the error
            await self.wait_sent()

    async def _answer_named(self, request: Request) -> Message:
        """Pass a request on whose response names brokers, and replace their addresses."""
        upstream = await self.upstreams.any()
        response = await upstream.ask(request.body, request.client_id, request.memory)
        self.upstreams.view.learn(request.body, response)
        replace_addresses(response, self._advertised)
        return response

    async def _answer_versions(self, request: Request) -> Message:
        ask = partial(self._broker_versions, request)
        strangers = self.upstreams.view.versions_for_strangers
        versions = await (ask() if self.is_authenticated else strangers.get(ask))
        return await answer_versions(request, versions, self._is_offered)

    async def _broker_versions(self, request: Request) -> BrokerVersions:
        upstream = await self._own_or_any()
        # Some APIs are offered only if the cluster has one broker. Brokers answer that after authentication.
        if self.upstreams.is_identified and not self.upstreams.view.brokers:
            with suppress(UpstreamError):
                await self.upstreams.refresh([], request.memory)
        return broker_versions(upstream)

    async def _answer_decoded(self, request: Request) -> Message:
        """Answer a request that is of several brokers, or is translated."""
        if request.version in await self._taken(request.api_key):
            response = await ask_split(request.body, request, self.upstreams)
            if request.api_key in _ALTERING:
                self.fetching.configs_changed()
            return response
        translation: Translation = TRANSLATIONS[request.api_key]
        upstream = await self._upstream_of_message(request)

        async def ask(message: Message) -> Message:
            if self.upstreams.own is None and is_split(message.API_KEY, message.API_VERSION):
                return await ask_split(message, request, self.upstreams)
            response = await upstream.ask(message, request.client_id, request.memory)
            self.upstreams.view.forget_stale(message, response)
            return response

        version = upstream.version(request.api_key, translation.max_version)
        return await translation.translate(request.body, ask, version)

    def _is_offered(self, api_key: int) -> bool:
        upstreams = self.upstreams
        return is_offered(
            api_key, has_own=upstreams.own_of is not None, is_single=len(upstreams.view.brokers) == 1
        )

    async def _taken(self, api_key: int) -> range:
        if not self._versions:
            upstream = await self._own_or_any()
            self._versions = upstream.versions()
            if not self.upstreams.view.brokers:
                await self.upstreams.refresh([])
        return self._versions.get(api_key, range(0)) if self._is_offered(api_key) else range(0)

    def _translated(self, api_key: int) -> range:
        if api_key in FIRST_BATCHES:
            return range(FIRST_BATCHES[api_key])
        found = TRANSLATIONS.get(api_key)
        return range(0) if found is None or not self._is_offered(api_key) else found.versions

    async def _own_or_any(self) -> Upstream:
        own = self.upstreams.own
        return await (self.upstreams.any() if own is None else self.upstreams.node(own))

    async def _upstream_of(self, broker: Broker, key: str | None) -> Upstream:
        """Return the connection to the broker that answers. key: of a coordinator."""
        if key is not None:
            return await self.upstreams.coordinator(broker, key)
        if broker is Broker.CONTROLLER and self.upstreams.own is None:
            return await self.upstreams.controller()
        return await self._own_or_any()

    async def _upstream_of_message(self, request: Request) -> Upstream:
        """Return the connection to the broker that answers a request that is translated."""
        broker = broker_of(request.api_key)
        key = request.body.group_id if broker is Broker.GROUP else None
        return await self._upstream_of(broker, key)
