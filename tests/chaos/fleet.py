"""The programs that run against the cluster: producers, consumers, two mirrors, a gateway, its clients and a backup."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.clocks import Clock
from chaos.cluster import PORT, SOURCE, TARGET, Cluster
from chaos.network import Network
from chaos.processes import MIB, Process
from chaos.workloads.consuming import BUDGET_BYTES

EVENTS, LEDGER, ORDERS = "events", "ledger", "orders"
TOPICS = (EVENTS, LEDGER, ORDERS)
PRODUCERS = {"plain": EVENTS, "ledger": LEDGER, "stranger": ORDERS}
"""The topic of each producer."""
TRANSACTIONAL = "ledger"
MEMBERS = ("member-1", "member-2")
GROUP = "members"
OLD_MEMBER = "old-member"
GATEWAY, BACKUP = "gateway", "backup"
EXACT, AT_LEAST_ONCE = "mirror-exact", "mirror"
MIRRORS = (EXACT, AT_LEAST_ONCE)
PREFIXES = {EXACT: "exact.", AT_LEAST_ONCE: "least."}
METRICS_PORT = 9308
METERED = (*MIRRORS, GATEWAY)
"""Those with a port of metrics."""
CLIENTS = (*MEMBERS, OLD_MEMBER, *MIRRORS)
"""Those that end before the gateway does."""
NAMES = (*PRODUCERS, *CLIENTS, GATEWAY, BACKUP)
WITHOUT_CLOCK = ("stranger", OLD_MEMBER)
"""They wait by the wall clock, as librdkafka does, and are not ours."""

OVERHEAD_BYTES = 120 * MIB
"""What Python, the imported packages and the allocator take in addition to what a program was allowed."""
BUDGET = 64 * MIB
DISK_FULL = 2
"""The exit status of a backup whose disk is full."""
SHUTDOWN_SECONDS = 15
PROGRESS = '"event": "progress"'
"""What mirrors and backups log each second."""


class Fleet:
    """The processes, by the names of their hosts."""

    def __init__(
        self,
        network: Network,
        cluster: Cluster,
        clocks: Mapping[str, Clock],
        folder: Path,
        backup: Path,
        seed: int,
    ) -> None:
        self._network, self._clocks, self._folder = network, clocks, folder
        self._seed = str(seed)
        self.histories = folder / "histories"
        self.histories.mkdir()
        self.source, self.target = cluster.bootstrap(SOURCE), cluster.bootstrap(TARGET)
        self.gateway = f"{network.address(GATEWAY)}:{PORT}"
        self.backup = backup / "backup"
        self.processes: dict[str, Process] = {}
        self._add_producers()
        self._add_consumers()
        self._add_mirrors()
        self._add_gateway()
        self._add(
            BACKUP,
            [*self.backup_command(), "--follow", "--generation-age", "5", "--commit-interval", "1"],
            BUDGET,
            ends_by_itself_with=(DISK_FULL,),
            begins_with=PROGRESS,
        )

    def backup_command(self) -> list[str]:
        """A backup of all topics until their ends."""
        options = ["--topics", ",".join(TOPICS), "--segment-bytes", "1M", "--segment-age", "5"]
        options += ["--memory", str(BUDGET), "--progress", "1", "--log-format", "json"]
        return [*kafkafmt("backup"), f"kafka://{self.source}", str(self.backup), *options]

    def _add_producers(self) -> None:
        for name, topic in PRODUCERS.items():
            if name == "stranger":
                self._add_workload(name, "stranger", "produce", name, topic, self.gateway, self._seed)
                continue
            kind = "transactional" if name == TRANSACTIONAL else "idempotent"
            self._add_workload(name, "producing", name, topic, self.source, self._seed, kind, budget=8 * MIB)

    def _add_consumers(self) -> None:
        for name in MEMBERS:
            arguments = (name, ",".join(TOPICS), self.source, GROUP)
            self._add_workload(name, "consuming", *arguments, budget=BUDGET_BYTES)
        self._add_workload(OLD_MEMBER, "stranger", "consume", OLD_MEMBER, ORDERS, self.gateway, self._seed)

    def _add_mirrors(self) -> None:
        for name in MIRRORS:
            command = [
                *kafkafmt("mirror"),
                f"kafka://{self.source}/{','.join(TOPICS)}",
                f"kafka://{self.target}",
            ]
            command += [
                "--topic-prefix",
                PREFIXES[name],
                "--offset-map",
                f"topic:{name}-map",
                "--group",
                name,
            ]
            command += ["--commit-interval", "1", "--memory", str(BUDGET), "--progress", "1", "--json"]
            command += ["--shutdown-timeout", str(SHUTDOWN_SECONDS), "--log-format", "json"]
            command += ["--source-config", "session_timeout_ms=10000"]
            command += ["--source-config", "bootstrap_timeout_ms=60000"]
            command += ["--target-config", "bootstrap_timeout_ms=60000"]
            command += ["--metrics-port", f"{self._network.address(name)}:{METRICS_PORT}"]
            self._add(
                name, command + (["--exactly-once"] if name == EXACT else []), BUDGET, begins_with=PROGRESS
            )

    def _add_gateway(self) -> None:
        command = [*kafkafmt("gateway"), f"kafka://{self.source}", "--listen", self.gateway]
        command += ["--metrics", f"{self._network.address(GATEWAY)}:{METRICS_PORT}"]
        command += ["--max-downconversion-memory", str(BUDGET // 2), "--max-produce-memory", str(BUDGET // 2)]
        command += ["--max-produce-size", str(8 * MIB), "--max-request-size", str(MIB)]
        command += ["--shutdown-timeout", str(SHUTDOWN_SECONDS), "--log-format", "json"]
        self._add(GATEWAY, command, BUDGET, begins_with="the cluster answers")

    def _add_workload(self, name: str, module: str, *arguments: str, budget: int | None = None) -> None:
        program = [sys.executable, "-m", f"chaos.workloads.{module}", str(self.histories), *arguments]
        self._add(name, program, budget, takes_its_start=True, stop_seconds=120.0)

    def _add(
        self,
        name: str,
        command: Sequence[str],
        budget: int | None,
        *,
        ends_by_itself_with: Sequence[int] = (),
        takes_its_start: bool = False,
        stop_seconds: float = 60.0,
        begins_with: str = "",
    ) -> None:
        self.processes[name] = Process(
            name,
            self._network.command(name, command),
            self._folder / f"{name}.log",
            {} if name in WITHOUT_CLOCK else self._clocks[name].environment,
            memory_limit=None if budget is None else budget + OVERHEAD_BYTES,
            ends_by_itself_with=ends_by_itself_with,
            takes_its_start=takes_its_start,
            stop_seconds=stop_seconds,
            begins_with=begins_with,
        )


def kafkafmt(command: str) -> list[str]:
    return [str(Path(sys.executable).with_name("kafkafmt")), command]
