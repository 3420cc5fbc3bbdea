"""What is shown of a test that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAILING = """
import pytest

class Broker:
    def log_tail(self):
        return "the end of its log"

@pytest.fixture
def broker():
    return Broker()

@pytest.fixture
def cluster():
    return "without a log"

def test_of_a_broker(broker, cluster):
    assert False

def test_that_passes(cluster):
    pass
"""


def test_report_when_a_test_fails_then_has_the_log_of_its_broker(tmp_path: Path) -> None:
    """Not all fixtures with the names of brokers are brokers."""
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q", "test_it.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "log of broker" in done.stdout
    assert "the end of its log" in done.stdout
    assert "log of cluster" not in done.stdout
