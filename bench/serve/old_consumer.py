"""kafka-python 1.3.5: a consumer that people had, which fetches at v3 and takes no newer format than v1.

It runs by itself, with packages of its own, and prints how many records it got; each is the one behind the last of its
partition, or it fails: `python -m bench.serve.old_consumer BOOTSTRAP TOPIC PARTITIONS END PARTITION_BYTES FETCH_BYTES`.
"""

from __future__ import annotations

import os
import subprocess
import sys

from bench import ROOT

_TESTED = ROOT / "tests" / "clients"
_POLL_MS, _RECORDS_A_POLL = 10_000, 10_000


def consume(bootstrap: str, topic: str, partitions: int, end: int, *limits: int) -> int:
    """Records of all partitions up to offset `end`; limits: bytes a partition, and a fetch.

    Raises CalledProcessError where it does not get there.
    """
    install = [sys.executable, str(_TESTED / "install.py"), "kafka-python-1.3.5"]
    site = subprocess.run(install, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    arguments = map(str, (bootstrap, topic, partitions, end, *limits))
    done = subprocess.run(
        [sys.executable, "-m", "bench.serve.old_consumer", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{_TESTED / 'drivers'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


def main(bootstrap: str, topic: str, *numbers: str) -> None:
    from old_kafka_python import import_past_init

    import_past_init()
    from kafka.consumer.group import KafkaConsumer
    from kafka.structs import TopicPartition

    partitions, end, partition_bytes, fetch_bytes = map(int, numbers)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        api_version=(0, 10, 1),
        max_partition_fetch_bytes=partition_bytes,
        fetch_max_bytes=fetch_bytes,
        max_poll_records=_RECORDS_A_POLL,
        enable_auto_commit=False,
        group_id=None,
    )
    next_offsets = {TopicPartition(topic, number): 0 for number in range(partitions)}
    consumer.assign(list(next_offsets))
    for partition in next_offsets:
        consumer.seek(partition, 0)
    while any(offset < end for offset in next_offsets.values()):
        polled = consumer.poll(_POLL_MS)
        if not polled:
            sys.exit(f"no record within {_POLL_MS} ms")
        for partition, records in polled.items():
            for record in records:
                if record.offset != next_offsets[partition]:
                    sys.exit(f"{partition}: offset {record.offset}, expected {next_offsets[partition]}")
                next_offsets[partition] += 1
    print(sum(next_offsets.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
