"""One run: everything starts, faults strike for a time, everything catches up, and the checker compares."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from chaos import fleet as names
from chaos.checker import check_copy, check_deliveries, check_log, check_same
from chaos.clocks import Clock, compiled
from chaos.cluster import BROKERS, Cluster
from chaos.disks import MountedDisk
from chaos.faults import OF_BROKERS, OF_PROGRAMS, Series, Stage, plan
from chaos.fleet import Fleet, kafkafmt
from chaos.history import read_received, read_sent
from chaos.network import Network
from chaos.processes import MIB
from chaos.reading import TopicReader, backed_up, committed
from chaos.report import Report

TICK_SECONDS = 0.1
MEASURE_SECONDS = 0.5
START_SECONDS = 600
"""Within which each program must have begun, before the first fault."""
CATCH_UP_SECONDS = 300
"""Within which everything must have caught up after the last fault."""
COMMAND_SECONDS = 600
RESTART_SECONDS = 1.0
"""Between the end of a program and its next start, as a supervisor waits."""
DISK_BYTES, DISK_BYTES_A_MINUTE = 96 * MIB, 24 * MIB
GAPS_OF_BROKERS, GAPS_OF_PROGRAMS = (2.0, 8.0), (1.0, 5.0)


class Run:
    """A context manager: its processes, mounts and networks exist from its beginning to its end."""

    def __init__(self, seed: int, minutes: float, folder: Path) -> None:
        self.report = Report(seed, minutes)
        self.log: list[str] = []
        self._seed, self._minutes, self._folder = seed, minutes, folder
        self._begun = self._measured = time.monotonic()
        self._ended: dict[str, float] = {}

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            self._network = stack.enter_context(Network([*BROKERS, *names.NAMES], self._seed))
            library = compiled(self._folder)
            clocks = {
                name: Clock(self._folder / f"{name}.clock", library) for name in (*BROKERS, *names.NAMES)
            }
            size = round(DISK_BYTES + DISK_BYTES_A_MINUTE * self._minutes)
            backup = stack.enter_context(MountedDisk(self._folder / "disks" / names.BACKUP, size))
            self._cluster = stack.enter_context(Cluster(self._network, self._folder, clocks, size))
            self._cluster.create_topics(names.TOPICS)
            self.fleet = Fleet(self._network, self._cluster, clocks, self._folder, backup.path, self._seed)
            brokers = {name: broker.process for name, broker in self._cluster.brokers.items()}
            self._processes = {**brokers, **self.fleet.processes}
            disks = {**self._cluster.disks, names.BACKUP: backup}
            self._stage = Stage(self._network, self._processes, clocks, disks, BROKERS, self._start)
            for process in self.fleet.processes.values():
                stack.callback(process.kill)
                process.start()
            self._say("the programs have been started")
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self.report.packets = self._network.packets

    def go(self) -> None:
        """Let faults strike, then let everything catch up, and compare."""
        self._wait(self._all_work, "the programs to begin", START_SECONDS)
        self._let_strike()
        self._stop(names.PRODUCERS)
        self._say("producers have ended")
        readers = self._read_sources()
        try:
            self._catch_up(readers)
            self._read_gauges()
            self._stop(names.CLIENTS)
            self._stop((names.GATEWAY, names.BACKUP))
            self._finish_backup()
            self._compare(readers)
        finally:
            for reader in readers.values():
                reader.close()
        self.report.add_processes(list(self.fleet.processes.values()))
        for problem in self._stage.problems:
            self.report.findings.add("process", problem)

    def _all_work(self) -> bool:
        """Whether each producer has an acknowledgement, each consumer has records, and the others have begun."""
        if not all(process.has_begun for process in self.fleet.processes.values()):
            return False
        files = [
            *(f"{name}.1.sent" for name in names.PRODUCERS),
            *(f"{name}.1.received" for name in names.MEMBERS),
        ]
        starts = ("a ", "r ")
        paths = [self.fleet.histories / file for file in (*files, f"{names.OLD_MEMBER}.1.received")]
        return all(path.exists() and any(f"\n{one}" in path.read_text() for one in starts) for path in paths)

    # Faults

    def _let_strike(self) -> None:
        def series(
            name: str, kinds: tuple[str, ...], targets: list[str], gaps: tuple[float, float]
        ) -> Series:
            by_kind = dict.fromkeys(kinds, targets)
            if name == "programs":
                by_kind["full disk"] = [names.BACKUP]
                by_kind["clock"] = [one for one in targets if one not in names.WITHOUT_CLOCK]
            may_begin = (lambda: True) if name == "programs" else (lambda: self._cluster.is_ready)
            faults = plan(random.Random(f"{self._seed} {name}"), kinds, by_kind, gaps)
            return Series(name, faults, self._stage, may_begin, self._say)

        both = [
            series("brokers", OF_BROKERS, list(BROKERS), GAPS_OF_BROKERS),
            series("programs", OF_PROGRAMS, list(names.NAMES), GAPS_OF_PROGRAMS),
        ]
        until = time.monotonic() + 60 * self._minutes
        while (now := time.monotonic()) < until:
            for one in both:
                one.tick(now)
            self._tick()
        self._wait(lambda: all(one.finish() for one in both), "the last faults to end")
        for one in both:
            self.report.faults.update({f"{kind} ({one.name})": n for kind, n in one.counts.items()})
        self._say("all faults are healed")
        self._wait(lambda: self._cluster.is_ready, "the brokers to start")

    def _start(self, name: str) -> None:
        self._ended.pop(name, None)
        if name in self._cluster.brokers:
            self._cluster.brokers[name].start()
        else:
            self._processes[name].start()

    def _tick(self) -> None:
        """Look after processes for a moment."""
        time.sleep(TICK_SECONDS)
        now = time.monotonic()
        for name, process in self._processes.items():
            if (status := process.ended_by_itself()) is not None:
                self._ended[name] = now
                self._say(f"{name} ended by itself with status {status}")
                is_full = self._stage.may_end(name) and status in process.ends_by_itself_with
                if name in BROKERS:
                    self.report.findings.counts["ends of brokers by themselves"] += 1
                elif not is_full and not process.excuses(status):
                    self._stage.problems.append(f"{name} ended with status {status}:\n{process.tail()}")
        for name, ended in list(self._ended.items()):
            is_due = now - ended > RESTART_SECONDS and not self._stage.is_full(name)
            if is_due and self._processes[name].is_wanted:  # a fault that stopped it starts it again
                self._start(name)
        if now - self._measured > MEASURE_SECONDS:
            self._measured = now
            for process in self._processes.values():
                process.measure()

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float = CATCH_UP_SECONDS) -> float:
        """Return the seconds until it holds. Raises TimeoutError if that takes too long."""
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}")
            self._tick()
        return time.monotonic() - begun

    def _stop(self, which: Iterable[str]) -> None:
        """Send SIGTERM to processes, and wait until each has ended."""
        wrong: dict[str, str | None] = {}
        stopping = [self._processes[name] for name in which]
        for process in stopping:
            process.begin_stop()
            wrong[process.name] = None
        while None in wrong.values():
            self._tick()
            for name, outcome in wrong.items():
                if outcome is None:
                    wrong[name] = self._processes[name].stopped()
        self._stage.problems.extend(filter(None, wrong.values()))

    # The end

    def _read_sources(self) -> dict[str, TopicReader]:
        """Read the source's topics to their ends, once the last transactions have ended."""
        readers = {topic: TopicReader(self.fleet.source, topic) for topic in names.TOPICS}
        for mirror, prefix in names.PREFIXES.items():
            for topic in names.TOPICS:
                readers[f"{mirror}: {topic}"] = TopicReader(self.fleet.target, prefix + topic)
        for topic in names.TOPICS:
            readers[topic].read()
        self._say("the source has been read")
        return readers

    def _catch_up(self, readers: dict[str, TopicReader]) -> None:
        def mirrored(mirror: str) -> bool:
            for topic in names.TOPICS:
                copy = readers[f"{mirror}: {topic}"]
                copy.read()
                ours = {row.name for rows in readers[topic].log.values() for row in rows}
                if ours - {row.name for rows in copy.log.values() for row in rows}:
                    return False
            return True

        def consumed(group: str, topics: Iterable[str]) -> bool:
            for topic in topics:
                offsets = committed(self.fleet.source, group, topic)
                for number, rows in readers[topic].log.items():
                    if rows and offsets[number] <= rows[-1].offset:
                        return False
            return True

        left: dict[str, Callable[[], bool]] = {
            **{mirror: lambda mirror=mirror: mirrored(mirror) for mirror in names.MIRRORS},  # type: ignore[misc]
            names.GROUP: lambda: consumed(names.GROUP, names.TOPICS),
            names.OLD_MEMBER: lambda: consumed("strangers", [names.ORDERS]),
        }
        begun = time.monotonic()
        while left:
            for name in [name for name, holds in left.items() if holds()]:
                del left[name]
                self.report.catch_up_seconds[name] = round(time.monotonic() - begun, 1)
                self._say(f"{name} has caught up")
            if time.monotonic() - begun > CATCH_UP_SECONDS:
                for name in left:
                    self.report.findings.add("late", f"{name} has not caught up in {CATCH_UP_SECONDS} s")
                return
            self._tick()

    def _read_gauges(self) -> None:
        """Read the most bytes that budgets had, from the metrics of the programs that have a port for them."""
        for name in names.METERED:
            url = f"http://{self._network.address(name)}:{names.METRICS_PORT}/metrics"
            with urllib.request.urlopen(url, timeout=60) as response:
                lines = response.read().decode().splitlines()
            peaks = [line.rpartition(" ") for line in lines if line.startswith("kafkafmt_memory_peak_bytes{")]
            gauges = {where.partition('"')[2].rstrip('"}'): int(float(size)) for where, _, size in peaks}
            self.report.gauges[name] = gauges
            for budget, size in gauges.items():
                if size > names.BUDGET:
                    self.report.findings.add(
                        "memory", f"{name}: {budget} held {size} of {names.BUDGET} bytes"
                    )

    def _finish_backup(self) -> None:
        """Back up what is new since the last generation, and verify all."""
        begun = time.monotonic()
        for command in (self.fleet.backup_command(), [*kafkafmt("backup"), "verify", str(self.fleet.backup)]):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS,
            )
            if done.returncode:
                self.report.findings.add(
                    "backup", f"{command[1:3]} ended with {done.returncode}:\n{done.stdout}"
                )
        self.report.catch_up_seconds[names.BACKUP] = round(time.monotonic() - begun, 1)
        self._say("the backup is complete")

    def _compare(self, readers: dict[str, TopicReader]) -> None:
        findings, histories = self.report.findings, self.fleet.histories
        all_sent = [
            read_sent(path, path.stem, topic, is_transactional=name == names.TRANSACTIONAL)
            for name, topic in names.PRODUCERS.items()
            for path in sorted(histories.glob(f"{name}.*.sent"))
        ]
        errors = Counter(error for sent in all_sent for error in sent.failed.values())
        findings.counts.update({f"failed with {error}": count for error, count in errors.items()})
        logs = {topic: readers[topic].log for topic in names.TOPICS}
        for topic, log in logs.items():
            check_log(topic, log, all_sent, findings)
            check_same(f"backup of {topic}", log, backed_up(self.fleet.backup, topic), findings)
            for mirror in names.MIRRORS:
                copy = f"{mirror}: {topic}"
                is_exact = mirror == names.EXACT
                check_copy(copy, log, readers[copy].log, findings, is_exact=is_exact)
        for group, members in ((names.GROUP, names.MEMBERS), ("strangers", (names.OLD_MEMBER,))):
            paths = [path for name in members for path in sorted(histories.glob(f"{name}.*.received"))]
            received = [read_received(path, path.stem) for path in paths]
            of_group = logs if group == names.GROUP else {names.ORDERS: logs[names.ORDERS]}
            check_deliveries(group, of_group, received, findings)

    def _say(self, what: str) -> None:
        line = f"{time.monotonic() - self._begun:8.2f} {what}"
        self.log.append(line)
        print(line, file=sys.stderr, flush=True)

    def tails(self) -> str:
        """The ends of what the programs have logged."""
        return "\n".join(f"--- {one.name}\n{one.tail()}" for one in self.fleet.processes.values())
