"""`make bench-endurance`: run `kafkafmt serve`, `gateway` and `mirror` under a steady load: is each flat?

The brokers are real. The clients connect again and again, and check all records that they get. Each command is sampled
every few seconds: its memory, descriptors and threads, and the latency that its clients see.

The exit status is 1 if a series is not flat, or if a client got a wrong answer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench import BUILD
from bench.compare import show_progress
from bench.endurance.fleet import COMMANDS, Fleet, FleetError
from bench.endurance.sampling import SAMPLE_SECONDS, Samples, usage_of
from bench.endurance.tables import NAME, as_table, draw, load_table
from bench.results import add_json_argument, report

ROOT = BUILD / "endurance"
ALL = "all"
WHOLE_MINUTES = 120.0


def watch(fleet: Fleet, minutes: float, samples: defaultdict[str, Samples]) -> None:
    """Add samples of the commands of a fleet for that time. Raises FleetError if a process ends or does not answer."""
    begun = time.monotonic()
    for number in range(1, int(minutes * 60 / SAMPLE_SECONDS) + 1):
        time.sleep(max(0.0, begun + number * SAMPLE_SECONDS - time.monotonic()))
        seconds = time.monotonic() - begun
        fleet.check()
        latencies = {load: load.new_latencies_ms() for load in fleet.loads}
        for command in fleet.commands:
            of_clients = [each for client in command.clients for each in latencies[client]]
            samples[command.name].add(seconds, usage_of(command.process.pid), of_clients)
            command.scrape()
        memory = (f"{name} {one.usage[-1].memory_mib:.0f} MiB" for name, one in samples.items())
        show_progress(f"{seconds / 60:.1f} of {minutes:g} minutes: {', '.join(memory)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    add_json_argument(parser)
    parser.add_argument("which", nargs="?", choices=(*COMMANDS, ALL), default=ALL)
    parser.add_argument("--minutes", type=float, default=WHOLE_MINUTES)
    arguments = parser.parse_args()
    ROOT.mkdir(parents=True, exist_ok=True)
    failure = None
    with tempfile.TemporaryDirectory(dir=ROOT) as folder, Fleet(Path(folder)) as fleet:
        begun = time.monotonic()
        samples: defaultdict[str, Samples] = defaultdict(Samples)
        try:
            show_progress("starting")
            fleet.start(COMMANDS if arguments.which == ALL else (arguments.which,))
            watch(fleet, arguments.minutes, samples)
            show_progress("ending")
            fleet.finish()
        except FleetError as error:
            failure = str(error)
        show_progress("")
        loads = load_table(fleet.commands, time.monotonic() - begun)
        judged = [as_table(one, samples[one.name].series()) for one in fleet.commands]
    tables = [*(table for table, _ in judged), loads]
    is_whole = arguments.which == ALL and arguments.minutes >= WHOLE_MINUTES and failure is None
    report(NAME, tables, command="make bench-endurance", path=arguments.json, is_whole=is_whole)
    draw(tables, ROOT)
    if failure is not None:
        print(failure, file=sys.stderr)
    return 0 if failure is None and all(is_flat for _, is_flat in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
