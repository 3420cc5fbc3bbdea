"""Benchmarks: `compare` against peers and floors, `experiments` of the documents, `benchmarks` for asv."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "bench"
