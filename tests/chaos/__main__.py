"""`python -m chaos`: run producers, consumers, mirrors, a gateway and a backup while faults strike, and check all.

It prints the seed first, the report last, and in between the log of faults. With the same `--seed` the same faults
come in the same order. Exit status: 0; 1 if something was wrong; 2 if this machine cannot run it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from broker.broker import KAFKA_4
from chaos import isolation
from chaos.run import Run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="how long faults strike (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of all random choices")
    parser.add_argument(
        "--folder", type=Path, help="for logs and histories; kept (default: a temporary folder)"
    )
    parser.add_argument("--json", type=Path, help="a file for the report")
    parser.add_argument(isolation.ISOLATED, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if not given.isolated:
        if reason := isolation.missing():
            print(f"chaos cannot run here: {reason}", file=sys.stderr)
            sys.exit(2)
        KAFKA_4.jar_set.fetch()  # there is no way out of the namespaces
        command = isolation.isolated(["chaos", isolation.ISOLATED, *sys.argv[1:], "--seed", str(given.seed)])
        os.execvpe(command[0], command, isolation.environment())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(run(given, folder.absolute()))


def run(given: argparse.Namespace, folder: Path) -> int:
    """Return the exit status. A temporary folder stays if something was wrong."""
    print(f"seed {given.seed}, {given.minutes:g} minutes, {folder}", file=sys.stderr, flush=True)
    with Run(given.seed, given.minutes, folder) as running:
        try:
            running.go()
        except Exception as error:
            running.report.findings.add("run", f"{type(error).__name__}: {error}")
            print(running.tails(), file=sys.stderr)
    (folder / "faults.log").write_text("\n".join(running.log) + "\n")
    if given.json:
        running.report.write(given.json)
    print(running.report, flush=True)
    if running.report.is_sound:
        if given.folder is None:
            shutil.rmtree(folder)
        return 0
    print(f"the faults:\n{chr(10).join(running.log)}\nlogs and histories: {folder}", flush=True)
    return 1


if __name__ == "__main__":
    main()
