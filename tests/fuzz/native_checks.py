"""The checks of the targets `kernel_*`, which are C: they call functions that kernels share, with no Python in between.

`python -m fuzz.native_checks FOLDER` compiles all of them into a folder, with the compiler `CC` and its options
`CFLAGS`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent / "native"
SUFFIX = EXTENSION_SUFFIXES[0]
# Names the folder of checks that were compiled with other options.
FOLDER_VARIABLE = "KAFKAFMT_NATIVE_CHECKS"
NATIVE_TARGETS = tuple(f"kernel_{path.stem}" for path in sorted(SOURCES.glob("*.pyx")))
DIRECTIVES = (
    *("boundscheck=False", "wraparound=False", "cdivision=True", "initializedcheck=False"),
    "freethreading_compatible=True",
)


def can_compile() -> bool:
    """Whether Cython and a C compiler are there."""
    return find_spec("Cython") is not None and shutil.which(_compiler()[0]) is not None


def native_check(name: str) -> Callable[[bytes], None]:
    """Return the check of a file in `native`, which is compiled if it is older than a source."""
    if FOLDER_VARIABLE in os.environ:
        path = Path(os.environ[FOLDER_VARIABLE], name + SUFFIX)
    else:
        path = ROOT / "build" / "native_checks" / (name + SUFFIX)
        if not path.exists() or path.stat().st_mtime < _last_change():
            compile_check(name, path)
    spec = spec_from_file_location(f"fuzz.native.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Callable[[bytes], None] = module.check
    return check


def compile_check(name: str, path: Path) -> None:
    """Compile a file in `native`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directives = [part for one in DIRECTIVES for part in ("-X", one)]
    includes = [part for tree in (ROOT / "src", SOURCES) for part in ("-I", str(tree))]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        generated, compiled = Path(folder, f"{name}.c"), Path(folder, path.name)
        source = SOURCES / f"{name}.pyx"
        cython = [sys.executable, "-m", "cython", "-3", *directives, *includes]
        subprocess.run([*cython, "-o", str(generated), str(source)], check=True)
        headers = sysconfig.get_path("include")
        options = ("-shared", "-fPIC", "-w", "-I", headers, "-o", str(compiled), str(generated))
        subprocess.run([*_compiler(), *options], check=True)
        compiled.replace(path)  # another process may do the same


def _compiler() -> list[str]:
    return shlex.split(f"{os.environ.get('CC', 'cc')} {os.environ.get('CFLAGS', '-O1')}")


def _last_change() -> float:
    trees = (SOURCES, ROOT / "src")
    return max(path.stat().st_mtime for tree in trees for path in tree.rglob("*.p[xy]*") if path.is_file())


if __name__ == "__main__":
    for one in SOURCES.glob("*.pyx"):
        compile_check(one.stem, Path(sys.argv[1], one.stem + SUFFIX))
