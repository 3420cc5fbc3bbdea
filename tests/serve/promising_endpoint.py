"""`kafkafmt serve` that promises one kind of size for converted records: always KIP-283's estimate, or the exact size.

For comparison alone: `python promising_endpoint.py estimate|exact DIR --listen HOST:PORT`, and the other options.
"""

from __future__ import annotations

import sys
from pathlib import Path

_COMMAND = (sys.executable, str(Path(__file__).resolve()))
SERVE_BY_ESTIMATE, SERVE_BY_WALK = (*_COMMAND, "estimate"), (*_COMMAND, "exact")


def main() -> None:
    from kafkafmt.cli import main
    from kafkafmt.convert import lazy

    is_exact = sys.argv[1] == "exact"
    lazy.is_worthwhile = lambda *_: is_exact
    main(["serve", *sys.argv[2:]])


if __name__ == "__main__":
    main()
