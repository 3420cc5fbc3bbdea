"""The servers: a gateway and kafka-proxy before a broker of Kafka 4, that broker, and one of Kafka 3.9."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.broker.broker import HOST, KAFKA_4, Broker
from tests.endpoints.endpoint_process import gateway_process

from bench import BUILD
from bench.broker import broker_of
from bench.serve.logs import Topic
from bench.serve.servers import Server

GATEWAY, DIRECT, OLD_BROKER, KAFKA_PROXY = "gateway", "Kafka 4", "Kafka 3.9.1", "kafka-proxy"
ROOT = BUILD / "gateway"
LOGS = ROOT / "logs"
# Before each row. A JVM compiles what it runs often.
_WARM_UP_SECONDS = 3.0
_MODULE = "github.com/grepplabs/kafka-proxy@v0.4.3"
# The path of a kafka-proxy that is built already.
_PATH_VARIABLE = "KAFKA_PROXY"
_START_SECONDS = 30.0


class ProxyUnavailableError(Exception):
    """kafka-proxy cannot be built or started; the message says why."""


class Running(NamedTuple):
    """The servers by name, and the brokers that have the topics. missing: why kafka-proxy is not among them."""

    servers: dict[str, Server]
    brokers: dict[str, Broker]
    missing: str | None


@contextmanager
def all_servers(topics: Sequence[Topic]) -> Iterator[Running]:
    """Run the servers. Both brokers have the topics, as linked segments."""
    folders = {topic.name: topic.folders for topic in topics}
    ROOT.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        new = stack.enter_context(broker_of(folders, ROOT, kafka=KAFKA_4))
        old = stack.enter_context(broker_of(folders, ROOT))
        gateway = stack.enter_context(gateway_process(new.bootstrap, log=ROOT / "gateway.log"))
        servers = [
            Server(GATEWAY, gateway.host, gateway.port, gateway.pid, _WARM_UP_SECONDS, new.pid),
            Server(DIRECT, HOST, new.port, new.pid, _WARM_UP_SECONDS),
            Server(OLD_BROKER, HOST, old.port, old.pid, _WARM_UP_SECONDS),
        ]
        missing = None
        try:
            servers.append(stack.enter_context(_kafka_proxy(new)))
        except ProxyUnavailableError as reason:
            missing = str(reason)
        brokers = {server.name: old if server.name == OLD_BROKER else new for server in servers}
        yield Running({server.name: server for server in servers}, brokers, missing)


@contextmanager
def _kafka_proxy(broker: Broker) -> Iterator[Server]:
    """Run kafka-proxy. Raises ProxyUnavailableError."""
    program = _program()
    with socket.create_server((HOST, 0)) as reserved:
        port = reserved.getsockname()[1]
    mapping = f"{broker.bootstrap},{HOST}:{port}"
    command = [
        program,
        "server",
        "--bootstrap-server-mapping",
        mapping,
        "--http-disable",
        "--log-level",
        "error",
    ]
    with (
        (ROOT / "kafka-proxy.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            _wait_for(port, process)
            yield Server(KAFKA_PROXY, HOST, port, process.pid, _WARM_UP_SECONDS, broker.pid)
        finally:
            process.terminate()


def _program() -> str:
    """Return the path of kafka-proxy, which Go builds if it is absent. Raises ProxyUnavailableError."""
    built = BUILD / "bin" / "kafka-proxy"
    found = (
        os.environ.get(_PATH_VARIABLE)
        or shutil.which("kafka-proxy")
        or (str(built) if built.exists() else None)
    )
    if found is not None:
        return found
    if shutil.which("go") is None:
        raise ProxyUnavailableError(f"no Go to build it, and {_PATH_VARIABLE} is not set")
    done = subprocess.run(
        ["go", "install", _MODULE],
        env={**os.environ, "GOBIN": str(built.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ProxyUnavailableError(f"go install {_MODULE}: {done.stderr.strip().splitlines()[-1].strip()}")
    return str(built)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    raise ProxyUnavailableError(
        f"it does not listen on port {port}: see {Path('kafka-proxy.log')} of {ROOT.name}"
    )
