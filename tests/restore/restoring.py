"""`kafkafmt restore` as its users call it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from cli.logs import run
from client.cluster import Cluster


class Outcome(NamedTuple):
    """How a restore ended: its exit status, the JSON on standard output, and standard error."""

    status: int
    summary: dict[str, Any]
    errors: str


def restore(source: object, cluster: Cluster, *options: object) -> Outcome:
    """Run `kafkafmt restore`."""
    result = run("restore", source, f"kafka://{cluster.bootstrap}", "--json", *options)
    return Outcome(result.exit_code, json.loads(result.stdout or "{}"), result.stderr)
