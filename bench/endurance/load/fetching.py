"""Raw consumers of all ages, whose connections come and go.

`python -m bench.endurance.load.fetching FILE SERVER TOPIC:PARTITIONS:MAGIC... --session S --rate N --versions V,V`

Each member connects, asks for the start and the end of a partition, and fetches from somewhere between them to the end
of its session. Then it connects again, with the next partition and the next version of Fetch. It checks the CRC, the
format and the offset of every record. Latency is the time from a request to the last byte of its response. One session
in `_ABRUPT_ONE_IN` ends with a request of which the half is sent, and another one with a response that is not read.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from tests.endpoints.raw_client import RawClient
from tests.endpoints.requests import list_offsets
from tests.serve.raw_consumer import (
    ConsumptionError,
    FetchTemplate,
    Progress,
    fetched_partitions,
    magic_of,
)

from bench.endurance.load.program import LoadError, Measurements, argument_parser, run_program

_MEMBERS = 4
_FETCH_BYTES = 64 * 1024
_ABRUPT_ONE_IN = 10
_EARLIEST, _LATEST = -2, -1
_FIRST_WITH_LIST_OFFSETS_1 = 2  # version of Fetch: of the same release of Kafka


class Log(NamedTuple):
    """The log of a partition, and the newest message format that it has."""

    topic: str
    partition: int
    magic: int


class Members:
    """Members that fetch in threads, `rate` times a second together."""

    def __init__(
        self,
        address: tuple[str, int],
        logs: Sequence[Log],
        versions: Sequence[int],
        rate: float,
        measurements: Measurements,
    ) -> None:
        self._address, self._pause_seconds = address, _MEMBERS / rate
        self._logs, self._versions = logs, versions
        self._measurements = measurements
        self._sessions = count()
        self._chosen = random.Random(0)
        self._failure: BaseException | None = None

    def run(self, session_seconds: float, stopping: threading.Event) -> None:
        """Fetch until the event. Raises what went wrong for a member."""
        threads = [
            threading.Thread(target=self._member, args=(session_seconds, stopping)) for _ in range(_MEMBERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _member(self, session_seconds: float, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                number = next(self._sessions)
                log = self._logs[number % len(self._logs)]
                # Each partition is fetched at each version.
                version = self._versions[number // len(self._logs) % len(self._versions)]
                with RawClient(self._address) as client:
                    Session(client, log, version, self._measurements).run(
                        self._chosen.random(),
                        session_seconds,
                        _ENDS.get(number % _ABRUPT_ONE_IN),
                        lambda: stopping.wait(self._pause_seconds),
                    )
        except BaseException as error:
            self._failure = error
            stopping.set()


class Session:
    """A connection that fetches one partition at one version."""

    def __init__(self, client: RawClient, log: Log, version: int, measurements: Measurements) -> None:
        self._client, self._log, self._version = client, log, version
        self._template = FetchTemplate(log.topic, [log.partition], version, _FETCH_BYTES)
        self._measurements = measurements

    def run(
        self,
        place: float,
        seconds: float,
        end_abruptly: Callable[[RawClient, bytes], None] | None,
        pause: Callable[[], bool],
    ) -> None:
        """Fetch until `pause` returns True, the time is over or the end of the partition is reached.

        place: where the session begins, from 0, the middle of the partition, to 1, its end.
        """
        log, magic = self._log, min(magic_of(self._version), self._log.magic)
        start, end = self._offset(_EARLIEST), self._offset(_LATEST)
        # The older half may be deleted at any time.
        first = (start + end) // 2 + int(place * ((end - start) // 2))
        progress = Progress(f"{log.topic}-{log.partition}", magic, first, end, decode=True)
        until = time.monotonic() + seconds
        while not pause() and not progress.completed and time.monotonic() < until:
            self._fetch(progress)
        if end_abruptly is not None:
            end_abruptly(self._client, bytes(self._template.at([first])))
        self._measurements.count(connections=1)

    def _fetch(self, progress: Progress) -> None:
        before = progress.records
        begun = time.perf_counter()
        self._client.socket.sendall(self._template.at([progress.offset]))
        answer = self._client.receive_frame()
        self._measurements.took(time.perf_counter() - begun)
        (fetched,) = fetched_partitions(memoryview(answer), self._version)
        where = f"{progress.topic_partition}, Fetch v{self._version} at {progress.offset}"
        if fetched.error_code:
            raise ConsumptionError(f"{where}: error code {fetched.error_code}")
        progress.take(fetched.records)
        if progress.records == before:
            raise LoadError(f"{where}: no record")
        self._measurements.count(fetches=1, records=progress.records - before, bytes=len(answer))

    def _offset(self, timestamp: int) -> int:
        log = self._log
        version = 1 if self._version >= _FIRST_WITH_LIST_OFFSETS_1 else 0
        request = list_offsets((log.topic, log.partition, timestamp))
        ((answered,),) = ([*topic.partitions] for topic in self._client.ask(request, version).topics)
        if answered.error_code:
            raise LoadError(f"{log}: ListOffsets v{version}: error code {answered.error_code}")
        return int(answered.offset if version else answered.old_style_offsets[0])


def _send_half(client: RawClient, request: bytes) -> None:
    client.socket.sendall(request[: len(request) // 2])


def _send(client: RawClient, request: bytes) -> None:
    client.socket.sendall(request)


_ENDS = {0: _send_half, _ABRUPT_ONE_IN // 2: _send}


def _logs(text: str) -> Iterator[Log]:
    topic, partitions, magic = text.rsplit(":", 2)
    return (Log(topic, number, int(magic)) for number in range(int(partitions)))


def main() -> None:
    parser = argument_parser("fetching", __doc__)
    parser.add_argument("topics", nargs="+", metavar="TOPIC:PARTITIONS:MAGIC")
    parser.add_argument("--rate", type=float, required=True, help="fetches a second")
    parser.add_argument("--versions", required=True, help="of Fetch, separated by commas")
    run_program(parser, _members)


def _members(arguments: argparse.Namespace, measurements: Measurements) -> Members:
    host, _, port = arguments.server.rpartition(":")
    logs = [log for text in arguments.topics for log in _logs(text)]
    versions = [int(version) for version in arguments.versions.split(",")]
    return Members((host, int(port)), logs, versions, arguments.rate, measurements)


if __name__ == "__main__":
    main()
