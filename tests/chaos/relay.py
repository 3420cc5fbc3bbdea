"""The relay of packets between hosts: the program `python -m chaos.relay SEED HOST=ADDRESS:DESCRIPTOR ...`.

Each host has a TUN device, whose packets arrive at one descriptor. The relay reads a packet, finds the rule of its
sender and receiver, and writes it to the device of the receiver: at once, later, or never. Packets with different
delays overtake each other. Each line of standard input replaces all rules; one line of output confirms it.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MOST_BYTES = 65536
PACKETS_A_TURN = 64
VERSION = 4  # of IP, the only one that is relayed
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)  # in an IPv4 header


@dataclass(frozen=True)
class Rule:
    """What happens to packets from one host to another.

    loss: the probability that a packet is dropped; 1 cuts the link.
    delay: seconds that each packet is held back; `jitter`: the most seconds in addition.
    """

    source: str
    destination: str
    loss: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0


class Relay:
    """Moves packets between descriptors, by address. `clock` is monotonic, in seconds."""

    def __init__(
        self, hosts: Mapping[bytes, int], seed: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hosts, self._clock = dict(hosts), clock
        self._chance = random.Random(seed)
        self._rules: dict[tuple[bytes, bytes], list[Rule]] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self.relayed = self.dropped = self.delayed = 0

    def set_rules(self, rules: Mapping[tuple[bytes, bytes], list[Rule]]) -> None:
        """Replace the rules, by the addresses of sender and receiver. Several rules of a link add up."""
        self._rules = dict(rules)

    def forward(self, packet: bytes) -> None:
        """Write a packet to its receiver, or keep it for later, or drop it."""
        if packet[0] >> 4 != VERSION or (receiver := self._hosts.get(packet[DESTINATION])) is None:
            return
        delay = 0.0
        for rule in self._rules.get((packet[SOURCE], packet[DESTINATION]), ()):
            if self._chance.random() < rule.loss:
                self.dropped += 1
                return
            delay += rule.delay + rule.jitter * self._chance.random()
        if delay:
            self.delayed += 1
            heapq.heappush(self._late, (self._clock() + delay, self.delayed, receiver, packet))
        else:
            self._write(receiver, packet)

    def send_due(self) -> float | None:
        """Write the packets whose time has come. Return the seconds until the next one; None if there is none."""
        while self._late:
            wait = self._late[0][0] - self._clock()
            if wait > 0:
                return wait
            _, _, receiver, packet = heapq.heappop(self._late)
            self._write(receiver, packet)
        return None

    def read(self, descriptor: int) -> None:
        """Forward the packets that a host has sent."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(PACKETS_A_TURN):
                self.forward(os.read(descriptor, MOST_BYTES))

    def _write(self, receiver: int, packet: bytes) -> None:
        with contextlib.suppress(
            BlockingIOError
        ):  # the device's queue is full: a router drops such packets, too
            os.write(receiver, packet)
            self.relayed += 1


def main(seed: str, *named: str) -> None:
    addresses, hosts = {}, {}
    for one in named:
        name, _, where = one.partition("=")
        address, _, descriptor = where.partition(":")
        addresses[name] = socket.inet_aton(address)
        hosts[addresses[name]] = int(descriptor)
    relay = Relay(hosts, int(seed))
    selector = selectors.DefaultSelector()
    for descriptor_of_host in hosts.values():
        os.set_blocking(descriptor_of_host, False)
        selector.register(descriptor_of_host, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    commands = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    while True:
        for key, _ in selector.select(relay.send_due()):
            if key.fd != sys.stdin.fileno():
                relay.read(key.fd)
                continue
            line = commands.readline()
            if line:
                rules: dict[tuple[bytes, bytes], list[Rule]] = {}
                for rule in (Rule(**one) for one in json.loads(line)):
                    rules.setdefault((addresses[rule.source], addresses[rule.destination]), []).append(rule)
                relay.set_rules(rules)
            print(json.dumps([relay.relayed, relay.dropped, relay.delayed]), flush=True)
            if not line:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
