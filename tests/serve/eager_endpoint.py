"""`kafkafmt serve` as it would be without lazy down-conversion: each response is converted whole before it is sent.

For comparison alone: `python eager_endpoint.py DIR --listen HOST:PORT`, and the other options of the command.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

SERVE_EAGERLY = (sys.executable, str(Path(__file__).resolve()))


def main() -> None:
    from kafkafmt.cli import main
    from kafkafmt.serve import running

    running.Endpoint = partial(running.Endpoint, convert_eagerly=True)  # type: ignore[misc]
    main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
