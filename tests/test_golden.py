"""The vectors written by Kafka's own code, where they are at hand: `../shared/golden` beside the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "shared" / "golden" / "check.py"


@pytest.mark.slow
def test_golden_vectors_when_at_hand_then_all_pass():
    if not CHECK.exists():
        pytest.skip(f"no vectors at {CHECK}")
    checked = subprocess.run([sys.executable, str(CHECK)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
