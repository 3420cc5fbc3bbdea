"""Programs for the shell, with others in place of what they call: what they leave behind, and what they tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution_tools import PROJECT, ROOT, write_program


def copied(program: str, folder: Path) -> str:
    """Copy a program into a folder, below which it then finds all others, and return its path there."""
    path = folder / program
    path.parent.mkdir(exist_ok=True)
    return str(shutil.copy(ROOT / program, path))


@pytest.mark.parametrize(("failing", "status"), [("-merge=1", 3), ("nothing", 0)])
def test_corpora_when_packed_or_not_then_no_temporary_folder_is_left(
    tmp_path: Path, failing: str, status: int
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    python = write_program(
        tmp_path / ".venv" / "bin" / "python",
        f'case "$*" in *{failing}*) ls "$TMPDIR" >"$0.seen"; exit 3;; esac',
    )
    command = [copied("tools/fuzz.sh", tmp_path), "corpora", "decode"]
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    if status:
        assert python.with_suffix(".seen").read_text()
    assert list(temporary.iterdir()) == []


def test_callgrind_when_the_work_fails_then_shows_why(tmp_path: Path) -> None:
    valgrind = write_program(tmp_path / "path" / "valgrind", "echo KeyError: nothing >&2", "exit 1")
    command = [copied("bench/callgrind.sh", tmp_path), "nothing"]
    env = {**os.environ, "PATH": f"{valgrind.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "KeyError: nothing" in done.stderr


def test_callgrind_when_the_table_is_long_then_shows_its_start_and_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "path"
    write_program(
        folder / "valgrind",
        'for one in "$@"; do case "$one" in --callgrind-out-file=*) echo summary: 100 >"${one#*=}";; esac; done',
        "echo 10 2",
    )
    write_program(folder / "callgrind_annotate", "echo file:function", "seq 100000")
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [copied("bench/callgrind.sh", tmp_path), "convert"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["file:function", *map(str, range(1, 16))]


def test_instrumented_build_when_the_python_is_another_one_then_is_built_again(tmp_path: Path) -> None:
    for name in ("src", "python", "build/fuzz"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pyproject.toml", "CMakeLists.txt"):
        (tmp_path / name).touch()
    command = [copied("tools/instrument.sh", tmp_path), "KAFKAFMT_FUZZ", "build/fuzz"]
    for version in ("3.11.7", "3.11.7", "3.12.1"):
        write_program(
            tmp_path / ".venv" / "bin" / "python",
            f'if [ "$1" = -VV ]; then echo "Python {version}"; exit 0; fi',
            f'case "$*" in *" wheel "*) echo {version} >>builds;; esac',
        )
        subprocess.run(command, env={**os.environ, "CC": "true"}, check=True)
    assert (tmp_path / "builds").read_text().split() == ["3.11.7", "3.12.1"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="reads TOML with this Python")
def test_free_threaded_environment_when_made_then_has_the_build_requirements_of_the_project(
    tmp_path: Path,
) -> None:
    python = write_program(
        tmp_path / "venv" / "bin" / "python",
        'case "$2" in *Py_GIL_DISABLED*) exit 0;; *tomllib*) exec "$REAL" "$@";; esac',
        'for one in "$@"; do case "$one" in /dev/fd/*) cat "$one" >>requirements;; esac; done',
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [copied("tools/free_threaded.sh", tmp_path), str(python.parents[1])]
    subprocess.run(command, env={**os.environ, "REAL": sys.executable}, check=True)
    found = (tmp_path / "requirements").read_text().split()
    assert found == PROJECT["build-system"]["requires"]


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A folder with the programs that look for a Python, and with an apt-get that records its calls."""
    for name in ("python.sh", "system.sh"):
        copied(f"tools/{name}", tmp_path)
    for name in ("apt-get", "sudo"):
        write_program(tmp_path / "path" / name, 'echo "$@" >>"$0.called"')
    return tmp_path


def run_in(folder: Path, command: list[str], python: Path) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'path'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": str(python)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_python_when_its_path_has_a_space_then_is_found(system: Path) -> None:
    python = write_program(system / "a b" / "python", "exit 0")
    assert run_in(system, ["tools/python.sh"], python).stdout == f"{python}\n"


@pytest.mark.parametrize("exists", [True, False])
def test_system_when_the_given_python_is_missing_or_too_old_then_says_so_and_installs_nothing(
    system: Path, exists: bool
) -> None:
    python = system / "path" / "python3.9"
    if exists:
        write_program(python, "exit 1")
    done = run_in(system, ["tools/system.sh", "python"], python)
    assert done.returncode == 1
    assert done.stderr == f"PYTHON={python}: expected a Python of 3.10 or later.\n"
    assert not list(system.glob("path/*.called"))
