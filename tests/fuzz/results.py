"""What was fuzzed: `python -m fuzz.results` adds the runs in `build/fuzz/runs` to the table of `RESULTS.md`.

A run is a line: the target, the digest of its sources, seconds of CPU, and the inputs. A row is of one state of the
sources: if they have changed, it begins anew. With a target, the digest is printed, and nothing is added.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import kafkafmt
from fuzz.native_checks import NATIVE_TARGETS, SOURCES

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "build" / "fuzz" / "runs"
RESULTS = Path(__file__).parent / "RESULTS.md"
PRODUCT = ROOT / "python" / "kafkafmt"
KERNELS = ROOT / "src" / "_kafkafmt"
DIGEST_LENGTH = 12

_PAGE = """# Fuzzing results

The table adds up the runs of `make fuzz`, under ASan and UBSan. Each row is of one state of the sources, of whose
SHA-256 it has the first digits: for targets `kernel_*` the `.pxd` files with the functions that they call; for the
others the files of `python` that the first inputs of the target run, and the kernels that these and the target import.
Each input of a target `kernel_*` reaches a few functions. Each input of another target reaches whole layers.

| target | sources | minutes of CPU | inputs |
|---|---|---|---|
{rows}
| all | | {minutes} | {inputs} |
"""
_ROW = re.compile(r"^\| (\w+) \| (\w+) \| ([\d.,]+) \| ([\d,]+) \|$", re.MULTILINE)

# The dots of a relative import, the module, and the names, also of Cython's cimport.
_IMPORT = re.compile(r"^[ ]*from (\.*)([\w.]*) c?import (\([^)]*\)|.*)$", re.MULTILINE)


class Total(NamedTuple):
    """What was fuzzed of a target. seconds: of CPU."""

    sources: str
    seconds: float
    inputs: int


def sources_of(target: str) -> list[Path]:
    """Return the files that a target fuzzes."""
    if target in NATIVE_TARGETS:  # the functions that they call are inline
        return [*_kernels_imported_by([SOURCES / f"{target.removeprefix('kernel_')}.pyx"], [".pxd"])]
    run = _modules_run_by(target)
    return [*(path for path in run if path.is_relative_to(PRODUCT)), *_kernels_imported_by(run)]


def _modules_run_by(target: str) -> set[Path]:
    """The files of `python` and `tests` with functions that the first inputs of a target call. Kernels are not seen."""
    from fuzz.seeds import inputs  # here, as it imports all that writes seeds

    check = importlib.import_module(f"fuzz.{target}").check
    first = [b"", *inputs(target)]
    code: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        code.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        for data in first:
            check(data)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    installed = Path(kafkafmt.__path__[0])
    paths = {Path(name).resolve() for name in code}
    tests = {path for path in paths if path.is_relative_to(ROOT / "tests")}
    return tests | {PRODUCT / path.relative_to(installed) for path in paths if path.is_relative_to(installed)}


def _kernels_imported_by(modules: Iterable[Path], suffixes: Collection[str] = (".pyx", ".pxd")) -> set[Path]:
    """The sources of the kernels that modules import or cimport, and of those that these kernels import or cimport."""
    found: set[Path] = set()
    unread = [*modules]
    while unread:
        importer = unread.pop()
        for dots, module, names in _IMPORT.findall(importer.read_text()):
            folder = importer.parents[len(dots) - 1] if dots else KERNELS.parent
            place = folder.joinpath(*module.split("."))
            # A name may be a module of its own, as in `from . import checksums`.
            for one in (place, *(place / name for name in re.findall(r"\w+", names))):
                new = {*_sources_of_kernel(one, suffixes)} - found
                found |= new
                unread += new
    return found


def _sources_of_kernel(place: Path, suffixes: Iterable[str]) -> Iterable[Path]:
    if place.is_relative_to(KERNELS):
        sources = [path for suffix in suffixes if (path := place.with_suffix(suffix)).exists()]
        yield from sources
        if sources:
            yield from place.parent.glob("*.[ch]")  # what the kernel may declare in a `cdef extern` block


def digest_of(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Return the first digits of the SHA-256 of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:DIGEST_LENGTH]


def totals_of(page: str) -> dict[str, Total]:
    """Return the totals of a page, by target."""
    return {
        target: Total(sources, 60 * float(minutes.replace(",", "")), int(inputs.replace(",", "")))
        for target, sources, minutes, inputs in _ROW.findall(page)
    }


def added(totals: dict[str, Total], runs: str) -> dict[str, Total]:
    """Return totals with the runs, one a line."""
    found = dict(totals)
    for line in runs.splitlines():
        target, sources, seconds, inputs = line.split()
        before = found.get(target)
        if before is None or before.sources != sources:
            before = Total(sources, 0.0, 0)
        found[target] = Total(sources, before.seconds + float(seconds), before.inputs + int(inputs))
    return found


def page_of(totals: dict[str, Total]) -> str:
    """Return the page with these totals."""
    rows = [
        f"| {target} | {one.sources} | {one.seconds / 60:,.1f} | {one.inputs:,} |"
        for target, one in sorted(totals.items())
    ]
    seconds, inputs = (sum(column) for column in list(zip(*totals.values(), strict=True))[1:])
    return _PAGE.format(rows="\n".join(rows), minutes=f"{seconds / 60:,.1f}", inputs=f"{inputs:,}")


def main() -> None:
    if len(sys.argv) > 1:
        print(digest_of(sources_of(sys.argv[1])))
        return
    before = totals_of(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(page_of(added(before, RUNS.read_text())))
    RUNS.unlink()


if __name__ == "__main__":
    main()
