"""What the tests of faults share: topics of short names, and three brokers.

The first broker has a listener for SASL, whose sessions last briefly. The third has a second log directory, on a disk
that tests fill. Each is in a rack of its own, and a client reads from the one in its rack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from broker.broker import HOST, KAFKA_3, KAFKA_4
from broker.small_disk import DiskError, SmallDisk
from broker.three_brokers import NODES, ThreeBrokers
from client.cluster import Cluster
from clients.tap import Tap

NUMBERS = count()
USER, PASSWORD = "alice", "secret"
RACKS = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
DISK_BYTES = 16 * 1024 * 1024
LISTENER = "SASL_PLAINTEXT"
SETTING = f"listener.name.{LISTENER.lower()}"
MODULES = "org.apache.kafka.common.security"
SASL = {
    "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:{LISTENER},CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{SETTING}.plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    f"{SETTING}.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    # Shorter than a client would authenticate again in, and long enough that it can.
    f"{SETTING}.plain.connections.max.reauth.ms": 100,
    f"{SETTING}.scram-sha-256.connections.max.reauth.ms": 2000,
}


@pytest.fixture
def short_topic(cluster: Cluster) -> str:
    """A topic for the test alone, whose name takes few bytes in requests and responses."""
    return cluster.create_topic(f"t{next(NUMBERS)}")


@dataclass(frozen=True)
class Three:
    """Three brokers with what can happen to them. sasl: the tap in front of the first one's listener for SASL."""

    brokers: ThreeBrokers
    sasl: Tap
    disk: SmallDisk | None


@pytest.fixture(scope="session", params=[pytest.param(KAFKA_3, id="3.9"), pytest.param(KAFKA_4, id="4.x")])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    folder = tmp_path_factory.mktemp("three")
    with ExitStack() as stack:
        tap = stack.enter_context(Tap((HOST, 0)))
        addresses = f"PLAINTEXT://{HOST}:{{PLAINTEXT}},{LISTENER}://{tap.bootstrap}"
        configs = {number: {**RACKS, "broker.rack": f"rack-{number}"} for number in NODES}
        configs[1] |= {**SASL, "advertised.listeners": addresses}
        disk = None
        try:
            disk = stack.enter_context(SmallDisk(folder / "disk", DISK_BYTES))
            configs[3] |= {
                "log.dirs": f"{folder / '3' / 'data'},{disk.path}",
                "metadata.log.dir": folder / "3" / "data",
            }
        except DiskError:
            pass  # its test is skipped
        brokers = stack.enter_context(ThreeBrokers(folder, request.param, configs, {1: [LISTENER]}))
        tap.upstream = (HOST, brokers.nodes[1].ports[LISTENER])
        with KafkaAdminClient(bootstrap_servers=brokers.bootstrap) as admin:
            user = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD)
            assert admin.alter_user_scram_credentials([user]) == {USER: None}
        yield Three(brokers, tap, disk)


@pytest.fixture
def brokers(three: Three) -> ThreeBrokers:
    return three.brokers
