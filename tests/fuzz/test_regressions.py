"""What fuzzing found once stays found: every input under `regressions/TARGET/`, and the seeds, keep their
target's invariant.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from fuzz import seeds

FOLDER = Path(__file__).parent / "regressions"
FOUND = sorted(path for path in FOLDER.glob("*/*"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_target_when_given_what_fuzzing_found_then_its_invariant_holds(path: Path):
    importlib.import_module(f"fuzz.{path.parent.name}").check(path.read_bytes())


@pytest.mark.parametrize("target", seeds.TARGETS)
def test_target_when_given_its_seeds_then_its_invariant_holds(target: str):
    check = importlib.import_module(f"fuzz.{target}").check
    for data in seeds.inputs(target):
        check(data)
