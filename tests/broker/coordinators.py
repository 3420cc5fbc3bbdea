"""Groups and transactions of every kind in a broker, and what its admin API tells of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from broker.broker import KAFKA_3, KAFKA_4, Broker, BrokerError

PROGRAM = Path(__file__).with_name("CoordinatorState.java")
# The kinds of groups that a broker of this line has.
KINDS = {KAFKA_3.name: ("classic",), KAFKA_4.name: ("classic", "consumer", "share")}


def leave_state(broker: Broker, prefix: str) -> dict[str, Any]:
    """Leave groups and transactions whose names begin with `prefix`. Returns what the admin API tells of them.

    Kafka 4's clients do it for every broker.
    """
    kinds = KINDS[broker.kafka.name]
    done = subprocess.run(
        [*KAFKA_4.java("quiet.properties"), str(PROGRAM), broker.bootstrap, prefix, *kinds],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BrokerError(f"{PROGRAM.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
