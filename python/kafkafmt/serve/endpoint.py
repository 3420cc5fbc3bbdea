"""The endpoint: a Kafka server that answers from a log directory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import structlog
from kafka.protocol.api_key import ApiKey

from kafkafmt._util.descriptors import max_open_logs, max_open_segments
from kafkafmt.serve import apis
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.fetching import Fetching
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.producing import Producing
from kafkafmt.serve.producing.producer_ids import ProducerIdsApi
from kafkafmt.serve.producing.writers import Writers
from kafkafmt.serve.topic_creation import TopicCreation
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.listener import Server
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.service import Service
from kafkafmt.storage import RemotePath

_log = structlog.get_logger()

_RELEASE_SECONDS = 10.0


class Endpoint:
    """Serves a log directory on a listening socket, which the caller closes.

    handlers: handlers of further APIs by API key, such as those of groups. configs: None: they are read here.
    Raises FileNotFoundError or NotADirectoryError if the directory is none, TlsError, ValueError for invalid options,
    and IniError for a malformed `topics.ini` that is read here.
    """

    def __init__(
        self,
        options: ServeOptions,
        listener: socket.socket,
        *,
        handlers: Mapping[int, Handler] | None = None,
        configs: TopicConfigs | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = Metrics() if metrics is None else metrics
        tls = None if options.tls is None else tls_context(options.tls)
        self._work = BatchWork(
            options.max_decompressed_bytes, metrics, is_remote=isinstance(options.directory, RemotePath)
        )
        self._catalog = catalog = Catalog(
            options.directory,
            max_open_segments=min(options.max_open_segments or max_open_segments(), max_open_segments()),
            max_decompressed_bytes=options.max_decompressed_bytes,
            from_segment_start=options.from_segment_start,
            work=self._work,
        )
        node = Node.advertised(options, listener, catalog.cluster_id)
        self._growth = GrowthWatch()
        if configs is None:
            configs = TopicConfigs(options)
            configs.apply(configs.read())
        self._configs = configs
        self._writers: Writers | None = None
        self._creation: TopicCreation | None = None
        if options.allow_produce:
            self._creation = TopicCreation(options.local_directory, catalog, configs)
            self._creation.complete()
            self._writers = Writers(max_open_logs())
        fetching = Fetching(catalog, options, configs, self._growth, self._work)
        all_handlers = apis.handlers(catalog, node, options, configs, self._work, self._creation)
        all_handlers |= dict(handlers or {})
        if self._writers is not None:
            most = options.max_decompressed_bytes
            producing = Producing(catalog, configs, self._growth, self._writers, metrics, most)
            all_handlers[ApiKey.Produce] = producing.answer
            all_handlers[ApiKey.InitProducerId] = ProducerIdsApi().answer
        self.server = Server(
            listener, Service.within(options, all_handlers, fetching, self._work, metrics), tls
        )

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that the endpoint listens on."""
        return self.server.address

    async def serve(self) -> None:
        """Serve until `drain` was called and the responses in flight are sent, or `shutdown_timeout` is over.

        If the task is cancelled, it does not wait for responses. Raises OSError at the end if records of producers may
        be lost, as a log could not be flushed.
        """
        releasing = asyncio.create_task(self._release_deleted_segments())
        try:
            await self.server.serve()
            if self._creation is not None:
                await self._creation.close()
            await self._growth.close()
            self._work.close()
            if self._writers is not None:
                await self._writers.close()
        finally:
            releasing.cancel()
            if self._creation is not None:
                self._creation.stop()  # the event loop waits for its thread even if the task is cancelled

    async def _release_deleted_segments(self) -> None:
        """Close deleted files again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(_RELEASE_SECONDS)
            try:
                await asyncio.to_thread(self._catalog.release_deleted_segments)
            except OSError as error:  # the file system may answer at the next call
                _log.warning("deleted segments cannot be looked for", error=str(error))

    async def reload(self, options: ServeOptions) -> None:
        """Apply the topics file, users file and certificates as they are now. Changes nothing if one is invalid.

        options: the endpoint's options with the topics file and users file read again (`ServeOptions.reload`).
        Open connections are not affected. Raises IniError, TlsError and OSError.
        """
        tls = None if options.tls is None else await asyncio.to_thread(tls_context, options.tls)
        await self._configs.reload(options.topics_file)
        self.server.apply(options, tls)

    def drain(self) -> None:
        """Accept no more connections, close idle ones, and close the others after their current response."""
        self._growth.wake_all()
        self.server.drain()


async def open_worker_endpoint(
    options: ServeOptions, listener: socket.socket, handlers: Mapping[int, Handler], metrics: Metrics
) -> Endpoint:
    """Open the endpoint of one worker. The supervisor has already refused malformed files at its start."""
    configs = TopicConfigs(options)
    await configs.refresh()  # logs an error if `topics.ini` is malformed now
    return Endpoint(options, listener, handlers=handlers, configs=configs, metrics=metrics)
