"""What a run has found and counted, as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checker import Findings
from chaos.processes import MIB, Process


@dataclass
class Report:
    """The outcome of one run."""

    seed: int
    minutes: float
    findings: Findings = field(default_factory=Findings)
    faults: Counter[str] = field(default_factory=Counter)
    catch_up_seconds: dict[str, float] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)
    stop_seconds: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, dict[str, int]] = field(default_factory=dict)
    packets: dict[str, int] = field(default_factory=dict)

    def add_processes(self, processes: list[Process]) -> None:
        """Take the figures of processes, and compare their memory with their limits."""
        for process in processes:
            self.restarts[process.name] = process.starts - 1
            self.stop_seconds[process.name] = round(process.longest_stop, 1)
            if process.memory_limit is None:
                continue
            self.peak_mib[process.name] = round(process.peak_bytes / MIB, 1)
            if process.peak_bytes > process.memory_limit:
                limit = process.memory_limit // MIB
                found = process.peak_bytes // MIB
                self.findings.add("memory", f"{process.name} had {found} MiB resident, of {limit} MiB")

    @property
    def is_sound(self) -> bool:
        return not self.findings.problems

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    def as_dict(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "minutes": self.minutes,
            "problems": self.findings.problems,
            "counts": dict(self.findings.counts),
            "faults": dict(self.faults),
            "catch_up_seconds": self.catch_up_seconds,
            "restarts": self.restarts,
            "peak_mib": self.peak_mib,
            "stop_seconds": self.stop_seconds,
            "gauges": self.gauges,
            "packets": self.packets,
        }

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.minutes:g} minutes of faults"]
        for title, figures in (
            ("records", self.findings.counts),
            ("faults", self.faults),
            ("seconds until caught up", self.catch_up_seconds),
            ("restarts", self.restarts),
            ("longest seconds from SIGTERM to the end", self.stop_seconds),
            ("most MiB resident", self.peak_mib),
            ("most bytes of budgets", self.gauges),
            ("packets", self.packets),
        ):
            lines.append(f"{title}: " + ", ".join(f"{name} {figure}" for name, figure in figures.items()))
        lines.extend(f"PROBLEM {problem}" for problem in self.findings.problems)
        return "\n".join(lines)
