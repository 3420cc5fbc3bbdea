"""One client of a gateway: which of its requests pass, which are translated, and to which broker each goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from _kafkafmt.server.fetching import decode_fetch_request
from _kafkafmt.server.producing import decode_produce_request
from kafkafmt.gateway.addresses import NAMING_APIS, replace_addresses
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.fetching import TranslatedFetch
from kafkafmt.gateway.hints import (
    FIRST_FETCH_VERSION,
    FIRST_PRODUCE_VERSION,
    HintedFetch,
    HintedProduce,
)
from kafkafmt.gateway.passing import PassedResponse, PassedResponses
from kafkafmt.gateway.producing import TranslatedProduce
from kafkafmt.gateway.routes import Broker, broker_of, coordinator_key
from kafkafmt.gateway.translations import TRANSLATIONS, Translation, passed_version
from kafkafmt.gateway.unreachable import unreachable_response
from kafkafmt.gateway.upstreams import Upstream, Upstreams
from kafkafmt.gateway.versions import answer_versions
from kafkafmt.server.errors import MalformedRequestError, UnsupportedRequestError
from kafkafmt.server.heads import Head, read_head
from kafkafmt.server.wire import api_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.gateway.cluster import Address
    from kafkafmt.server.request import Handler, Message, Request
    from kafkafmt.server.stream import Stream

_SIZE_BYTES = 4
_VERSION = slice(2, 4)  # in a request without its size
# Requests of a client that wait for responses. Kafka's clients have 5 by default.
_MAX_WAITING = 16
# Below these versions records are in formats that new brokers do not take or send.
_FIRST_PASSED: Mapping[int, int] = {ApiKey.Produce: 3, ApiKey.Fetch: 4}
# From these versions on topics are named by id (KIP-516).
_TOPIC_IDS = {ApiKey.Produce: 13, ApiKey.Fetch: 13}
_NONE = 0  # of acks


def _acks(frame: memoryview) -> int:
    request = decode_produce_request(frame)
    return _NONE - 1 if request is None else request.acks


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
    on_end: called with the reason if responses that pass cannot be completed.
    """

    def __init__(
        self,
        stream: Stream,
        upstreams: Upstreams,
        advertised: Callable[[int], Address],
        producing: TranslatedProduce,
        fetching: TranslatedFetch,
        write_timeout: float,
        on_end: Callable[[Exception], None],
    ) -> None:
        self.upstreams = upstreams
        self.fetching = fetching
        self._producing = producing
        self._advertised = advertised
        self._passed = PassedResponses(stream, write_timeout, on_end)
        self._fetched_from: int | None = None  # the broker that has the client's fetch session
        self._versions: Mapping[int, range] = {}

    @property
    def undecoded(self) -> frozenset[int]:
        """Produce: its handler reads the records where they are."""
        return frozenset((int(ApiKey.Produce),))

    @property
    def is_busy(self) -> bool:
        """Whether responses are on their way."""
        return self._passed.count > 0

    async def passes(self, api_key: int, version: int) -> bool:
        """Return whether a request goes through as it is. Raises UpstreamError and UnsupportedRequestError."""
        if api_key in NAMING_APIS or api_key == ApiKey.ApiVersions:
            return False
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
        if passed is not None and passed >= _FIRST_PASSED.get(api_key, 0):
            return True
        if is_translated:
            return False
        raise UnsupportedRequestError(
            f"{api_name(api_key)} v{version}: the cluster takes {_described(taken)}, and it is not translated"
        )

    async def pass_on(self, frame: memoryview) -> None:
        """Send a request to its broker. Its response is written when it comes."""
        head = read_head(frame)
        passed = passed_version(head.api_key, head.version, await self._taken(head.api_key))
        if passed is not None and passed != head.version:
            frame = memoryview(
                b"".join((frame[: _VERSION.start], passed.to_bytes(2, "big"), frame[_VERSION.stop :]))
            )
        await self._passed.wait_below(_MAX_WAITING)
        upstream = await self._upstream_of(frame, head)
        await upstream.wait_free()
        pieces: list[Buffer] = [len(frame).to_bytes(_SIZE_BYTES, "big"), frame]
        if head.api_key == ApiKey.Produce and _acks(frame) == _NONE:
            await upstream.send(pieces)
            return
        response = self._passed_response(upstream, head, len(frame))
        self._passed.expect(response)
        # The client has a limit of its own for each request: a group may take minutes to rebalance.
        upstream.connection.send_passing(pieces, head.correlation_id, response, math.inf)

    def _passed_response(self, upstream: Upstream, head: Head, size: int) -> PassedResponse:
        if head.api_key == ApiKey.Fetch and head.version >= FIRST_FETCH_VERSION:
            return HintedFetch(self._passed, upstream.connection, size, head.version)
        if head.api_key == ApiKey.Produce and head.version >= FIRST_PRODUCE_VERSION:
            return HintedProduce(self._passed, upstream.connection, size, head.version)
        return PassedResponse(self._passed, upstream.connection, size)

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
        answer_translated = _or_unreachable(self._answer_translated)
        translated = {int(key): answer_translated for key in TRANSLATIONS if key not in NAMING_APIS}
        return {
            **translated,
            **named,
            int(ApiKey.ApiVersions): self._answer_versions,
            int(ApiKey.Produce): self._answer_produce,
        }

    async def _answer_produce(self, request: Request) -> Message | None:
        assert request.frame is not None
        return await self._producing.answer(request.frame, request.client)

    async def _answer_named(self, request: Request) -> Message:
        """Pass a request on whose response names brokers, and replace their addresses."""
        upstream = await self.upstreams.any()
        response = await upstream.ask(request.body, request.client_id, request.memory)
        self.upstreams.view.learn(request.body, response)
        replace_addresses(response, self._advertised)
        return response

    async def _answer_versions(self, request: Request) -> Message:
        return await answer_versions(request, await self.upstreams.any())

    async def _answer_translated(self, request: Request) -> Message:
        translation: Translation = TRANSLATIONS[request.api_key]
        upstream = await self._upstream_of_message(request)

        async def ask(message: Message) -> Message:
            response = await upstream.ask(message, request.client_id, request.memory)
            self.upstreams.view.forget_stale(message, response)
            return response

        version = upstream.version(request.api_key, translation.max_version)
        return await translation.translate(request.body, ask, version)

    async def _taken(self, api_key: int) -> range:
        if not self._versions:
            upstream = await self.upstreams.any()
            self._versions = upstream.versions()
        return self._versions.get(api_key, range(0))

    def _translated(self, api_key: int) -> range:
        if api_key in _FIRST_PASSED:
            return range(_FIRST_PASSED[api_key])
        found = TRANSLATIONS.get(api_key)
        return range(0) if found is None else found.versions

    async def _upstream_of(self, frame: memoryview, head: Head) -> Upstream:
        """Return the connection to the broker that answers a request."""
        upstreams = self.upstreams
        broker = broker_of(head.api_key)
        if broker in (Broker.GROUP, Broker.TRANSACTION):
            key = coordinator_key(frame, head)
            return await (upstreams.any() if key is None else upstreams.coordinator(broker, key))
        if broker is Broker.CONTROLLER:
            return await upstreams.controller()
        if head.api_key == ApiKey.Fetch:
            return await self._fetched(frame)
        if head.api_key == ApiKey.Produce:
            return await self._produced(frame)
        return await upstreams.any()

    async def _upstream_of_message(self, request: Request) -> Upstream:
        """Return the connection to the broker that answers a request that is translated."""
        body, upstreams, broker = request.body, self.upstreams, broker_of(request.api_key)
        if broker is Broker.GROUP:
            return await upstreams.coordinator(broker, body.group_id)
        if broker is Broker.CONTROLLER:
            return await upstreams.controller()
        if broker is Broker.LEADER and body.topics and body.topics[0].partitions:
            topic = body.topics[0]
            first = topic.partitions[0]
            if request.api_key == ApiKey.ListOffsets:
                return await upstreams.leader(topic.name, first.partition_index)
            return await upstreams.leader(topic.topic, first.partition)
        return await upstreams.any()

    async def _produced(self, frame: memoryview) -> Upstream:
        """Return the connection to the leader of the first partition. The client means that broker."""
        request = decode_produce_request(frame)
        if request is None:
            raise MalformedRequestError(f"Produce of {len(frame)} bytes: it cannot be decoded")
        if not len(request.partitions):
            return await self.upstreams.any()
        row = request.partitions[0]
        topic = request.topics[row["topic"]]
        return await self.upstreams.leader(
            UUID(bytes=topic) if request.version >= _TOPIC_IDS[ApiKey.Produce] else topic.decode(),
            int(row["partition"]),
        )

    async def _fetched(self, frame: memoryview) -> Upstream:
        """Return the connection to the leader of the first partition, or to the broker that has the fetch session."""
        request = decode_fetch_request(frame)
        if request is None:
            raise MalformedRequestError(f"Fetch of {len(frame)} bytes: it cannot be decoded")
        topics = [topic for topic in request.topics if topic.partitions]
        if request.session_epoch > 0 and self._fetched_from is not None:
            return await self.upstreams.node(self._fetched_from)
        if not topics:
            return await self.upstreams.any()
        first = topics[0]
        upstream = await self.upstreams.leader(first.topic or first.topic_id, first.partitions[0].partition)
        self._fetched_from = upstream.connection.node_id
        return upstream
