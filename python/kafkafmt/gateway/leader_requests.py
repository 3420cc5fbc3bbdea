"""Requests for leaders that pass without being decoded: those with records, and those of share groups.

Usually one broker leads all partitions of a request, and gets it unchanged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchResponse

from _kafkafmt.client.fetch_walk import ShareResponseWalk
from _kafkafmt.server.fetching import decode_fetch_request
from _kafkafmt.server.producing import decode_produce_request
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.hints import HintedFetch, HintedProduce, HintedShare, OnErrors
from kafkafmt.gateway.leaders import Sessions, by_leader, forget_leaders, topic_name
from kafkafmt.gateway.passing import SIZE_BYTES, MadeResponse, PassedResponses, framed
from kafkafmt.gateway.routes import read_string
from kafkafmt.gateway.split_fetch import MergedFetch, Wanted
from kafkafmt.gateway.split_fetch import encode_part as encode_fetch_part
from kafkafmt.gateway.split_produce import MergedProduce
from kafkafmt.gateway.split_produce import encode_part as encode_produce_part
from kafkafmt.gateway.upstream import Upstream, uncounted_memory
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.heads import Head, read_varint
from kafkafmt.server.produced_records import ACKS_NONE
from kafkafmt.server.wire import api_name, encode_response

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from _kafkafmt.server.fetching import FetchRequest
    from _kafkafmt.server.producing import ProduceRequest

# From this version of Produce and of Fetch on topics are named by id (KIP-516).
_TOPIC_IDS = 13
_NEW_SESSION = 0  # the epoch of a request
# A rack that no broker has. It takes the place of the client's rack, whose nearest replica the client could not reach:
# all brokers have one address.
_NO_RACK = b"-"
# The bytes of the fields between the session's epoch and the topics, by API and version.
_SHARE_SETTINGS_BYTES = {
    (ApiKey.ShareFetch, 1): 20,
    (ApiKey.ShareFetch, 2): 22,
    (ApiKey.ShareAcknowledge, 1): 0,
    (ApiKey.ShareAcknowledge, 2): 1,
}
_INT32 = struct.Struct(">i")
_ID_BYTES = 16


class _Shared(NamedTuple):
    """The session of a share group's request (KIP-932), and its first partition; None if it has none."""

    session: tuple[str | None, str | None]
    epoch: int
    first: tuple[UUID, int] | None


class LeaderRequests:
    """Passes on Produce, Fetch, ShareFetch and ShareAcknowledge for one client."""

    def __init__(self, upstreams: Upstreams, passed: PassedResponses) -> None:
        self._upstreams = upstreams
        self._passed = passed
        self._fetched: Sessions[int] = Sessions()
        self._shared: Sessions[tuple[str | None, str | None]] = Sessions()
        self._waits = False  # whether brokers wait for records: the last merged response had none

    async def pass_on(self, frame: memoryview, head: Head) -> None:
        """Send a request to its leaders. Raises MalformedRequestError, UpstreamError and KafkaError."""
        if head.api_key == ApiKey.Produce:
            await self._pass_produce(frame, head)
        elif head.api_key == ApiKey.Fetch:
            await self._pass_fetch(frame, head)
        else:
            await self._pass_shared(frame, head)

    # Produce

    async def _pass_produce(self, frame: memoryview, head: Head) -> None:
        request = decode_produce_request(frame)
        if request is None:
            raise MalformedRequestError(f"Produce of {len(frame)} bytes: it cannot be decoded")
        nodes = await self._nodes_of_produce(request)
        if len(nodes) > 1:
            await self._split_produce(frame, request, nodes)
            return
        upstream = await self._node(next(iter(nodes), None))
        await upstream.wait_free()
        pieces = framed(frame)
        if request.acks == ACKS_NONE:
            await upstream.send(pieces)
            return
        on_errors = self._on_errors(head.version)
        response = HintedProduce(self._passed, upstream.connection, head.version, on_errors)
        self._passed.expect(response)
        upstream.connection.send_passing(pieces, head.correlation_id, response, math.inf)

    async def _nodes_of_produce(self, request: ProduceRequest) -> dict[int | None, list[int]]:
        """Return the numbers of partitions in a request by the node of their leader."""
        if self._upstreams.own is not None:
            return {self._upstreams.own: []}
        are_ids = request.version >= _TOPIC_IDS
        topics = [UUID(bytes=topic) if are_ids else topic_name(topic) for topic in request.topics]
        rows = request.partitions
        parts = zip(rows["topic"].tolist(), rows["partition"].tolist(), strict=True)
        return await by_leader(
            self._upstreams,
            ((topics[topic], partition, number) for number, (topic, partition) in enumerate(parts)),
        )

    async def _split_produce(
        self, frame: memoryview, request: ProduceRequest, nodes: dict[int | None, list[int]]
    ) -> None:
        on_errors = self._on_errors(request.version)
        merged = MergedProduce(self._passed, request, len(nodes), on_errors)
        if request.acks != ACKS_NONE:
            self._passed.expect(merged)
        for node, numbers in nodes.items():
            rows = [request.partitions[number] for number in numbers]
            try:
                upstream = await self._node(node)
                await upstream.wait_free()
            except UpstreamAuthenticationError:
                raise
            except UpstreamError as error:
                if request.acks == ACKS_NONE:
                    raise
                merged.take(rows, None, error)
                continue
            correlation_id = upstream.next_correlation_id()
            pieces = encode_produce_part(frame, request, rows, correlation_id)
            if request.acks == ACKS_NONE:
                await upstream.send(pieces)
            else:
                upstream.connection.send(
                    pieces, correlation_id, merged.taking(rows), uncounted_memory, math.inf
                )

    # Fetch

    async def _pass_fetch(self, frame: memoryview, head: Head) -> None:
        if self._upstreams.own is not None:
            await self._fetch_from(self._upstreams.own, framed(frame), head, opens=False)
            return
        request = decode_fetch_request(frame)
        if request is None:
            raise MalformedRequestError(f"Fetch of {len(frame)} bytes: it cannot be decoded")
        pieces = _without_rack(frame, request)
        known = self._fetched.node(request.session_id) if request.session_id else None
        if request.session_epoch > _NEW_SESSION:
            if known is None:
                self._refuse_session(head)
            else:
                await self._fetch_from(known, pieces, head, opens=False)
            return
        nodes = await by_leader(
            self._upstreams,
            (
                (topic.topic or topic.topic_id, one.partition, Wanted(topic, one))
                for topic in request.topics
                for one in topic.partitions
            ),
        )
        if len(nodes) > 1:
            await self._split_fetch(request, nodes)
            return
        node = next(iter(nodes), known)
        opens = request.session_epoch == _NEW_SESSION
        await self._fetch_from(node, pieces, head, opens=opens)

    async def _fetch_from(
        self, node: int | None, pieces: Sequence[Buffer], head: Head, *, opens: bool
    ) -> None:
        """Pass a request on. opens: whether the broker may open a session."""
        upstream = await self._node(node)
        await upstream.wait_free()
        node = upstream.connection.node_id
        response = HintedFetch(
            self._passed,
            upstream.connection,
            head.version,
            self._on_errors(head.version, self._fetched, node),
            partial(self._fetched.open, node=node) if opens else None,
        )
        self._passed.expect(response)
        upstream.connection.send_passing(pieces, head.correlation_id, response, math.inf)

    async def _split_fetch(self, request: FetchRequest, nodes: dict[int | None, list[Wanted]]) -> None:
        merged = MergedFetch(self._passed, request, self._on_errors(request.version), self._note_records)
        self._passed.expect(merged)
        # A part that has begun waits for the others. So all connections are there before the first part is sent.
        found = [(await self._reached(node), wanted) for node, wanted in nodes.items()]
        for upstream, wanted in found:
            if upstream is None or not upstream.connection.can_send:
                merged.add(None, wanted).refuse(errors.NotLeaderForPartitionError.errno)
                continue
            correlation_id = upstream.next_correlation_id()
            part = encode_fetch_part(request, wanted, len(nodes), correlation_id, waits=self._waits)
            sink = merged.add(upstream.connection, wanted)
            upstream.connection.send_passing([part], correlation_id, sink, math.inf)
        merged.expect_parts()

    async def _reached(self, node: int | None) -> Upstream | None:
        """Return a connection to a broker; None if it cannot be reached."""
        try:
            upstream = await self._node(node)
            await upstream.wait_free()
        except UpstreamAuthenticationError:
            raise
        except UpstreamError:
            return None
        return upstream

    def _note_records(self, has_records: bool) -> None:
        self._waits = not has_records

    def _refuse_session(self, head: Head) -> None:
        """Answer that the session is not known. The client then asks for all partitions again."""
        message = FetchResponse(version=head.version, error_code=errors.FetchSessionIdNotFoundError.errno)
        response = MadeResponse(self._passed, encode_response(head.correlation_id, message))
        self._passed.expect(response)
        response.on_turn()

    # Share groups

    async def _pass_shared(self, frame: memoryview, head: Head) -> None:
        shared = _read_shared(frame, head)
        node = self._upstreams.own
        if node is None and shared.epoch != _NEW_SESSION:
            node = self._shared.node(shared.session)
        if node is not None:
            upstream = await self._upstreams.node(node)
        else:
            upstream = await (
                self._upstreams.any() if shared.first is None else self._upstreams.leader(*shared.first)
            )
        await upstream.wait_free()
        node = upstream.connection.node_id
        self._shared.open(shared.session, node)
        walk = ShareResponseWalk(head.version, head.api_key == ApiKey.ShareFetch)
        on_errors = self._on_errors(_TOPIC_IDS, self._shared, node)
        response = HintedShare(self._passed, upstream.connection, walk, on_errors)
        self._passed.expect(response)
        upstream.connection.send_passing(framed(frame), head.correlation_id, response, math.inf)

    def _on_errors(
        self,
        version: int,
        sessions: Sessions[int] | Sessions[tuple[str | None, str | None]] | None = None,
        node: int | None = None,
    ) -> OnErrors:
        """Return a function that forgets leaders that have changed, and the sessions at a node that leads no more."""

        def learn(found: Iterable[tuple[bytes, int, int]]) -> None:
            has_moved = forget_leaders(self._upstreams.view, found, are_ids=version >= _TOPIC_IDS)
            if has_moved and sessions is not None and node is not None:
                sessions.forget(node)

        return learn

    async def _node(self, node: int | None) -> Upstream:
        return await (self._upstreams.any() if node is None else self._upstreams.node(node))


def _without_rack(frame: memoryview, request: FetchRequest) -> list[Buffer]:
    size = request.rack_size
    if not size:
        return framed(frame)
    view, begin = memoryview(frame), request.rack_position
    return [
        len(frame).to_bytes(SIZE_BYTES, "big"),
        view[:begin],
        _NO_RACK * size,
        view[begin + size :],
    ]


def _read_shared(frame: memoryview, head: Head) -> _Shared:
    """Read the start of a request of a share group. Raises MalformedRequestError."""
    group, position = read_string(frame, head.body, head)
    member, position = read_string(frame, position, head)
    settings = _SHARE_SETTINGS_BYTES.get((ApiKey(head.api_key), head.version))
    try:
        (epoch,) = _INT32.unpack_from(frame, position)
        if settings is None:
            raise MalformedRequestError(
                f"{api_name(head.api_key)} v{head.version}: this version is not known"
            )
        topics, position = read_varint(frame, position + _INT32.size + settings)
        if topics <= 1:
            return _Shared((group, member), epoch, None)
        topic = UUID(bytes=bytes(frame[position : position + _ID_BYTES]))
        partitions, position = read_varint(frame, position + _ID_BYTES)
        first = (topic, int(_INT32.unpack_from(frame, position)[0])) if partitions > 1 else None
    except (struct.error, ValueError) as error:
        raise MalformedRequestError(
            f"{api_name(head.api_key)} v{head.version} of {len(frame)} bytes: {error}"
        ) from error
    return _Shared((group, member), epoch, first)
