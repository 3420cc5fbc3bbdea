"""Faults: which come, in what order, for how long, from one seed; and how each begins and is healed.

Two series of faults run side by side: those of brokers, and those of the programs that use them. Each series takes
kinds and targets from shuffled decks, so that each comes early. A series draws from its own random numbers, so the same
seed gives the same faults, however fast the machine is.
"""

from __future__ import annotations

import errno
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.clocks import Clock
from chaos.disks import MountedDisk
from chaos.network import OBSERVER, Network
from chaos.processes import Process
from chaos.relay import Rule

AFTER_FULL_SECONDS = 30
"""How long after a full disk a program may still end because of it."""
BROKER_STEP_SECONDS = (-2.0, 30.0)
"""Kafka's timers wait by the wall clock: a long step back would stop a broker for as long."""
STEP_SECONDS = (-1200.0, 1200.0)
"""Around the system's time. Brokers refuse records whose timestamps are an hour ahead."""


@dataclass(frozen=True)
class Fault:
    """One fault: after `gap` seconds it strikes `target` for `seconds`. `size` is between 0 and 1."""

    kind: str
    target: str
    gap: float
    seconds: float
    size: float
    peer: str


@dataclass
class Stage:
    """What faults act on."""

    network: Network
    processes: Mapping[str, Process]
    clocks: Mapping[str, Clock]
    disks: Mapping[str, MountedDisk]
    brokers: Sequence[str]
    start: Callable[[str], None]
    """Starts a process by its name."""
    rules: dict[int, list[Rule]] = field(default_factory=dict)
    full_until: dict[str, float] = field(default_factory=dict)
    """Until when a full disk excuses the end of a process."""
    problems: list[str] = field(default_factory=list)

    def set_rules(self, owner: object, rules: list[Rule]) -> None:
        self.rules[id(owner)] = rules
        self.network.set_rules(rule for some in self.rules.values() for rule in some)

    def is_full(self, name: str) -> bool:
        return self.full_until.get(name, 0.0) == float("inf")

    def may_end(self, name: str) -> bool:
        return self.full_until.get(name, 0.0) > time.monotonic()


class Action(ABC):
    """A fault while it lasts."""

    def __init__(self, fault: Fault, stage: Stage) -> None:
        self.fault, self.stage = fault, stage
        self.process = stage.processes[fault.target]

    @abstractmethod
    def begin(self) -> str:
        """Strike, and return what the log says of it."""

    @abstractmethod
    def heal(self) -> bool:
        """End the fault; False if it must be called again."""


class Kill(Action):
    """SIGKILL, and a start afterwards."""

    def begin(self) -> str:
        self.process.kill()
        return ""

    def heal(self) -> bool:
        self.stage.start(self.fault.target)
        return True


class Stop(Action):
    """SIGTERM, and a start after the process has ended."""

    def begin(self) -> str:
        self.process.begin_stop()
        return ""

    def heal(self) -> bool:
        wrong = self.process.stopped()
        if wrong is None:
            return False
        if wrong:
            self.stage.problems.append(wrong)
        self.stage.start(self.fault.target)
        return True


class Pause(Action):
    """SIGSTOP and SIGCONT."""

    def begin(self) -> str:
        self.process.pause()
        return ""

    def heal(self) -> bool:
        self.process.resume()
        return True


class _OfLinks(Action):
    """Rules for the links of a host."""

    def begin(self) -> str:
        rules, told = self.rules()
        self.stage.set_rules(self, rules)
        return told

    def heal(self) -> bool:
        self.stage.set_rules(self, [])
        return True

    @abstractmethod
    def rules(self) -> tuple[list[Rule], str]: ...

    def links(self) -> list[tuple[str, str]]:
        """Both directions between the host and each other one."""
        one = self.fault.target
        peers = [name for name in self.stage.network.names if name not in (one, OBSERVER)]
        return [link for peer in peers for link in ((one, peer), (peer, one))]


class Cut(_OfLinks):
    """No packet passes: to and from all hosts, in one direction, or between two hosts."""

    def rules(self) -> tuple[list[Rule], str]:
        one, peer = self.fault.target, self.fault.peer
        ways = {
            "from all": self.links(),
            "from it": [link for link in self.links() if link[0] == one],
            "to it": [link for link in self.links() if link[1] == one],
            f"from {peer}": [(one, peer), (peer, one)],
        }
        way = list(ways)[int(self.fault.size * len(ways))]
        return [Rule(*link, loss=1.0) for link in ways[way]], way


class Loss(_OfLinks):
    """Some packets are lost."""

    def rules(self) -> tuple[list[Rule], str]:
        loss = 0.01 + 0.2 * self.fault.size
        return [Rule(*link, loss=loss) for link in self.links()], f"{loss:.0%}"


class Delay(_OfLinks):
    """Packets come late, and overtake each other."""

    def rules(self) -> tuple[list[Rule], str]:
        delay = 0.01 + 0.2 * self.fault.size
        return [Rule(*link, delay=delay, jitter=delay / 4) for link in self.links()], f"{delay * 1000:.0f} ms"


class FullDisk(Action):
    """The disk of the process has no room."""

    def begin(self) -> str:
        self.stage.full_until[self.fault.target] = float("inf")
        try:
            self.stage.disks[self.fault.target].fill(free=0)
        except OSError as error:
            if error.errno != errno.ENOSPC:  # the process has written meanwhile
                raise
        return ""

    def heal(self) -> bool:
        self.stage.disks[self.fault.target].make_room()
        self.stage.full_until[self.fault.target] = time.monotonic() + AFTER_FULL_SECONDS
        return True


class ClockStep(Action):
    """The wall clock jumps, and stays there."""

    def begin(self) -> str:
        clock = self.stage.clocks[self.fault.target]
        is_broker = self.fault.target in self.stage.brokers
        least, most = BROKER_STEP_SECONDS if is_broker else STEP_SECONDS
        step = least + (most - least) * self.fault.size
        before, after = clock.offset, clock.offset + step if is_broker else step
        clock.step_to(after)
        return f"{after - before:+.1f} s"

    def heal(self) -> bool:
        return True


KINDS: dict[str, type[Action]] = {
    "kill": Kill,
    "stop": Stop,
    "pause": Pause,
    "cut": Cut,
    "loss": Loss,
    "delay": Delay,
    "full disk": FullDisk,
    "clock": ClockStep,
}
OF_BROKERS = ("kill", "pause", "cut", "loss", "delay", "full disk", "clock")
OF_PROGRAMS = ("kill", "stop", "pause", "cut", "loss", "delay", "full disk", "clock")


def plan(
    chance: random.Random,
    kinds: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    gaps: tuple[float, float],
) -> Iterator[Fault]:
    """Yield faults without end. `targets` has the processes that a kind may strike.

    Targets come from a shuffled deck, too, so that each process is struck early.
    """
    deck: list[str] = []
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            if not set(deck).intersection(targets[kind]):
                deck += chance.sample(targets["kill"], len(targets["kill"]))
            target = next(name for name in deck if name in targets[kind])
            deck.remove(target)
            gap, seconds, size = chance.uniform(*gaps), chance.uniform(2.0, 12.0), chance.random()
            peer = chance.choice([name for name in targets["kill"] if name != target])
            yield Fault(kind, target, gap, seconds, size, peer)


@dataclass
class Series:
    """One series of faults, one after the other. `may_begin` postpones the next one."""

    name: str
    faults: Iterator[Fault]
    stage: Stage
    may_begin: Callable[[], bool]
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    _current: Action | None = None
    _next: Fault | None = None
    _at: float = 0.0

    def tick(self, now: float) -> None:
        """Begin or heal a fault if it is time."""
        if self._current is not None:
            if now >= self._at:
                self._heal()
        elif self._next is None:
            self._next = next(self.faults)
            self._at = now + self._next.gap
        elif now >= self._at and self.may_begin():
            fault, self._next = self._next, None
            self._current = KINDS[fault.kind](fault, self.stage)
            detail = self._current.begin()
            self.counts[fault.kind] += 1
            self._at = now + fault.seconds
            self.say(f"{self.name}: {fault.kind} {fault.target} {detail} for {fault.seconds:.1f} s")

    def finish(self) -> bool:
        """Heal the fault that lasts, and begin no other; False if it must be called again."""
        return self._current is None or self._heal()

    def _heal(self) -> bool:
        assert self._current is not None
        if not self._current.heal():
            return False
        fault = self._current.fault
        self._current = None
        self.say(f"{self.name}: {fault.kind} {fault.target} is over")
        return True
