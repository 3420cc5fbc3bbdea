"""Runs jobs, each in a forked child: what is imported once is there for all of them.

A line of standard input is a JSON array, the arguments of `kafkafmt`, or of a job of `faults.jobs` with its name first.
A line of standard output is a JSON object: the status (negative: the signal that ended it) and what was said.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

# What a child would import, each one anew.
_IMPORTED = (
    "kafkafmt.cli",
    "kafka.errors",
    "kafkafmt.mirror.handlers",
    "kafkafmt.mirror.opening",
    "kafkafmt.mirror.progress",
    "kafkafmt.server.structured_logging",
    "pyarrow.parquet",
    "rocksdict",
    "faults.jobs",
    "spark.writes",
)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                _run(json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps({"status": status, "said": said.read().decode(errors="replace")}), flush=True)


def _run(arguments: list[str]) -> None:
    from faults import jobs
    from kafkafmt.cli import main as command

    status: object = 1
    try:
        if arguments[0] in jobs.JOBS:
            jobs.JOBS[arguments[0]](*arguments[1:])
            status = 0
        else:
            command(arguments)
    except SystemExit as error:
        status = error.code
    except OSError as error:
        print(f"{type(error).__name__}: {error}")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    main()
