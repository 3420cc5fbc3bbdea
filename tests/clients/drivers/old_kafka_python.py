"""kafka-python 1.3.5, the last one whose consumer takes no newer format than it asks for."""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from driver import Task
from kafka_python import POLL_MS, run, settings

# The packages' own `__init__` import producers, which name a variable `async`: no module since Python 3.7.
PACKAGES = ("kafka", "kafka.consumer", "kafka.producer")


def import_past_init() -> None:
    """Put empty packages in the place of those whose `__init__` does not compile; their modules are found as ever."""
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = types.ModuleType(name)
        package.__path__ = [str(Path(spec.origin).parent)]
        sys.modules[name] = package


def iterated(consumer: Any) -> list[Any]:
    """The next record, if one comes. `poll` fails where no record has the very offset that was fetched."""
    return list(islice(consumer, 1))


def main() -> None:
    import_past_init()
    from kafka.consumer.group import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import TopicPartition

    task = Task()
    consumer = KafkaConsumer(consumer_timeout_ms=POLL_MS, **settings(task))
    run(task, consumer, TopicPartition, KafkaError, iterated)


if __name__ == "__main__":
    main()
