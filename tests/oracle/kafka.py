"""Kafka's record layer (`kafka-clients` 3.9, the last line that converts down) in a JVM, driven by py4j.

A call through py4j costs more than decoding a batch, so the work is done by one static Java method,
`Oracle.run`, that takes many requests at once; `ask` is that method, the others are one request each.

The fields of a batch to build, all but `magic` optional:
    magic, codec (id), timestamp_type (id), base_offset, last_offset, log_append_time, producer_id,
    producer_epoch, base_sequence, is_transactional, is_control, partition_leader_epoch, delete_horizon_ms,
    records: [{offset, timestamp, key, value, headers: [[str, bytes | None]]}
              or, in a control batch, {offset, timestamp, marker: "COMMIT" | "ABORT", coordinator_epoch};
              without an offset the marker is appended as brokers append it, with their checks],
    is_empty: a v2 header without records, as the cleaner leaves it,
    stamp_log_append_time, stamp_last_offset: what a broker writes over the finished batch.
A batch to split, as a producer has it: magic, codec, its own producer state, records, split_batch_size,
estimated_ratio. The answer has it as `bytes`, and the `parts`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway

from broker.jars import KAFKA, ROOT

SOURCE = Path(__file__).with_name("Oracle.java")
CLASSES = ROOT / "build" / "oracle"
STOP_SECONDS = 10
QUIET = Path(__file__).parents[1] / "broker" / "quiet.properties"


class OracleError(Exception):
    """Kafka answered with an exception; `.name` is its simple class name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class KafkaOracle:
    """Kafka's record code. A context manager: the JVM ends with it."""

    def __enter__(self) -> KafkaOracle:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        port, token, self._process = launch_gateway(
            jarpath=py4j_jar(),
            classpath=os.pathsep.join([str(compiled()), KAFKA.classpath()]),
            javaopts=[
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Dlog4j.configuration={QUIET.as_uri()}",
            ],
            java_path=java("java"),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        self.jvm: Any = self.gateway.jvm

    def close(self) -> None:
        self.gateway.shutdown()
        if self._process.stdin:
            self._process.stdin.close()  # the JVM ends when its standard input does
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def ask(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer many requests in one call; where Kafka throws, the answer is `error` and `message`."""
        answers = json.loads(self.jvm.Oracle.run(json.dumps(requests, default=_base64)))
        return [_with_bytes(answer) for answer in answers]

    def decode(self, data: bytes) -> list[dict[str, Any]]:
        """The batches of a record set: every header field, and `records`."""
        batches: list[dict[str, Any]] = self._one(decode_request(data))["batches"]
        return batches

    def down_convert(self, data: bytes, to_magic: int, first_offset: int = 0) -> bytes:
        converted: bytes = self._one(down_convert_request(data, to_magic, first_offset))["bytes"]
        return converted

    def build(self, spec: dict[str, Any]) -> bytes:
        built: bytes = self._one({"op": "build", **spec})["bytes"]
        return built

    def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        (answer,) = self.ask([request])
        if "error" in answer:
            raise OracleError(answer["error"], answer["message"])
        return answer


def decode_request(data: bytes) -> dict[str, Any]:
    return {"op": "decode", "data": data}


def validate_request(data: bytes) -> dict[str, Any]:
    """The `values` of all records, or the error of the first CRC that does not hold, those in wrappers included."""
    return {"op": "validate", "data": data}


def down_convert_request(data: bytes, to_magic: int, first_offset: int) -> dict[str, Any]:
    return {"op": "down_convert", "data": data, "to_magic": to_magic, "first_offset": first_offset}


def filter_request(data: bytes, keys: Sequence[bytes]) -> dict[str, Any]:
    """The `bytes` that the log cleaner leaves without records of these keys. Empty batches of producers stay."""
    return {"op": "filter", "data": data, "keys": list(keys)}


def py4j_jar() -> str:
    """Py4J's jar: its own, or the one that PySpark ships."""
    own = find_jar_path()
    if own:
        return str(own)
    import pyspark

    return str(next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")))


def compiled() -> Path:
    """The folder with Oracle.class, compiled where it is older than its source."""
    built = CLASSES / "Oracle.class"
    if built.exists() and built.stat().st_mtime >= SOURCE.stat().st_mtime:
        return CLASSES
    CLASSES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=CLASSES) as partial:
        subprocess.run([java("javac"), "-d", partial, "-cp", KAFKA.classpath(), str(SOURCE)], check=True)
        for file in Path(partial).iterdir():
            file.replace(CLASSES / file.name)
    return CLASSES


def java(tool: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/{tool}" if home else shutil.which(tool) or tool


def _base64(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be asked")


def _with_bytes(answer: dict[str, Any]) -> dict[str, Any]:
    if "bytes" in answer:
        answer["bytes"] = b64decode(answer["bytes"])
    if "parts" in answer:
        answer["parts"] = [b64decode(part) for part in answer["parts"]]
    for batch in answer.get("batches", ()):
        for record in batch.get("records", ()):
            record["key"] = _optional_bytes(record["key"])
            record["value"] = _optional_bytes(record["value"])
            record["headers"] = [(key, _optional_bytes(value)) for key, value in record["headers"]]
    return answer


def _optional_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
