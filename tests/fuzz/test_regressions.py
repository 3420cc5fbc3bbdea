"""What fuzzing found once stays found: every input under `regressions/TARGET/`, the seeds, and the corpora of
`corpus/` keep their target's invariant.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import corpora, seeds
from fuzz.native_checks import NATIVE_TARGETS, can_compile

FOLDER = Path(__file__).parent / "regressions"
FOUND = sorted(path for path in FOLDER.glob("*/*"))


def check_of(target: str) -> Callable[[bytes], None]:
    if target in NATIVE_TARGETS and not can_compile():
        pytest.skip("needs Cython and a C compiler")
    check: Callable[[bytes], None] = importlib.import_module(f"fuzz.{target}").check
    return check


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_target_when_given_what_fuzzing_found_then_its_invariant_holds(path: Path):
    check_of(path.parent.name)(path.read_bytes())


@pytest.mark.parametrize("target", seeds.TARGETS)
def test_target_when_given_its_seeds_and_its_corpus_then_its_invariant_holds(target: str):
    check = check_of(target)
    for data in (b"", *seeds.inputs(target)):  # libFuzzer begins with an empty input
        check(data)


def test_corpora_when_packed_then_each_has_a_target_and_all_are_small():
    packed = {path.name.removesuffix(".tar.xz"): path.stat().st_size for path in corpora.PACKED.iterdir()}
    assert packed
    assert packed.keys() <= set(seeds.TARGETS)
    assert sum(packed.values()) <= 2_000_000


def test_corpus_when_packed_then_the_smallest_inputs_that_fit_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(1)
    inputs = [rng.randbytes(size) for size in range(0, 1000, 10)]
    monkeypatch.setattr(corpora, "PACKED", tmp_path)
    (tmp_path / "codec.tar.xz").write_bytes(corpora.packed(inputs[::-1]))
    assert corpora.corpus("codec") == inputs
    monkeypatch.setattr(corpora, "MAX_PACKED_BYTES", 20_000)
    (tmp_path / "codec.tar.xz").write_bytes(corpora.packed(inputs))
    found = corpora.corpus("codec")
    assert inputs[:50] == found[:50]
    assert len(found) < len(inputs)
