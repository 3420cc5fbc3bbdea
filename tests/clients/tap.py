"""A TCP proxy on loopback, between clients and a server of Kafka's protocol, that notes what was fetched and produced.

Frames are passed on whole and unchanged. Of those that matter kafka-python decodes a copy: a Fetch response leaves a
`Fetch` for each partition in it, a Produce response a `Produce`, an offset that was committed a `Commit`; Metadata
tells the names behind the topic ids of later versions. With `fetch_cap` the Fetch versions in ApiVersions responses
end there, which is how librdkafka comes to send v2 or v3. `lose_next_produce` makes a connection end in place of a
response, as networks do; `faults` has everything else that they do. `refuse` and `listen` are for a server that goes
and comes back.

Clients go on to the address that Metadata names, so the server has to advertise the tap's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from clients.network_faults import Cut, NetworkFaults, Way, end

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
FRAME_LENGTH = struct.Struct(">i")
REQUEST_START = struct.Struct(">hhi")  # API key, API version, correlation id
CORRELATION_ID = struct.Struct(">i")
# The length of what follows it, and the magic: alike in v0, v1 and v2. The attributes: in v0 and v1.
BATCH_START = struct.Struct(">8xi4xbB")
CODEC_MASK = 7
BATCH_LENGTH_END = 12
FOLLOWED = {
    request.API_KEY: request
    for request in (FetchRequest, ProduceRequest, MetadataRequest, OffsetCommitRequest, ApiVersionsRequest)
}
METADATA_WITH_TOPIC_IDS, FETCH_BY_TOPIC_ID, PRODUCE_BY_TOPIC_ID = 10, 13, 13
STOP_SECONDS = 60
WAIT_SECONDS = 60


@dataclass(frozen=True)
class Fetch:
    """What a Fetch response had for one partition.

    magics: of every complete message or batch, in order; a wrapper counts once, whatever is in it.
    codecs: of the messages of v0 and v1 among them.
    size: of the records, padding and a cut last message included, in bytes.
    """

    version: int
    topic: str
    partition: int
    magics: tuple[int, ...]
    size: int
    isolation_level: int
    error_code: int
    codecs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Produce:
    """What a Produce response said about one partition."""

    topic: str
    partition: int
    error_code: int
    version: int


@dataclass(frozen=True)
class Commit:
    """An offset that a server acknowledged."""

    group: str
    topic: str
    partition: int
    offset: int


class Tap:
    """A proxy to `upstream`, listening at `address`. A context manager: its connections end with it.

    `upstream` and `fetch_cap` may be changed; connections that are made from then on follow.
    """

    def __init__(self, upstream: tuple[str, int], fetch_cap: int | None = None) -> None:
        self.upstream = upstream
        self.fetches: list[Fetch] = []
        self.produces: list[Produce] = []
        self.commits: list[Commit] = []
        self.fetch_cap = fetch_cap
        self.accepted = 0
        """How many connections clients made."""
        self.requests: Counter[int] = Counter()
        """How many requests came, by API key."""
        self.versions: set[tuple[int, int]] = set()
        """The API keys and versions of the requests that came since all started over."""
        self.throttled: Counter[int] = Counter()
        """How many Fetch and Produce responses told the client to wait, by API key."""
        self.faults = NetworkFaults(self._run)
        self._topic_names: dict[Any, str] = {}  # by topic id
        self._is_to_lose = False
        self._start = 0  # how often `start_over` was called
        self._has_noted = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._connections: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind((HOST, 0))
        self.address: tuple[str, int] = self._reserved.getsockname()[:2]
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()
        self._reserved.close()

    def listen(self) -> None:
        self._server = self._run(asyncio.start_server(self._serve, *self.address, reuse_port=True))

    def refuse(self) -> None:
        """Refuse connections until `listen`, as the system does where no server is; the address stays reserved."""
        self._run(self._stop_listening())

    @property
    def bootstrap(self) -> str:
        host, port = self.address
        return f"{host}:{port}"

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for what is noted to become so. Raises TimeoutError where that takes too long."""
        with self._has_noted:
            if not self._has_noted.wait_for(holds, WAIT_SECONDS):
                raise TimeoutError(f"nothing of that kind passed in {WAIT_SECONDS} s")

    def start_over(self) -> None:
        """Forget what was fetched. Of connections that are there by now, no more fetches are noted.

        A client that has ended may leave responses behind, which are still under way.
        """
        with self._has_noted:
            self._start += 1
            self.fetches.clear()
            self.versions.clear()

    def lose_next_produce(self) -> None:
        """End the connection that the next Produce response without an error comes on, in place of passing it on."""
        self._is_to_lose = True

    def note(self, request: Any, response: Any, frame: bytes, start: int) -> bytes:
        """Note what a response says, which kafka-python decoded; returns the frame to pass on.

        start: how often all had started over when its connection was made.
        """
        key, version = request.API_KEY, request.API_VERSION
        if key == ApiVersionsRequest.API_KEY and self.fetch_cap is not None:
            return _capped(response, self.fetch_cap)
        with self._has_noted:
            if key in (FetchRequest.API_KEY, ProduceRequest.API_KEY):
                self.throttled[key] += bool(response.throttle_time_ms)
            if key == MetadataRequest.API_KEY and version >= METADATA_WITH_TOPIC_IDS:
                self._topic_names |= {topic.topic_id: topic.name for topic in response.topics}
            elif key == FetchRequest.API_KEY:
                if start == self._start:
                    self.fetches += self._fetched(request, response)
            elif key == ProduceRequest.API_KEY:
                self.produces += self._produced(request, response)
            elif key == OffsetCommitRequest.API_KEY:
                self.commits += _committed(request, response)
            self._has_noted.notify_all()
        if key == ProduceRequest.API_KEY and self._is_to_lose and not self.produces[-1].error_code:
            self._is_to_lose = False
            raise ConnectionResetError("lost")
        return frame

    def _fetched(self, request: Any, response: Any) -> Iterator[Fetch]:
        version = request.API_VERSION
        for topic in response.responses:
            name = topic.topic if version < FETCH_BY_TOPIC_ID else self._topic_names.get(topic.topic_id, "")
            for partition in topic.partitions:
                found = list(batches(partition.records or b""))
                yield Fetch(
                    version=version,
                    topic=name,
                    partition=partition.partition_index,
                    magics=tuple(magic for magic, _ in found),
                    codecs=tuple(attributes & CODEC_MASK for magic, attributes in found if magic < 2),
                    size=len(partition.records or b""),
                    isolation_level=request.isolation_level,
                    error_code=partition.error_code,
                )

    def _produced(self, request: Any, response: Any) -> Iterator[Produce]:
        for topic in response.responses:
            by_id = request.API_VERSION >= PRODUCE_BY_TOPIC_ID
            name = self._topic_names[topic.topic_id] if by_id else topic.name
            for partition in topic.partition_responses:
                yield Produce(name, partition.index, partition.error_code, request.API_VERSION)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STOP_SECONDS)

    async def _stop_listening(self) -> None:
        self._server.close()

    async def _close(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass frames both ways until one side ends the connection, then end it for the other."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.accepted += 1
        try:
            server, to_server = await asyncio.open_connection(*self.upstream)
            try:
                await _Exchange(self).run(client, to_client, server, to_server)
            finally:
                to_server.close()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # how connections end, and how the tap does
        finally:
            to_client.close()
            self._connections.discard(task)


def _committed(request: Any, response: Any) -> Iterator[Commit]:
    failed = {
        (topic.name, partition.partition_index)
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }
    for topic in request.topics:
        for partition in topic.partitions:
            if (topic.name, partition.partition_index) not in failed:
                yield Commit(
                    request.group_id, topic.name, partition.partition_index, partition.committed_offset
                )


def _capped(api_versions: Any, fetch_cap: int) -> bytes:
    for api in api_versions.api_keys:
        if api.api_key == FetchRequest.API_KEY:
            api.max_version = min(api.max_version, fetch_cap)
    return bytes(api_versions.encode(header=True))


def batches(records: bytes) -> Iterator[tuple[int, int]]:
    """Magic and attributes of each complete message or batch of a record set; not of padding and a cut message."""
    position = 0
    while position + BATCH_START.size <= len(records):
        length, magic, attributes = BATCH_START.unpack_from(records, position)
        if length < 0:
            raise ValueError(f"at {position} of {len(records)} bytes of records: length {length}")
        position += BATCH_LENGTH_END + length
        if position > len(records):
            return
        yield magic, attributes


class _Exchange:
    """What passes on one connection, and the requests on it that wait for their response."""

    def __init__(self, tap: Tap) -> None:
        self._tap, self._start = tap, tap._start
        self._generation = tap.faults.generation
        self._api_keys: dict[int, int] = {}  # by correlation id, as the next
        self._waiting: dict[int, Any] = {}

    async def run(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        for writer in (to_client, to_server):
            writer.transport.set_write_buffer_limits(0)  # `drain` waits until the system has all
        ways = [
            asyncio.ensure_future(self._pass_on(Way.REQUEST, client, to_server)),
            asyncio.ensure_future(self._pass_on(Way.RESPONSE, server, to_client)),
        ]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ended:
                cut = way.result()  # or what ended it is raised
                for writer in (to_client, to_server):
                    end(writer, cut)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Cut:
        """Pass frames on, up to one that is cut."""
        faults = self._tap.faults
        name_size = REQUEST_START.size if way is Way.REQUEST else CORRELATION_ID.size
        while True:
            (length,) = FRAME_LENGTH.unpack(await reader.readexactly(FRAME_LENGTH.size))
            frame = await reader.readexactly(name_size)
            await faults.pass_gate(way, self._generation)
            cut = faults.take_cut(way, self._api_key(way, frame), FRAME_LENGTH.size + length)
            if cut is not None and not cut.passes_frame:
                # What lies behind the cut stays unread, as it is in the network when a connection ends.
                rest = cut.size - FRAME_LENGTH.size - len(frame)
                frame += await reader.readexactly(max(rest, 0))
                await faults.write(way, writer, (FRAME_LENGTH.pack(length) + frame)[: cut.size])
                return cut
            frame += await reader.readexactly(length - len(frame))
            frame = self._request(frame) if way is Way.REQUEST else self._response(frame)
            await faults.write(way, writer, FRAME_LENGTH.pack(len(frame)) + frame)
            if cut is not None:
                return cut

    def _api_key(self, way: Way, frame: bytes) -> int | None:
        if way is Way.RESPONSE:
            return self._api_keys.pop(*CORRELATION_ID.unpack_from(frame), None)
        key, version, correlation_id = REQUEST_START.unpack_from(frame)
        self._api_keys[correlation_id] = key
        self._tap.requests[key] += 1
        if self._start == self._tap._start:
            self._tap.versions.add((key, version))
        return int(key)

    def _request(self, frame: bytes) -> bytes:
        key, version, correlation_id = REQUEST_START.unpack_from(frame)
        request = FOLLOWED.get(key)
        if key == ApiVersionsRequest.API_KEY and self._tap.fetch_cap is None:
            return frame
        if request is not None and version <= request.max_version:
            self._waiting[correlation_id] = request.decode(frame, version=version, header=True)
        return frame

    def _response(self, frame: bytes) -> bytes:
        request = self._waiting.pop(*CORRELATION_ID.unpack_from(frame), None)
        if request is None:
            return frame
        response = request.header.get_response_class().decode(frame, header=True)
        return self._tap.note(request, response, frame, self._start)
