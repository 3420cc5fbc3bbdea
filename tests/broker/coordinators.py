"""Groups and transactions of every kind in a broker, and what its admin API tells of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from broker.broker import KAFKA_3, KAFKA_4, Broker, BrokerError

PROGRAM, STREAMS_GROUP = map(Path(__file__).with_name, ("CoordinatorState.java", "StreamsGroup.java"))
# The kinds of groups that a broker of this line has.
KINDS = {KAFKA_3.name: ("classic",), KAFKA_4.name: ("classic", "consumer", "share")}


def leave_state(broker: Broker, prefix: str) -> dict[str, Any]:
    """Leave groups and transactions whose names begin with `prefix`. Returns what the admin API tells of them.

    Kafka 4's clients do it for every broker.
    """
    kinds = KINDS[broker.kafka.name]
    told: dict[str, Any] = json.loads(_last_line(PROGRAM, broker.bootstrap, prefix, *kinds))
    return told


def make_streams_group(bootstrap: str, group: str, topic: str) -> None:
    """Make a streams group (KIP-1071), which no member is in any more. Needs Kafka 4.2 or later."""
    found = _last_line(STREAMS_GROUP, bootstrap, group, topic)
    if found != "Streams":
        raise BrokerError(f"group {group}: expected the type Streams, found {found}")


def _last_line(program: Path, *arguments: str) -> str:
    """Run a program with Kafka's jars. Returns the last line that it prints."""
    done = subprocess.run(
        [*KAFKA_4.java("quiet.properties"), str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise BrokerError(f"{program.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-1]
