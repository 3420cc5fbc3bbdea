"""`make bench-mirror` runs: a table of ratios, of topics that are too small to say anything by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ("--size", "1", "--rounds", "1", "-k", "zstd, batches of 144")

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.slow]


def test_the_benchmark_mirrors_every_record_by_every_contender(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.mirror", *ARGUMENTS, "--json", str(found)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (row,) = json.loads(found.read_text())["measured"]["rows"]
    assert all(
        row["runs"][name]["runs"] for name in ("floor", "raw", "deep", "deep, handler", "confluent-kafka")
    )
    assert "raw/floor" in done.stdout
