"""`make bench-forensics`: `kafkafmt groups` and `inspect --json` of a `__consumer_offsets` log beside kafka-dump-log.

Each contender is a process that reads the same segment, with its output to /dev/null. A rate is that of the bytes by
which the large log exceeds a log of 64 MiB, so that the start of Python and of the JVM is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import ROOT
from bench.forensics.offsets_log import UNIT_BYTES, stored_offsets_log
from bench.results import Table, add_arguments, figure, notes_of_load, report
from bench.segments import StoredSegment

MIB = 1024 * 1024
LEAST_RATIO = 20
_USUAL_LOAD = 1.0
_ROUNDS = 3  # the best counts; the large log is dumped once
_JARS = ROOT / "build" / "jars" / "kafka-4.3.1"
_KAFKAFMT = str(Path(sys.executable).with_name("kafkafmt"))
_DUMP = "kafka-dump-log --offsets-decoder"


def commands(log: StoredSegment) -> dict[str, list[str]]:
    folder, path = str(log.path.parent), str(log.path)
    java = os.environ.get("JAVA_HOME", "")
    dump = [str(Path(java, "bin", "java")) if java else "java", "-cp", f"{_JARS}/*"]
    dump += ["org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--print-data-log", "--files"]
    return {
        "kafkafmt groups": [_KAFKAFMT, "groups", folder],
        "kafkafmt inspect --records --json": [_KAFKAFMT, "inspect", folder, "--records", "--json"],
        _DUMP: [*dump, path],
    }


def seconds_of(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.forensics", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--mib", type=int, default=1024, metavar="N", help="of the large log (1024)")
    arguments = parser.parse_args()
    small, large = stored_offsets_log(UNIT_BYTES), stored_offsets_log(arguments.mib * MIB)
    rates = {}
    for name, command in commands(large).items():
        if arguments.k in name or name == _DUMP:
            rounds = 1 if name == _DUMP else _ROUNDS
            least = min(seconds_of(commands(small)[name]) for _ in range(_ROUNDS))
            whole = min(seconds_of(command) for _ in range(rounds))
            rates[name] = (large.records - small.records) / (whole - least)
    lines: list[Sequence[str]] = [("", "M rec/s", "of kafka-dump-log", "target", "verdict")]
    for name, rate in rates.items():
        ratio = rate / rates[_DUMP]
        is_ours = name != _DUMP
        verdict = ("hit" if ratio >= LEAST_RATIO else "MISSED") if is_ours else ""
        cells = (figure(rate / 1e6, ".2f", "M rec/s"), figure(ratio, ".1f", "x", "x"))
        lines.append((name, *cells, f">= {LEAST_RATIO}x" if is_ours else "", verdict))
    title = f"{large.records:,} records of __consumer_offsets, {large.size_in_bytes / 1e6:,.0f} MB"
    report(
        "forensics",
        [Table("forensics", title, lines)],
        command="make bench-forensics",
        path=arguments.json,
        is_whole=not arguments.k and arguments.mib == parser.get_default("mib"),
        measured={"rates": rates, "records": large.records},
    )
    print(*notes_of_load(_USUAL_LOAD), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
