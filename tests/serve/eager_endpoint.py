"""`kafkafmt serve` as it would be without lazy down-conversion: each response is converted whole before it is sent.

For comparison alone: `python eager_endpoint.py DIR --listen HOST:PORT`, and the other options of the command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SERVE_EAGERLY = (sys.executable, str(Path(__file__).resolve()))


def main() -> None:
    from kafkafmt.cli import main
    from kafkafmt.convert.lazy import LazyDownConvertRecords
    from kafkafmt.records.base import MemoryRecords
    from kafkafmt.serve import endpoint

    class EagerFetching(endpoint.Fetching):
        """Has all records converted, in memory, before a response is made of them."""

        def _response(self, request: Any, plan: Any) -> Any:
            for answer in plan.answers():
                if isinstance(answer.records, LazyDownConvertRecords):
                    answer.records = MemoryRecords(b"".join(answer.records.chunks()))
            return super()._response(request, plan)

    endpoint.Fetching = EagerFetching  # type: ignore[misc]
    main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
