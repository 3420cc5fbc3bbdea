"""One broker for all workers of a run: the first that needs it starts it, and stops it after all others are done.

The broker's folder holds three more files. `address` is there while the broker runs: its port and its process.
`start.lock` is held by the worker that starts it. `users.lock` is held, shared, by each other worker that uses it.
The worker that started the broker takes `users.lock` exclusively before it stops the broker.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.broker import Broker, Kafka


@contextmanager
def shared_broker(folder: Path, kafka: Kafka) -> Iterator[Broker]:
    """Yield the broker of `folder`, which all workers are given alike."""
    folder.mkdir(exist_ok=True)
    address = folder / "address"
    with (folder / "users.lock").open("a") as users:
        while True:
            fcntl.flock(users, fcntl.LOCK_SH)
            if address.exists():
                yield Broker.running(folder, kafka, *json.loads(address.read_text()))
                return
            fcntl.flock(users, fcntl.LOCK_UN)
            with (folder / "start.lock").open("a") as start:
                fcntl.flock(start, fcntl.LOCK_EX)
                if address.exists():
                    continue
                broker = Broker(folder, kafka=kafka)
                # Of a broker that failed to start, or that was stopped before another worker needed one.
                shutil.rmtree(broker.log_dir, ignore_errors=True)
                broker.start()
                staged = folder / "address.new"
                staged.write_text(json.dumps([broker.port, broker.pid]))
                staged.rename(address)
            break
        try:
            yield broker
        finally:
            fcntl.flock(users, fcntl.LOCK_EX)
            address.unlink()
            broker.stop()
