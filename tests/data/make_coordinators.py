#!/usr/bin/env python3
"""Keep the folders of groups and transactions that real brokers of Kafka 3.9 and 4 leave, and what they told of them.

    python tests/data/make_coordinators.py        writes tests/data/coordinators/ anew

README.md beside this says what they hold.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker.broker import KAFKA_3, KAFKA_4, Broker, Kafka  # noqa: E402  (the helpers are packages under tests/)
from broker.coordinators import leave_state  # noqa: E402

FOLDER = HERE / "coordinators"
KEPT = ("*.log", "*.snapshot", "partition.metadata", "leader-epoch-checkpoint")


def keep(kafka: Kafka) -> None:
    target = FOLDER / kafka.name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder), kafka=kafka)
        with broker:
            broker.wait_for_coordinator()
            told = leave_state(broker, "")
        for source in sorted(broker.log_dir.glob("*-[0-9]")):
            if source.name.startswith(("__consumer_offsets", "__transaction_state", "orders")):
                (target / source.name).mkdir(parents=True)
                for pattern in KEPT:
                    for file in source.glob(pattern):
                        shutil.copy(file, target / source.name)
    (target / "told.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for line in (KAFKA_3, KAFKA_4):
        keep(line)
