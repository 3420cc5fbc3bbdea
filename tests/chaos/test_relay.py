"""The relay of `make chaos`: packets that are passed, lost and late, between sockets in place of TUN devices."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chaos.relay import Relay, Rule

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the relay needs TUN devices, which Linux has"
)

ONE, OTHER = socket.inet_aton("10.77.0.1"), socket.inet_aton("10.77.0.2")
LINK = (ONE, OTHER)


class Hosts:
    """Two hosts of a relay, whose clock is `seconds`."""

    def __init__(self, stack: ExitStack, seed: int = 1) -> None:
        self.seconds = 0.0
        self._ends = {}
        descriptors = {}
        for address in (ONE, OTHER):
            ours, relays = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            ours.setblocking(False)
            relays.setblocking(False)
            self._ends[address], descriptors[address] = ours, relays
        self._descriptors = descriptors
        self.relay = Relay({a: s.fileno() for a, s in descriptors.items()}, seed, lambda: self.seconds)

    def send(self, *numbers: int) -> None:
        """Send a packet for each number from ONE to OTHER."""
        for number in numbers:
            self._ends[ONE].send(packet(number))
            self.relay.read(self._descriptors[ONE].fileno())

    def received(self) -> list[int]:
        """The numbers that OTHER has now."""
        numbers = []
        while True:
            try:
                numbers.append(self._ends[OTHER].recv(100)[20])
            except BlockingIOError:
                return numbers


def packet(number: int, version: int = 4) -> bytes:
    return bytes([version << 4 | 5, *bytes(11), *ONE, *OTHER, number])


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack)


def test_relay_when_there_are_no_rules_then_passes_packets_at_once(hosts: Hosts) -> None:
    hosts.send(1, 2, 3)
    assert hosts.received() == [1, 2, 3]


def test_relay_when_a_link_is_cut_then_passes_nothing_until_the_rule_is_gone(hosts: Hosts) -> None:
    hosts.relay.set_rules({LINK: [Rule("one", "other", loss=1.0)]})
    hosts.send(1)
    hosts.relay.set_rules({})
    hosts.send(2)
    assert hosts.received() == [2]
    assert (hosts.relay.relayed, hosts.relay.dropped) == (1, 1)


def test_relay_when_packets_are_lost_then_the_seed_decides_which() -> None:
    outcomes = []
    for seed in (1, 1, 2):
        with ExitStack() as stack:
            hosts = Hosts(stack, seed)
            hosts.relay.set_rules({LINK: [Rule("one", "other", loss=0.5)]})
            hosts.send(*range(50))
            outcomes.append(hosts.received())
    assert outcomes[0] == outcomes[1] != outcomes[2]
    assert 10 < len(outcomes[0]) < 40


def test_relay_when_packets_are_late_then_they_come_in_their_time_and_overtake(hosts: Hosts) -> None:
    hosts.relay.set_rules({LINK: [Rule("one", "other", delay=1.0, jitter=1.0)]})
    hosts.send(*range(50))
    assert hosts.received() == []
    wait = hosts.relay.send_due()
    assert wait is not None
    assert 1.0 <= wait <= 2.0
    hosts.seconds = 2.0
    assert hosts.relay.send_due() is None
    came = hosts.received()
    assert sorted(came) == list(range(50)) != came
    assert hosts.relay.delayed == 50


def test_relay_when_a_packet_is_not_ipv4_or_for_no_host_then_drops_it(hosts: Hosts) -> None:
    hosts.relay.forward(packet(1, version=6))
    hosts.relay.forward(packet(1).replace(OTHER, b"\x08\x08\x08\x08"))
    assert hosts.received() == []
    assert hosts.relay.relayed == 0
