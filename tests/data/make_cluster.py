#!/usr/bin/env python3
"""Keep the metadata log of a real Kafka 4.3 broker, and what the admin client says about the cluster.

    python tests/data/make_cluster.py       writes tests/data/cluster/ anew

The folder is that of a broker that has ended, with its snapshots. `described.json` was asked for before, when the log
ended at its `end_offset`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker.administered import administered_broker  # noqa: E402  (the helpers are packages under tests/)
from broker.broker import KAFKA_4  # noqa: E402
from oracle.kafka import KafkaOracle  # noqa: E402

CLUSTER = HERE / "cluster"


def main() -> None:
    with KafkaOracle() as oracle, tempfile.TemporaryDirectory() as name:
        with administered_broker(Path(name), KAFKA_4, oracle.jvm) as running:
            described = running.described() | {"end_offset": running.end_offset()}
        shutil.rmtree(CLUSTER, ignore_errors=True)
        shutil.copytree(running.folder, CLUSTER / running.folder.name)
    for snapshot in CLUSTER.rglob("*.checkpoint"):
        snapshot.chmod(0o644)
    text = json.dumps(described, indent=1, sort_keys=True)
    (CLUSTER / "described.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
