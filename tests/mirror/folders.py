"""Log directories for the mirror's tests, and the mirror as its users call it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kafkafmt as kf
from cli.logs import run
from kafkafmt.log import LogDirectory, PartitionLogWriter
from kafkafmt.log.topic_configs import TopicConfig, update_topic_configs

# The configuration of a topic that nothing tells of: it loses nothing, whatever a cluster's defaults are.
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
NOW = 1_700_000_000_000
CODECS = (kf.Codec.NONE, kf.Codec.GZIP, kf.Codec.SNAPPY, kf.Codec.LZ4, kf.Codec.ZSTD)


class Outcome(NamedTuple):
    """How a command ended: its exit status, the JSON on standard output, and standard error."""

    status: int
    summary: dict[str, Any]
    errors: str


def mirror(source: object, target: object, *options: object) -> Outcome:
    """Run `kafkafmt mirror`."""
    result = run("mirror", source, target, "--json", *options)
    return Outcome(result.exit_code, json.loads(result.stdout or "{}"), result.stderr)


def batch(base_offset: int, count: int = 10, codec: kf.Codec = kf.Codec.NONE, **options: Any) -> bytes:
    """A batch whose records say their offsets."""
    builder = kf.RecordBatchBuilder(codec=codec, base_offset=base_offset, **options)
    for offset in range(base_offset, base_offset + count):
        builder.append(NOW + offset, b"key-%d" % (offset % 7), b"value-%d" % offset, [("n", b"%d" % offset)])
    return builder.build()


def batches(first: int = 0, stop: int = 300, count: int = 10) -> list[bytes]:
    """Batches of every codec, end to end."""
    return [
        batch(offset, count, CODECS[number % len(CODECS)])
        for number, offset in enumerate(range(first, stop, count))
    ]


def put_log(folder: Path, data: Iterable[bytes], segment_bytes: int = 4096) -> Path:
    """A log of several segments."""
    with PartitionLogWriter(folder, segment_bytes=segment_bytes) as writer:
        for some in data:
            writer.append(some)
    return folder


def one_batch_a_request(directory: Path, partitions: int = 1, **config: Any) -> Path:
    """A log directory with an empty topic t, whose endpoint says, as a broker, that it takes one batch in a request.

    To an endpoint that takes many a mirror combines none.
    """
    directory.mkdir()
    configs = {**KEPT, "kafkafmt.max.batches.per.request": "1"}
    configs |= {name.replace("_", "."): str(value) for name, value in config.items()}
    update_topic_configs(directory, lambda _: {"t": TopicConfig(partitions, configs)})
    for number in range(partitions):
        put_log(directory / f"t-{number}", [])
    return directory


def log_bytes(folder: Path) -> bytes:
    """All batches of a log, end to end."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def records(directory: Path, partition: tuple[str, int] = ("t", 0)) -> Sequence[tuple[Any, ...]]:
    log = LogDirectory(directory).partition(partition)
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in log.records(control=True)]


def stopped(summary: Mapping[str, Any]) -> dict[str, int]:
    """By partition, where it was stopped."""
    return {f"{one['topic']}-{one['partition']}": one["offset"] for one in summary["stopped"]}
