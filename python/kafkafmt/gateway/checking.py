"""`kafkafmt gateway --check`: connect to the cluster, and report what would work.

Each line begins with `ok`, `warning` or `failure`. Nothing is changed: the requests are ApiVersions, Metadata and SASL.
"""

from __future__ import annotations

import asyncio
import errno
import re
import resource
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from kafka.errors import KafkaError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import MetadataRequest

from kafkafmt._util.addresses import host_and_port
from kafkafmt._util.names import some_names
from kafkafmt._util.sizes import size_text
from kafkafmt.client.handshake import uses_sasl
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.endpoint import max_clients
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.identities import ClientIdentity
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.gateway.upstream import Upstream
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.gateway.versions import FIRST_BATCHES, is_answered
from kafkafmt.server.listener import listen
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.security.users import Users
from kafkafmt.server.wire import api_name

Level = Literal["ok", "warning", "failure"]

# Seconds that a broker has to answer.
_SECONDS = 10.0
_ALL_TOPICS_VERSION = 1  # of Metadata: null stands for all topics
# Errors of connections to a broker whose listener has another security protocol.
_OTHER_PROTOCOL = re.compile(
    "the broker closed the connection$|Invalid frame length"
    "|IllegalSaslState|UNEXPECTED_EOF_WHILE_READING|WRONG_VERSION_NUMBER"
)
# The versions of requests that Java clients of a release send: one for each API. Clients of 0.8 and 0.9 have no other,
# because they cannot ask which versions a broker takes. For later clients it is the lowest that they know.
_GROUPS = {ApiKey.JoinGroup: 0, ApiKey.SyncGroup: 0, ApiKey.Heartbeat: 0, ApiKey.LeaveGroup: 0}
_COMMON = {ApiKey.Metadata: 0, ApiKey.FindCoordinator: 0}
_RELEASES: Mapping[str, Mapping[int, int]] = {
    "0.8.2": {
        **_COMMON,
        ApiKey.Produce: 0,
        ApiKey.Fetch: 0,
        ApiKey.ListOffsets: 0,
        ApiKey.OffsetCommit: 1,
        ApiKey.OffsetFetch: 1,
    },
    "0.9.0": {
        **_COMMON,
        **_GROUPS,
        ApiKey.Produce: 1,
        ApiKey.Fetch: 1,
        ApiKey.ListOffsets: 0,
        ApiKey.OffsetCommit: 2,
        ApiKey.OffsetFetch: 1,
    },
    "0.10.0": {
        **_COMMON,
        **_GROUPS,
        ApiKey.Metadata: 1,
        ApiKey.Produce: 2,
        ApiKey.Fetch: 2,
        ApiKey.ListOffsets: 0,
        ApiKey.OffsetCommit: 2,
        ApiKey.OffsetFetch: 1,
    },
    "0.10.1": {
        **_COMMON,
        **_GROUPS,
        ApiKey.Metadata: 2,
        ApiKey.Produce: 2,
        ApiKey.Fetch: 3,
        ApiKey.ListOffsets: 1,
        ApiKey.OffsetCommit: 2,
        ApiKey.OffsetFetch: 1,
        ApiKey.JoinGroup: 1,
    },
    "0.11 and 1.0": {
        **_COMMON,
        **_GROUPS,
        ApiKey.Metadata: 4,
        ApiKey.Produce: 3,
        ApiKey.Fetch: 5,
        ApiKey.ListOffsets: 2,
        ApiKey.OffsetCommit: 3,
        ApiKey.OffsetFetch: 3,
        ApiKey.JoinGroup: 2,
    },
}


class _Found(NamedTuple):
    """A line of the report."""

    level: Level
    text: str


async def check(options: GatewayOptions, write: Callable[[str], object]) -> bool:
    """Write the report, line by line. Returns whether nothing failed. Raises TlsError and OSError for files."""
    if options.tls is not None:
        tls_context(options.tls)
    is_good = True

    def report(found: _Found) -> None:
        nonlocal is_good
        is_good = is_good and found.level != "failure"
        write(f"{found.level:8} {found.text}")

    cluster = await _Cluster.of(options, report)
    if cluster is not None:
        for found in cluster.report():
            report(found)
    for found in (
        *await _addresses(options),
        *_users(options),
        *_limits(options, 1 if cluster is None else len(cluster.brokers)),
    ):
        report(found)
    return is_good


class _Cluster(NamedTuple):
    """What the cluster answered. versions: by API key, those that the first broker takes."""

    versions: Mapping[int, range]
    release: str
    brokers: Mapping[int, Address]

    @classmethod
    async def of(cls, options: GatewayOptions, report: Callable[[_Found], None]) -> _Cluster | None:
        """Connect to the cluster as clients will be; None if no broker can be reached."""
        config = cluster_config(options.client_config)
        identity = ClientIdentity(config, options.identities, passes=options.passes_credentials)
        view = ClusterView()
        reached: Upstream | None = None
        for server in options.servers:
            upstreams = _upstreams(view, (server,), identity.first)
            answer = await _connected(upstreams.any())
            if isinstance(answer, str):
                report(_Found("failure", f"{host_and_port(*server)}: {answer}"))
                continue
            reached = reached or answer
            whom = _as_whom(identity.first, config["security_protocol"])
            report(_Found("ok", f"{host_and_port(*server)}: connected{whom}"))
        if reached is None:
            return None
        named = await _first_identity(options, view, identity, report)
        brokers: Mapping[int, Address] = {}
        if named is not None:
            brokers = await _brokers(named, view, report)
        else:
            report(_Found("warning", "the brokers are not asked: only a client's credentials could do that"))
        found = reached.connection.versions
        assert found is not None
        release = ".".join(map(str, found.broker_version or ()))
        return cls(reached.versions(), release, brokers)

    def report(self) -> Iterator[_Found]:
        """Yield what clients of each release can do."""
        yield _Found("ok", f"the cluster answers as Kafka {self.release or 'of an unknown release'}")
        for release, sent in _RELEASES.items():
            direct = [key for key, version in sent.items() if version not in self._taken(key)]
            through = [key for key, version in sent.items() if not self._is_offered(key, version)]
            prefix = f"clients of Kafka {release}: "
            if through:
                yield _Found("failure", f"{prefix}not even through the gateway: {_names(through)}")
            elif direct:
                yield _Found("ok", f"{prefix}through the gateway only (directly refused: {_names(direct)})")
            else:
                yield _Found("ok", f"{prefix}directly, too")

    def _taken(self, key: int) -> range:
        """Return the versions that the cluster takes. Kafka 4 lists Produce 0 to 2, but refuses them."""
        taken, fetch = self.versions.get(key, range(0)), self.versions.get(ApiKey.Fetch, range(0))
        if key == ApiKey.Produce and fetch and fetch[0] >= FIRST_BATCHES[ApiKey.Fetch]:
            return range(max(taken.start, FIRST_BATCHES[ApiKey.Produce]), taken.stop)
        return taken

    def _is_offered(self, key: int, version: int) -> bool:
        taken = self._taken(key)
        return version in taken or bool(taken and is_answered(key, version, taken))


def _names(keys: list[int]) -> str:
    return ", ".join(api_name(key) for key in keys)


def _upstreams(view: ClusterView, servers: tuple[Address, ...], config: Mapping[str, Any]) -> Upstreams:
    return Upstreams(IoLoop(asyncio.get_running_loop()), view, servers, config)


def _as_whom(config: Mapping[str, Any], protocol: str) -> str:
    """Return the user of the gateway at the cluster, as text. protocol: `security_protocol` of the settings."""
    if config["security_protocol"] != protocol:
        return f" without credentials ({protocol})"
    name = (
        f" as {config['sasl_plain_username']}" if uses_sasl(config) and config["sasl_plain_username"] else ""
    )
    return f"{name} ({protocol})"


async def _connected(connecting: Coroutine[Any, Any, Upstream]) -> Upstream | str:
    """Return a connection, or why there is none."""
    try:
        return await asyncio.wait_for(connecting, _SECONDS)
    except asyncio.TimeoutError:
        return f"no answer within {_SECONDS:g} s"
    except UpstreamAuthenticationError as error:
        return f"the credentials are refused: {error}"
    except (UpstreamError, KafkaError, OSError) as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    """Return the text of an error, with a hint if the broker seems to expect another security protocol."""
    return f"{error}{' (is security.protocol right?)' if _OTHER_PROTOCOL.search(str(error)) else ''}"


async def _first_identity(
    options: GatewayOptions, view: ClusterView, identity: ClientIdentity, report: Callable[[_Found], None]
) -> Upstreams | None:
    """Return connections under the first identity that the cluster accepts; None if there is none to try."""
    if options.passes_credentials:
        return None
    if options.identities is None:
        return _upstreams(view, options.servers, identity.first)
    accepted: Upstreams | None = None
    for user in options.identities.by_user:
        upstreams = _upstreams(view, options.servers, identity.first)
        await identity.accept(upstreams, user, None)
        answer = await _connected(upstreams.any())
        if isinstance(answer, str):
            report(_Found("failure", f"user {user}: {answer}"))
        else:
            report(_Found("ok", f"user {user}: the cluster accepts the identity"))
            accepted = accepted or upstreams
    return accepted


async def _brokers(
    upstreams: Upstreams, view: ClusterView, report: Callable[[_Found], None]
) -> Mapping[int, Address]:
    """Connect to each broker of the cluster. Report whether it shows topics."""
    try:
        await asyncio.wait_for(upstreams.refresh([]), _SECONDS)
        report(await asyncio.wait_for(_topics(upstreams), _SECONDS))
    except asyncio.TimeoutError:
        report(_Found("failure", f"Metadata: no answer within {_SECONDS:g} s"))
    except (UpstreamError, KafkaError) as error:
        report(_Found("failure", f"Metadata: {_reason(error)}"))
    for node_id, address in sorted(view.brokers.items()):
        answer = await _connected(upstreams.node(node_id))
        place = f"broker {node_id} at {host_and_port(*address)}"
        if isinstance(answer, str):
            report(_Found("failure", f"{place}: {answer}"))
        else:
            report(_Found("ok", f"{place}: connected"))
    return dict(view.brokers)


async def _topics(upstreams: Upstreams) -> _Found:
    """Return how many topics the identity sees. Brokers leave out those on which it lacks the right Describe."""
    upstream = await upstreams.any()
    response = await upstream.ask(
        MetadataRequest(version=upstream.version(MetadataRequest.API_KEY, _ALL_TOPICS_VERSION), topics=None)
    )
    if response.topics:
        return _Found("ok", f"topics: {len(response.topics)} visible to this user")
    return _Found(
        "warning",
        "topics: none is visible: the cluster has none, or this user lacks the right Describe on them",
    )


async def _addresses(options: GatewayOptions) -> list[_Found]:
    """Return which addresses cannot be listened on, and to what the advertised name resolves."""
    ports = () if options.broker_ports is None else options.broker_ports.all
    found = [
        *_bound("--listen", options.host, [options.port]),
        *_bound("--listener-per-broker", options.host, ports),
    ]
    if options.metrics is not None:
        host, port = options.metrics
        found += _bound("--metrics", host, [port])
    if options.advertised is not None:
        host, port = options.advertised
        place = f"--advertise {host_and_port(host, port)}"
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(host, port)
        except OSError as error:
            found.append(_Found("warning", f"{place}: this machine cannot resolve it: {error.strerror}"))
        else:
            ips = ", ".join(sorted({str(address[4][0]) for address in addresses}))
            found.append(_Found("ok", f"{place}: resolves to {ips}"))
    return found


def _bound(option: str, host: str, ports: Iterable[int]) -> Iterator[_Found]:
    """Yield the addresses that a gateway cannot listen on. One that is used may be that of the gateway that runs."""
    for port in ports:
        try:
            listen(host, port).close()
        except OSError as error:
            level: Level = "warning" if error.errno == errno.EADDRINUSE else "failure"
            yield _Found(level, f"{option} {host_and_port(host, port)}: {error.strerror}")


def _users(options: GatewayOptions) -> Iterator[_Found]:
    """Yield which users of the files cannot connect."""
    users = options.users
    if not isinstance(users, Users):
        return
    if not users.names:
        yield _Found("failure", f"--sasl-users {users.path}: it has no user, so no client can connect")
    if options.identities is not None:
        without = sorted(users.names - options.identities.by_user.keys())
        if without:
            place = f"--cluster-identities {options.identities.path}"
            yield _Found("warning", f"{place}: users without a section cannot connect: {some_names(without)}")


def _limits(options: GatewayOptions, brokers: int) -> Iterator[_Found]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = max_clients(options)
    needed = clients * (1 + max(brokers, 1))
    limit = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    level: Level = "ok" if soft == resource.RLIM_INFINITY or needed <= soft else "warning"
    yield _Found(
        level,
        f"connections: {clients} clients at most in each process (--workers {options.workers}); "
        f"if each uses all brokers, they take {needed} open files of {limit}",
    )
    yield _Found(
        "ok",
        f"memory: {size_text(options.max_downconversion_bytes)} of converted records in all, and "
        f"{size_text(options.max_produce_memory_bytes)} of requests and responses in each process",
    )
