"""CMakeLists.txt, configured without scikit-build-core: it refuses what the kernels cannot be compiled with or for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution_tools import PROJECT, ROOT, write_program

cython_cmake = pytest.importorskip("cython_cmake")
MODULES = Path(cython_cmake.__file__).parent / "cmake"
CMAKE = shutil.which("cmake", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
pytestmark = pytest.mark.skipif(CMAKE is None, reason="needs CMake")


def errors_of_configuration(folder: Path, *definitions: str) -> str:
    """Configure the build in a folder, expect that it fails, and return the messages in one line."""
    assert CMAKE is not None
    command = [
        CMAKE,
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        "-DSKBUILD_PROJECT_NAME=kafkafmt",
        "-DSKBUILD_PROJECT_VERSION=1.2",
        f"-DCMAKE_MODULE_PATH={MODULES}",
        f"-DPython_EXECUTABLE={sys.executable}",
        *(f"-D{definition}" for definition in definitions),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return " ".join(done.stderr.split())


def test_configuration_when_cython_is_older_than_required_then_says_which_is_needed(tmp_path: Path) -> None:
    cython = write_program(tmp_path / "cython", "echo Cython version 3.2.4")
    errors = errors_of_configuration(tmp_path / "build", f"CYTHON_EXECUTABLE={cython}")
    (required,) = re.findall(r"'cython>=([\d.]+)'", str(PROJECT["build-system"]["requires"]))
    assert f'Found unsuitable version "3.2.4", but required is at least "{required}"' in errors


def test_configuration_when_pointers_have_32_bits_then_refuses_the_platform(tmp_path: Path) -> None:
    # Without the check of the compiler, CMake takes the size of pointers from here.
    errors = errors_of_configuration(tmp_path, "CMAKE_C_COMPILER_FORCED=ON", "CMAKE_SIZEOF_VOID_P=4")
    assert "kafkafmt: expected a 64-bit platform, found pointers of 4 bytes" in errors
