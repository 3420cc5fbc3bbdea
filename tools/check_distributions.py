"""Check that sdists and wheels contain exactly the files of the repository that belong into them.

    python tools/check_distributions.py dist/*

An sdist has the files in Git that `pyproject.toml` includes. A wheel has the modules with their
types and data, a compiled module for each kernel, the licence, the notice, and a bill of materials (PEP 770). It has no
source of a kernel. Prints a line for each missing or unexpected file. Exits with status 1 if there is one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGES = ("python/kafkafmt", "src/_kafkafmt")
NOT_IN_SDIST = (".ci/", ".github/", ".gitignore")  # nor in `sdist.include` of pyproject.toml
KERNEL_SOURCES = {".pyx", ".pxd", ".c", ".h"}
DIST_INFO = {
    "METADATA",
    "WHEEL",
    "RECORD",
    "entry_points.txt",
    "licenses/LICENSE",
    "licenses/NOTICE",
    "sboms/kafkafmt.cdx.json",
}
_SUFFIX = re.compile(r"\.(cpython-\d+t?|abi3)[^/]*\.so$")


def tracked(root: Path = ROOT) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def expected_in_sdist(files: Iterable[str]) -> set[str]:
    return {"PKG-INFO", *(name for name in files if not name.startswith(NOT_IN_SDIST))}


def expected_in_wheel(files: Iterable[str]) -> set[str]:
    """Return the paths in a wheel; a compiled module stands there as its kernel, with the suffix `.so`."""
    expected = {f".dist-info/{name}" for name in DIST_INFO}
    for package in PACKAGES:
        parent = PurePosixPath(package).parent
        for name in files:
            path = PurePosixPath(name)
            if not path.is_relative_to(package):
                continue
            if path.suffix == ".pyx":
                expected.add(str(path.relative_to(parent).with_suffix(".so")))
            elif path.suffix not in KERNEL_SOURCES:
                expected.add(str(path.relative_to(parent)))
    return expected


def found_in_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive if not member.isdir()}


def found_in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    return {_SUFFIX.sub(".so", re.sub(r"^[^/]+\.dist-info/", ".dist-info/", name)) for name in names}


def bill_of_materials_problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with the bill of materials of a wheel that has one."""
    version = path.name.split("-")[1]
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".cdx.json"):
                continue
            bill = json.loads(archive.read(name))
            found = bill["metadata"]["component"]["version"]
            if found != version:
                yield f"{name}: expected version {version}, found {found}"
            for component in bill["components"]:
                if not re.match(r"\d", component["version"]):
                    yield f"{name}: {component['name']}: expected a version, found {component['version']!r}"


def problems(path: Path, files: Iterable[str]) -> Iterator[str]:
    """Yield a line for each file that is missing in a distribution, or that does not belong there."""
    if path.suffix == ".whl":
        expected, found = expected_in_wheel(files), found_in_wheel(path)
        yield from bill_of_materials_problems(path)
    else:
        expected, found = expected_in_sdist(files), found_in_sdist(path)
    for name in sorted(expected - found):
        yield f"missing: {name}"
    for name in sorted(found - expected):
        yield f"unexpected: {name}"


def main(paths: list[str]) -> int:
    files = tracked()
    failed = False
    for path in map(Path, paths):
        for problem in problems(path, files):
            print(f"{path.name}: {problem}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
