"""The endpoint: takes connections, serves each in a task of its own, and ends them when it is told to."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace

import structlog
from kafka.protocol.api_key import ApiKey

from kafkafmt.memory import MemoryBudget
from kafkafmt.serve import apis
from kafkafmt.serve.batch_work import BatchWork
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.connection import Connection, RefusedError, Service
from kafkafmt.serve.descriptors import most_connections, most_open_logs, most_open_segments
from kafkafmt.serve.fetching import Fetching
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.logs import Seldom, bind_connection
from kafkafmt.serve.memory import DownConversionMemory
from kafkafmt.serve.metrics import Metrics
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions, host_and_port
from kafkafmt.serve.producing import Producing
from kafkafmt.serve.producing.producer_ids import ProducerIdsApi
from kafkafmt.serve.producing.writers import Writers
from kafkafmt.serve.request import Handler
from kafkafmt.serve.request_memory import REQUEST_COPIES, RequestMemory
from kafkafmt.serve.security.tls import tls_context
from kafkafmt.serve.stream import Stream
from kafkafmt.serve.topic_creation import TopicCreation
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.wire import RequestError

_log = structlog.get_logger()

_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: one that is free. Raises OSError, which has the address as its file name."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG, family=_family(host))
    except OSError as error:
        # What create_server says has the address in it; what stands for a host's name that is not known is no errno.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OSError(error.errno, reason, host_and_port(host, port)) from None


def _family(host: str) -> socket.AddressFamily:
    family: socket.AddressFamily = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return family


class Endpoint:
    """Serves a log directory on a listening socket, which stays the caller's to close.

    handlers: those of further APIs by key, groups say. configs: as they were read; None: they are read here.
    Raises FileNotFoundError or NotADirectoryError for another directory, TlsError, ValueError for options, and
    IniError for a malformed `topics.ini` that is read here.
    """

    def __init__(
        self,
        options: ServeOptions,
        listener: socket.socket,
        *,
        handlers: Mapping[int, Handler] | None = None,
        configs: TopicConfigs | None = None,
        metrics: Metrics | None = None,
        convert_eagerly: bool = False,
    ) -> None:
        self._options = options
        self._listener = listener
        self._metrics = Metrics() if metrics is None else metrics
        self._tls = None if options.tls is None else tls_context(options.tls)
        catalog = Catalog(
            options.directory,
            most_open_segments=min(options.max_open_segments or most_open_segments(), most_open_segments()),
            max_decompressed_bytes=options.max_decompressed_bytes,
            from_segment_start=options.from_segment_start,
        )
        node = Node.advertised(options, listener, catalog.cluster_id)
        self._growth = GrowthWatch()
        if configs is None:
            configs = TopicConfigs(options)
            configs.adopt(configs.read())
        self._configs = configs
        self._writers: Writers | None = None
        self._creation: TopicCreation | None = None
        if options.allow_produce:
            self._creation = TopicCreation(options.directory, catalog, configs)
            self._creation.complete()
            self._writers = Writers(most_open_logs())
        chunks, requests = options.max_downconversion_bytes, options.max_produce_memory_bytes
        budget = MemoryBudget(chunks + requests, "serve")
        memory = DownConversionMemory(budget.child("chunks", chunks), options.chunk_bytes, self._metrics)
        self._work = BatchWork()
        fetching = Fetching(
            catalog, options, configs, self._growth, self._work, convert_eagerly=convert_eagerly
        )
        all_handlers = apis.handlers(catalog, node, options, configs, self._work, self._creation)
        all_handlers |= dict(handlers or {})
        if self._writers is not None:
            most = options.max_decompressed_bytes
            producing = Producing(catalog, configs, self._growth, self._writers, self._metrics, most)
            all_handlers[ApiKey.Produce] = producing.answer
            all_handlers[ApiKey.InitProducerId] = ProducerIdsApi().answer
        self._service = Service(
            options,
            all_handlers,
            fetching,
            self._work,
            memory,
            self._metrics,
            RequestMemory(
                budget.child("requests", requests),
                self._metrics,
                most_bytes=max(requests, REQUEST_COPIES * options.largest_request_bytes),
                seconds=options.request_timeout,
            ),
        )
        self._most_connections = options.max_connections or most_connections()
        self._connections: dict[asyncio.Task[None], Connection | None] = {}
        self._numbers = itertools.count(1)
        self._accepting: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def serve(self) -> None:
        """Serve until `drain` was called and the responses in flight have ended, or their time has.

        A task that is cancelled waits for nothing.
        """
        try:
            await self._serve_connections()
        finally:
            if self._creation is not None:
                self._creation.stop()  # the event loop waits for its thread, though the task is cancelled

    async def _serve_connections(self) -> None:
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        # Tells that task's end, which `drain` cancels, from that of this one.
        (end,) = await asyncio.gather(self._accepting, return_exceptions=True)
        if isinstance(end, Exception):
            raise end
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._options.shutdown_timeout)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        if self._creation is not None:
            await self._creation.close()
        self._work.close()
        if self._writers is not None:
            await self._writers.close()

    async def read_again(self, options: ServeOptions) -> None:
        """Go by what the files of topics, users and certificates say now; nothing changes if one of them is wrong.

        options: those of the endpoint with the files of topics and users as they are (`ServeOptions.read_again`).
        Connections that are open stay as they are. Raises IniError, TlsError and OSError.
        """
        tls = self._tls if options.tls is None else await asyncio.to_thread(tls_context, options.tls)
        configuration = await asyncio.to_thread(self._configs.read, options.topics_file)
        self._configs.adopt(configuration)
        self._tls = tls
        self._service = replace(self._service, options=options)

    def drain(self) -> None:
        """Take no more connections, end those that are idle, and the others behind the response they are at."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._growth.wake_all()
        for task, connection in self._connections.items():
            if connection is None or not connection.is_busy:
                task.cancel()
            else:
                connection.drain()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        seldom = Seldom()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # out of descriptors, say: others may end
                if times := seldom.times("failure"):
                    _log.error("connection not accepted", error=str(error), times=times)
                await asyncio.sleep(0.1)
                continue
            if len(self._connections) >= self._most_connections:
                self._metrics.connection_refused("limit")  # before the client can know of it
                sock.close()
                if times := seldom.times("refusal"):
                    _log.warning("too many connections", most=self._most_connections, refused=times)
                continue
            task = loop.create_task(self._serve(sock))
            self._connections[task] = None
            task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, sock: socket.socket) -> None:
        self._metrics.connection_opened()
        stream = None
        try:
            stream = Stream(sock)
            bind_connection(next(self._numbers), f"{stream.host}:{stream.port}")
            await self._serve_stream(stream)
        except ssl.SSLError as error:
            self._metrics.connection_refused("tls")
            _log.info("TLS failed", error=error.reason or str(error))
        except (ConnectionError, TimeoutError, EOFError) as error:
            _log.debug("connection ended", error=str(error))
        except (RefusedError, RequestError) as error:
            self._metrics.connection_refused(error.reason if isinstance(error, RefusedError) else "request")
            _log.warning("connection closed", error=str(error))
        except OSError as error:
            _log.error("connection failed", error=str(error))
        except Exception:
            _log.exception("connection failed")
        finally:
            (stream or sock).close()
            self._metrics.connection_closed()

    async def _serve_stream(self, stream: Stream) -> None:
        if stream.socket.family != socket.AF_UNIX:
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.keep_alive()
        if self._tls is not None:
            await stream.start_tls(self._tls, self._options.request_timeout)
        connection = Connection(stream, self._service)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        await connection.serve()
