"""A disk of a broker that is full: the log directory on it goes offline, until its broker restarts with room."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from client.faults.conftest import Three
from client.faults.numbered import DELIVERY_SECONDS, KINDS, Numbered, producing

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("three")]

FREE = 400_000
SIZE = 10_000  # of a record: a hundred do not fit
COUNT = 100
TIMEOUT_MS = 2000  # for so long the broker keeps a request whose records it can no longer replicate


def test_send_when_the_disk_is_full_then_each_record_arrives_once_there_is_room(three: Three) -> None:
    """A partition with other replicas needs no room: another broker leads it."""
    if three.disk is None:
        pytest.skip("this system mounts no file system without rights")
    brokers, disk = three.brokers, three.disk
    with ExitStack() as stack:
        sent = []
        for kind, (client, guarantee) in KINDS.items():
            options = {"request_timeout_ms": TIMEOUT_MS, **guarantee}
            producer = stack.enter_context(producing(client, brokers.bootstrap, **options))
            for is_replicated in (True, False):
                topic = f"full-{kind}-{is_replicated}"
                brokers.place(topic, 3, disk.path)
                brokers.create_topic(topic, [3], is_replicated=is_replicated)
                numbered = Numbered(producer, topic, size=SIZE)
                numbered.send()
                numbered.flush()
                sent.append((numbered, guarantee, is_replicated))
        disk.fill(FREE)
        for numbered, _, _ in sent:
            numbered.send(COUNT)
        for numbered, _, is_replicated in sent:
            if is_replicated:
                assert all(future.get(DELIVERY_SECONDS) is not None for future in numbered.futures)
            else:
                brokers.wait_until(lambda topic=numbered.topic: brokers.leader(topic) == -1)  # type: ignore[misc]
                assert not all(future.is_done for future in numbered.futures)
        disk.make_room()
        brokers.kill(3)
        brokers.start(3)
        for numbered, guarantee, _ in sent:
            numbered.send()
            numbered.flush()
            numbered.assert_arrived(brokers.batches(numbered.topic), guarantee)
