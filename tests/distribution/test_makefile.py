"""The Makefile, with programs in place of tools/ and .venv: what it lists, when it installs, and what it removes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from distribution_tools import ROOT, write_program

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs Make")

# Fails if another one runs at the same time.
INSTALL = ("mkdir installing || exit 1", "echo installed >>log", "sleep 0.2", "rmdir installing")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile, and with programs that do nothing."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("tools/system.sh", "tools/with_java.sh", "tools/sanitized.sh"):
        write_program(tmp_path / name)
    for name in ("python", "ruff", "mypy", "stubtest", "cython-lint"):
        write_program(tmp_path / ".venv" / "bin" / name)
    write_program(tmp_path / "tools" / "install.sh", *INSTALL)
    return tmp_path


def make(clone: Path, *arguments: str) -> str:
    # Without the variables of a Make that runs the tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *arguments], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_when_asked_for_then_lists_each_target_that_has_a_description(clone: Path) -> None:
    text = (clone / "Makefile").read_text()
    described = dict(re.findall(r"^([a-z-]+):.*## (.*)$", text, re.MULTILINE))
    lines = make(clone, "help").splitlines()
    assert lines == [f"  make {name:<19}{description}" for name, description in described.items()]
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony.split() == [*re.findall(r"^([a-z-]+):", text, re.MULTILINE)]


def test_targets_when_make_runs_them_in_parallel_then_one_installs_at_a_time(clone: Path) -> None:
    make(clone, "-j4", "test-all", "build", "demo")
    assert (clone / "log").read_text().split().count("installed") >= 3


@pytest.mark.parametrize("target", ["bench-report", "docs", "lint", "coverage"])
def test_target_when_it_needs_the_package_then_installs_it_before(clone: Path, target: str) -> None:
    commands = make(clone, "--dry-run", target)
    assert commands.index("tools/install.sh") < commands.index(".venv/bin/")


def test_clean_when_run_then_removes_what_was_made_and_nothing_else(clone: Path) -> None:
    kept = ["build/jars/kafka.jar", "src/_kafkafmt/__init__.py", "tests/data/logs/a-0/0.log", "dist/own.whl"]
    made = [
        ".hypothesis/examples",
        ".mypy_cache/a",
        ".pytest_cache/a",
        ".ruff_cache/a",
        "bench/__pycache__/a.pyc",
        "build/clients/go/driver",
        "docs/_extensions/__pycache__/a.pyc",
        "python/kafkafmt/__pycache__/a.pyc",
        "spark-warehouse/a",
        "tests/cli/__pycache__/a.pyc",
        "tools/__pycache__/a.pyc",
        "wheelhouse/a.whl",
    ]
    for name in (*kept, *made):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    sources = {"Makefile", *(f"tools/{name}.sh" for name in ("install", "sanitized", "system", "with_java"))}
    make(clone, "clean")
    assert {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()} == {*kept, *sources}
    assert not any(clone.rglob("__pycache__"))
