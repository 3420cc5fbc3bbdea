"""Real brokers on a repaired data directory: no complaint in their log, and each record that is kept is served."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path

import pytest

import reference
from broker.broker import KAFKA_3, KAFKA_4, Broker, Kafka
from endpoints.requests import Wanted, fetch
from kafkafmt.jobs.repair import repair, repair_in_place
from repair.damaged import assert_repaired, damage, make_log

pytestmark = [pytest.mark.broker, pytest.mark.full]

TOPICS, PARTITIONS = 5, 50
MOST_DUMPED = 500  # their paths are one argument
ALTERED = {"base offset", "flip", "flips"}
MISMATCH = re.compile(r"^(Mismatches|Found|The following)", re.MULTILINE)
COMPLAINT = re.compile(
    r" (WARN|ERROR|FATAL) .*(log|segment|index|snapshot|checkpoint|epoch|producer|stray|recover)",
    re.IGNORECASE,
)
# What the brokers of the tests say at each start.
USUAL = re.compile(r"AppInfo|KafkaConfig|deprecat|reflections|SLF4J|internal\.", re.IGNORECASE)


def fetched(broker: Broker, topic: str, partition: int, offset: int, end: int) -> bytes:
    """All bytes from an offset on, as the broker serves them."""
    found, deadline = b"", time.monotonic() + 30
    while offset < end and time.monotonic() < deadline:
        request = fetch(Wanted(topic, partition, offset), max_wait_ms=100)
        answer = broker.request(request, 11).responses[0].partitions[0]
        assert answer.error_code == 0, (topic, partition, offset, answer.error_code)
        data = bytes(answer.records or b"")
        if not data:  # the high watermark rises once the broker leads the partition
            continue
        found += data
        offset = max(batch.last_offset for batch in reference.read(data)) + 1
    return found


@pytest.mark.parametrize("in_place", [False, True], ids=["new folder", "in place"])
@pytest.mark.parametrize("kafka", [pytest.param(KAFKA_3, id="3.9"), pytest.param(KAFKA_4, id="4.x")])
def test_broker_when_its_directory_was_repaired_then_starts_without_complaint_and_serves_all_that_is_kept(
    kafka: Kafka, in_place: bool, tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "broker", kafka=kafka)
    broker.folder.mkdir()
    broker.start()
    for number in range(TOPICS):
        broker.create_topic(f"t{number}", PARTITIONS)
    broker.stop()
    logs = {}
    for folder in sorted(broker.log_dir.glob("t*-*")):
        rng = random.Random(f"{folder.name} {in_place}")  # so 500 folders for each line of Kafka
        topic_id = (folder / "partition.metadata").read_bytes()
        shutil.rmtree(folder)
        logs[folder.name] = log = make_log(folder, rng, most_epoch=0)
        (folder / "partition.metadata").write_bytes(topic_id)
        damage(log, rng)
    (broker.log_dir / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\ngarbage")
    sources = {
        name: [path.read_bytes() for path in log.folder.iterdir() if path.name.endswith(".log")]
        for name, log in logs.items()
    }
    if in_place:
        report = repair_in_place(broker.log_dir)
    else:
        target = tmp_path / "repaired"
        report = repair(broker.log_dir, target)
        shutil.rmtree(broker.log_dir)
        target.rename(broker.log_dir)
    reports = {f"{one.topic}-{one.partition}": one for one in report.partitions}
    kept = {}
    for name, log in logs.items():
        assert_repaired(log, sources[name], log.folder, reports[name])
        kept[name] = b"".join(path.read_bytes() for path in sorted(log.folder.glob("*.log")))
    indexes = [
        path
        for path in broker.log_dir.glob("t*-*/*index")
        # In place, an index may have the offset that a batch had before its base offset was altered.
        if path.stat().st_size and path.suffix != ".txnindex" and not ALTERED & {*logs[path.parent.name].done}
    ]
    some = random.Random(0).sample(indexes, min(MOST_DUMPED, len(indexes)))
    assert not MISMATCH.search(broker.dump_log(some, "--verify-index-only"))
    begin = broker.log_file.stat().st_size
    broker.start()
    try:
        for name, data in kept.items():
            topic, _, number = name.rpartition("-")
            one = reports[name]
            if data:
                assert one.first_offset is not None
                assert one.last_offset is not None
                assert fetched(broker, topic, int(number), one.first_offset, one.last_offset + 1) == data, (
                    name
                )
    finally:
        broker.stop()
    said = broker.log_file.read_text(errors="replace")[begin:].splitlines()
    complaints = [line for line in said if COMPLAINT.search(line) and not USUAL.search(line)]
    assert not complaints, "\n".join(complaints[:20])
