"""`make chaos` for two minutes: see `chaos.__main__`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import isolation
from chaos.faults import OF_BROKERS, plan

pytestmark = pytest.mark.xdist_group("chaos")

MINUTES = 2
END_SECONDS = 3000


@pytest.fixture(scope="module")
def can_run() -> None:
    """Skip where namespaces do not work."""
    if reason := isolation.missing():
        pytest.skip(f"chaos cannot run here: {reason}")


@pytest.mark.broker
@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(END_SECONDS + 60)
def test_chaos_when_faults_strike_for_two_minutes_then_nothing_acknowledged_is_lost_or_doubled(
    can_run: None, tmp_path: Path, seed: int
) -> None:
    command = [sys.executable, "-m", "chaos", "--minutes", str(MINUTES), "--seed", str(seed)]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path / "chaos")],
        env=isolation.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, said = process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)  # all other processes end with it
        printed, said = process.communicate()
    assert process.returncode == 0, f"{printed}\n{said}"


def test_plan_when_the_seed_is_the_same_then_the_faults_are() -> None:
    def first_faults(seed: str) -> list[object]:
        targets = {kind: ["b1", "b2", "b3"] for kind in OF_BROKERS}
        faults = plan(random.Random(seed), OF_BROKERS, targets, (1.0, 2.0))
        return [next(faults) for _ in OF_BROKERS]

    assert first_faults("1") == first_faults("1") != first_faults("2")
    assert sorted(fault.kind for fault in first_faults("1")) == sorted(OF_BROKERS)  # type: ignore[attr-defined]


def test_plan_when_it_begins_then_each_process_is_struck_soon() -> None:
    names = [f"p{number}" for number in range(8)]
    targets = dict.fromkeys(OF_BROKERS, names) | {"full disk": names[:1]}
    faults = plan(random.Random(1), OF_BROKERS, targets, (1.0, 2.0))
    struck = [next(faults).target for _ in range(10)]
    assert set(struck) == set(names)
