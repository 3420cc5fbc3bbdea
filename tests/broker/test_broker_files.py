"""The files beside segments, compared with what kafka-dump-log prints about them, field by field."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.broker import KAFKA_4, Broker, BrokerError
from broker.client import JavaClient
from data.make import make_transactions
from kafkafmt.log import broker_file_rows
from kafkafmt.log.broker_files.index_verification import check_index_sanity, verify_index
from log.test_broker_files import FILES
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("oracle")]

STEM = "00000000000000000062"
FIELD = re.compile(r"(\w+): (?:OptionalLong\[)?(-?\d+|OptionalLong\.empty)")
# The names that kafka-dump-log has for our fields, by the suffix of the file.
NAMES = {
    ".index": {"offset": "offset", "position": "position"},
    ".timeindex": {"timestamp": "timestamp", "offset": "offset"},
    ".txnindex": {
        "producer_id": "producerId",
        "first_offset": "firstOffset",
        "last_offset": "lastOffset",
        "last_stable_offset": "lastStableOffset",
    },
    ".snapshot": {
        "producer_id": "producerId",
        "producer_epoch": "producerEpoch",
        "coordinator_epoch": "coordinatorEpoch",
        "transaction_first_offset": "currentTxnFirstOffset",
        "timestamp": "lastTimestamp",
        "last_sequence": "lastSequence",
        "last_offset": "lastOffset",
        "offset_delta": "offsetDelta",
    },
}


@pytest.fixture(scope="module")
def log(any_broker: Broker, oracle: KafkaOracle) -> tuple[Broker, Path]:
    """A broker, and the folder of a log with aborted transactions over several segments."""
    size = "internal.segment.bytes" if any_broker.kafka is KAFKA_4 else "segment.bytes"
    topic = "broker-files"
    any_broker.create_topic(topic, config={size: 4000, "index.interval.bytes": 400})
    with JavaClient(oracle.jvm, any_broker) as client:
        make_transactions(client, topic)
    return any_broker, any_broker.log_dir / f"{topic}-0"


def dumped(broker: Broker, files: list[Path]) -> Iterator[tuple[Path, list[dict[str, str]]]]:
    """What kafka-dump-log prints about each file, as fields."""
    parts = re.split(r"^Dumping (.+)$", broker.dump_log(files), flags=re.MULTILINE)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        rows = (dict(FIELD.findall(line)) for line in text.splitlines())
        yield Path(name), [row for row in rows if row.keys() >= set(NAMES[Path(name).suffix].values())]


@pytest.mark.parametrize("suffix", NAMES)
def test_file_of_a_running_broker_when_read_then_has_what_kafka_dump_log_prints(
    log: tuple[Broker, Path], suffix: str
) -> None:
    broker, folder = log
    files = sorted(folder.glob(f"*{suffix}"))
    found = dict(dumped(broker, files))
    assert len(found) == len(files) > 3
    for path, printed in found.items():
        rows = list(broker_file_rows(path))
        expected = [{ours: row[theirs] for ours, theirs in NAMES[suffix].items()} for row in printed]
        # Of an index without entries, kafka-dump-log prints the first preallocated one.
        is_empty = suffix in (".index", ".timeindex") and not rows and len(printed) <= 1
        assert (
            is_empty
            or [
                {
                    name: "OptionalLong.empty" if value == -1 and "first_offset" in name else str(value)
                    for name, value in row.items()
                }
                for row in rows
            ]
            == expected
        )


def _set(position: int, data: bytes) -> Callable[[bytearray], None]:
    def edit(content: bytearray) -> None:
        content[position : position + len(data)] = data

    return edit


def _cut(count: int) -> Callable[[bytearray], None]:
    def edit(content: bytearray) -> None:
        del content[-count:]

    return edit


def _preallocate(content: bytearray) -> None:
    content += bytes(1200)


# By name: the suffix of an index, and what is done to it. Entries have 8 and 12 bytes.
DAMAGE: dict[str, tuple[str, Callable[[bytearray], None]]] = {
    "sound": (".index", _set(0, b"")),
    "preallocated": (".index", _preallocate),
    "offset-of-first-entry": (".index", _set(3, b"\x01")),
    "offset-of-last-entry": (".index", _set(43, b"\x01")),
    "last-offset-below-base": (".index", _set(40, b"\xff\xff\xff\xff")),
    "zeros-in-the-middle": (".index", _set(16, bytes(8))),
    "partial-entry": (".index", _cut(3)),
    "less-than-an-entry": (".index", _cut(43)),
    "empty": (".index", _cut(48)),
    "sound-times": (".timeindex", _set(0, b"")),
    "preallocated-times": (".timeindex", _preallocate),
    "timestamp-of-second-entry": (".timeindex", _set(19, b"\x01")),
    "times-out-of-order": (".timeindex", _set(24, bytes(7))),
    "offset-of-a-time": (".timeindex", _set(23, b"\x02")),
    "last-offset-of-times-below-base": (".timeindex", _set(32, b"\xff\xff\xff\xff")),
    "partial-time": (".timeindex", _cut(5)),
}


def damaged(folder: Path, name: str) -> Path:
    suffix, edit = DAMAGE[name]
    path = Path(shutil.copytree(FILES / "4.3" / "orders-0", folder / name / "orders-0"), STEM + suffix)
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", DAMAGE)
def test_index_when_checked_for_sanity_then_the_verdict_is_that_of_kafka_dump_log(
    broker: Broker, tmp_path: Path, name: str
) -> None:
    path = damaged(tmp_path, name)
    findings = check_index_sanity(path).findings  # kafka-dump-log cuts a partial entry off the file
    try:
        broker.dump_log(path, "--index-sanity-check")
        is_sound = True
    except BrokerError:
        is_sound = False
    assert (findings == []) == is_sound


def test_indexes_when_verified_then_the_verdicts_are_those_of_kafka_dump_log(
    broker: Broker, tmp_path: Path
) -> None:
    paths = [damaged(tmp_path, name) for name in DAMAGE]
    wrong = {path for path in paths if verify_index(path).findings}
    printed = broker.dump_log(paths, "--verify-index-only")
    complaints = re.findall(
        r"^(?:Mismatches|Found|The following).* in ?:? ?(/\S+?\.\w*index)", printed, re.MULTILINE
    )
    complaints += re.findall(
        r"^(?:Mismatches|Found|The following).*\bfile:? ?(/\S+?\.\w*index)", printed, re.MULTILINE
    )
    assert len(wrong) == 7
    assert wrong == {Path(path) for path in complaints}, printed


@pytest.mark.parametrize("position", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_index_when_a_position_is_outside_the_segment_then_neither_tool_accepts_it(
    broker: Broker, tmp_path: Path, position: bytes
) -> None:
    path = damaged(tmp_path, "sound")
    content = bytearray(path.read_bytes())
    content[4:8] = position
    path.write_bytes(content)
    assert verify_index(path).findings
    with pytest.raises(BrokerError):
        broker.dump_log(path, "--verify-index-only")
