"""Programs for the shell, with others in place of what they call: what they leave behind, and what they tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution_tools import PROJECT, ROOT


@pytest.mark.parametrize(("failing", "status"), [("-merge=1", 3), ("nothing", 0)])
def test_corpora_when_packed_or_not_then_no_temporary_folder_is_left(
    tmp_path: Path, failing: str, status: int
) -> None:
    temporary, python = tmp_path / "temporary", tmp_path / ".venv" / "bin" / "python"
    temporary.mkdir()
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ncase "$*" in *{failing}*) ls "$TMPDIR" >"$0.seen"; exit 3;; esac\n')
    python.chmod(0o755)
    (tmp_path / "tools").mkdir()
    program = shutil.copy(ROOT / "tools" / "fuzz.sh", tmp_path / "tools")
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [program, "corpora", "decode"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    if status:
        assert python.with_suffix(".seen").read_text()
    assert list(temporary.iterdir()) == []


def test_callgrind_when_the_work_fails_then_shows_why(tmp_path: Path) -> None:
    valgrind = tmp_path / "path" / "valgrind"
    valgrind.parent.mkdir()
    valgrind.write_text("#!/bin/sh\necho KeyError: nothing >&2\nexit 1\n")
    valgrind.chmod(0o755)
    (tmp_path / "bench").mkdir()
    program = shutil.copy(ROOT / "bench" / "callgrind.sh", tmp_path / "bench")
    env = {**os.environ, "PATH": f"{valgrind.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([program, "nothing"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "KeyError: nothing" in done.stderr


# Answers `-VV`, and records each wheel that it is asked for.
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = -VV ]; then echo "Python {version}"; exit 0; fi
case "$*" in *" wheel "*) echo {version} >>builds;; esac
"""


def test_instrumented_build_when_the_python_is_another_one_then_is_built_again(tmp_path: Path) -> None:
    for name in ("src", "python", "tools", "build", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pyproject.toml", "CMakeLists.txt"):
        (tmp_path / name).touch()
    program = shutil.copy(ROOT / "tools" / "instrument.sh", tmp_path / "tools")
    python = tmp_path / ".venv" / "bin" / "python"
    for version in ("3.11.7", "3.11.7", "3.12.1"):
        python.write_text(FAKE_PYTHON.format(version=version))
        python.chmod(0o755)
        (tmp_path / "build" / "fuzz").mkdir(exist_ok=True)
        subprocess.run([program, "KAFKAFMT_FUZZ", "build/fuzz"], env={**os.environ, "CC": "true"}, check=True)
    assert (tmp_path / "builds").read_text().split() == ["3.11.7", "3.12.1"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="reads TOML with this Python")
def test_free_threaded_environment_when_made_then_has_the_build_requirements_of_the_project(
    tmp_path: Path,
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    for folder in (python.parent, tmp_path / "tools"):
        folder.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'case "$2" in *Py_GIL_DISABLED*) exit 0;; *tomllib*) exec "$REAL" "$@";; esac\n'
        'for one in "$@"; do case "$one" in /dev/fd/*) cat "$one" >>requirements;; esac; done\n'
    )
    python.chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    program = shutil.copy(ROOT / "tools" / "free_threaded.sh", tmp_path / "tools")
    subprocess.run([program, str(python.parents[1])], env={**os.environ, "REAL": sys.executable}, check=True)
    found = (tmp_path / "requirements").read_text().split()
    assert found == PROJECT["build-system"]["requires"]
