"""`make wheels`: which Pythons and platforms it finds, what it runs, and the table of what was done."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from distribution_tools import PROJECT, wheel_targets, wheels

X86_64, AARCH64, MUSL = wheel_targets.PLATFORMS[:3]


def fake_python(path: Path, version: str) -> Path:
    """Make a program that answers the question for its version, as `3.14.t`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one empty folder, which is returned."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("KAFKAFMT_PYTHONS", raising=False)
    return folder


def test_pythons_when_configured_then_are_those_of_the_classifiers() -> None:
    pythons = wheels.wanted_pythons(PROJECT["tool"]["cibuildwheel"])
    classifiers = re.findall(r"Python :: (3\.\d+)'", str(PROJECT["project"]["classifiers"]))
    assert [python for python in pythons if not python.endswith("t")] == classifiers
    assert "3.14t" in pythons


def test_version_when_the_program_is_a_python_then_is_its_own() -> None:
    version = wheel_targets.version_of(sys.executable)
    assert version.rstrip("t") == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_version_when_the_program_is_missing_or_fails_then_is_none(tmp_path: Path) -> None:
    assert wheel_targets.version_of(tmp_path / "missing") is None
    assert wheel_targets.version_of("false") is None


def test_python_when_on_the_path_then_is_found(nothing_installed: Path) -> None:
    path = fake_python(nothing_installed / "python3.14t", "3.14.t")
    assert wheel_targets.find_python("3.14t") == wheel_targets.Interpreter("3.14t", path)
    assert wheel_targets.find_python("3.14") is None


def test_python_when_the_variable_names_it_then_is_found_before_others(
    nothing_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(nothing_installed / "python3.12", "3.12.")
    own = fake_python(tmp_path / "own", "3.12.")
    other = fake_python(tmp_path / "other", "3.13.")
    monkeypatch.setenv("KAFKAFMT_PYTHONS", f"{other}:{own}")
    assert wheel_targets.find_python("3.12").path == own
    assert wheel_targets.find_python("3.13").path == other


def test_python_when_pyenv_or_uv_has_it_then_is_found(nothing_installed: Path, tmp_path: Path) -> None:
    path = fake_python(tmp_path / "pyenv" / "versions" / "3.11.9" / "bin" / "python3.11", "3.11.")
    fake_python(nothing_installed / "pyenv", str(tmp_path / "pyenv"))
    assert wheel_targets.find_python("3.11").path == path
    managed = fake_python(tmp_path / "managed", "3.10.")
    fake_python(nothing_installed / "uv", str(managed))
    assert wheel_targets.find_python("3.10").path == managed


def test_root_when_it_has_a_python_with_headers_then_is_found(tmp_path: Path) -> None:
    path = fake_python(tmp_path / "usr" / "bin" / "python3.11", "3.11.")
    assert wheel_targets.find_in_root("3.11", tmp_path) is None
    (tmp_path / "usr" / "include" / "python3.11").mkdir(parents=True)
    assert wheel_targets.find_in_root("3.11", tmp_path) == wheel_targets.Interpreter("3.11", path, tmp_path)
    assert wheel_targets.find_in_root("3.12", tmp_path) is None


def test_headers_when_debian_keeps_them_by_platform_then_has_those_of_the_platform(tmp_path: Path) -> None:
    include = tmp_path / "usr" / "include"
    for folder in (include / "python3.11", include / "aarch64-linux-gnu" / "python3.11"):
        folder.mkdir(parents=True)
        (folder / "pyconfig.h").write_text(str(folder))
    (include / "python3.11" / "Python.h").touch()
    target = wheel_targets.Interpreter("3.11", tmp_path / "usr" / "bin" / "python3.11", tmp_path)
    made = wheel_targets.headers(target, tmp_path / "headers")
    assert (made / "pyconfig.h").read_text() == str(include / "aarch64-linux-gnu" / "python3.11")
    assert (made / "Python.h").exists()


def test_launcher_when_run_then_the_python_of_the_root_takes_it_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu = fake_python(tmp_path / "path" / "qemu-aarch64", "$PYTHONHOME $*")
    monkeypatch.setattr(wheel_targets.this_machine, "machine", lambda: "x86_64")
    monkeypatch.setattr(wheel_targets.shutil, "which", lambda name: str(qemu) if name == qemu.name else None)
    target = wheel_targets.Interpreter("3.11", tmp_path / "usr" / "bin" / "python3.11", tmp_path)
    launcher = wheel_targets.write_launcher(tmp_path / "venv" / "bin" / "python", target, AARCH64)
    ran = subprocess.run([launcher, "-c", "1"], capture_output=True, text=True, check=True).stdout.split()
    assert ran == [
        str(tmp_path / "usr"),
        "-L",
        str(tmp_path),
        "-0",
        str(launcher),
        str(target.path),
        "-c",
        "1",
    ]


def test_launcher_when_qemu_is_missing_then_says_so(tmp_path: Path, nothing_installed: Path) -> None:
    target = wheel_targets.Interpreter("3.11", tmp_path / "usr" / "bin" / "python3.11", tmp_path)
    machine = "x86_64" if wheel_targets.this_machine.machine() == "aarch64" else "aarch64"
    (platform,) = (one for one in wheel_targets.PLATFORMS if one.name == f"manylinux_{machine}")
    with pytest.raises(wheel_targets.StepError, match=f"qemu-{machine} is not installed"):
        wheel_targets.write_launcher(tmp_path / "python", target, platform)


def test_platforms_when_named_then_tags_are_those_that_cibuildwheel_builds() -> None:
    linux = PROJECT["tool"]["cibuildwheel"]["linux"]
    images = {
        name.removesuffix("-image").replace("-", "_"): image
        for name, image in linux.items()
        if "-image" in name
    }
    tags = {
        platform.name: platform.tag.removesuffix(f"_{platform.machine}")
        for platform in wheel_targets.PLATFORMS[:4]
    }
    assert tags == images
    assert X86_64.pip_tags[-1] == X86_64.tag
    assert MUSL.pip_tags[-1] == MUSL.tag


def test_platform_when_a_wheel_is_for_it_or_for_older_ones_then_accepts_it() -> None:
    name = "kafkafmt-0.1.0-cp311-cp311-{}.whl"
    assert AARCH64.accepts(name.format("manylinux2014_aarch64.manylinux_2_17_aarch64"))
    assert AARCH64.accepts(name.format("manylinux_2_28_aarch64"))
    assert MUSL.accepts(name.format("musllinux_1_2_x86_64"))
    for wrong in (
        "manylinux_2_31_aarch64",
        "manylinux_2_17_x86_64",
        "musllinux_1_2_aarch64",
        "linux_aarch64",
    ):
        assert not AARCH64.accepts(name.format(wrong))


def test_platform_when_packages_have_no_wheels_for_it_then_the_tests_need_them() -> None:
    assert MUSL.compiled
    for platform in wheel_targets.PLATFORMS:
        assert {*platform.compiled} <= {*PROJECT["tool"]["cibuildwheel"]["test-requires"]}


def test_command_when_tests_are_chosen_then_replaces_those_of_the_project() -> None:
    configured = PROJECT["tool"]["cibuildwheel"]["test-command"]
    command = wheels.pytest_command(configured, [Path("a"), Path("b c")])
    assert command[:2] == ["pytest", "-m"]
    assert "not broker" in command[2]
    assert command[3:] == ["a", "b c"]


def test_command_when_no_tests_are_chosen_then_runs_folders_that_exist() -> None:
    folders = wheels.pytest_command(PROJECT["tool"]["cibuildwheel"]["test-command"], None)[3:]
    assert len(folders) > 5
    assert all(Path(folder).is_dir() for folder in folders)


def test_tests_when_the_python_has_no_gil_then_run_without_it() -> None:
    cibuildwheel = PROJECT["tool"]["cibuildwheel"]
    assert wheels.test_environment(cibuildwheel, "3.14t") == {"PYTHON_GIL": "0"}
    assert wheels.test_environment(cibuildwheel, "3.14") == {}


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("=========== 12 passed, 1 skipped in 3.45s ===========", "12 passed, 1 skipped"),
        ("===== 1 failed, 12 passed in 83.45s (0:01:23) =====", "1 failed, 12 passed"),
        ("Killed", "no result"),
    ],
)
def test_counts_when_a_run_ended_then_are_those_of_its_last_line(line: str, counts: str) -> None:
    assert wheels.counts_of(f"...\n=== 1 passed in words\n{line}\n") == counts


def test_table_when_a_wheel_was_not_built_or_not_tested_then_says_why() -> None:
    rows = [
        wheels.Row("3.10", "manylinux_x86_64", "a.whl", "12 passed"),
        wheels.Row("3.10", "macosx_arm64", reason="only configured: needs macOS"),
    ]
    assert wheels.table(rows).splitlines()[2:] == [
        "| 3.10 | manylinux_x86_64 | yes | 12 passed |  |",
        "| 3.10 | macosx_arm64 | no | no | only configured: needs macOS |",
    ]


def test_result_when_removed_then_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    wheels.remove_result(tmp_path / "missing")
    kept = {"kafkafmt", "notes.md", "numpy-2.4.6.tar.gz", "other-1.whl"}
    for name in (*kept, "kafkafmt-0.1.0.tar.gz", "kafkafmt-0.1.0-cp310-cp310-any.whl", "wheels.json"):
        (tmp_path / name).touch()
    wheels.remove_result(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_step_when_it_fails_then_the_error_names_it_and_its_log(tmp_path: Path) -> None:
    steps = wheels.Steps(tmp_path / "one.log")
    with pytest.raises(wheel_targets.StepError, match=r"the check failed: see .*one\.log"):
        steps.run("the check", [sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    assert "why" in (tmp_path / "one.log").read_text()
