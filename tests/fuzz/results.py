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
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import kafkafmt
from fuzz.native_checks import NATIVE_TARGETS

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "build" / "fuzz" / "runs"
RESULTS = Path(__file__).parent / "RESULTS.md"
DIGEST_LENGTH = 12

_PAGE = """# Fuzzing results

The table adds up the runs of `make fuzz`, under ASan and UBSan. Each row is of one state of the sources, of whose
SHA-256 it has the first digits: the `.pxd` files of `src` for targets `kernel_*`, whose functions are there; `src`, and
the files of `python` that the first inputs of the target run, for the others. Each input of a target `kernel_*` reaches
a few functions. Each input of another target reaches whole layers.

| target | sources | minutes of CPU | inputs |
|---|---|---|---|
{rows}
| all | | {minutes} | {inputs} |
"""
_ROW = re.compile(r"^\| (\w+) \| (\w+) \| ([\d.,]+) \| ([\d,]+) \|$", re.MULTILINE)


class Total(NamedTuple):
    """What was fuzzed of a target. seconds: of CPU."""

    sources: str
    seconds: float
    inputs: int


def sources_of(target: str) -> list[Path]:
    """Return the files that a target fuzzes."""
    if target in NATIVE_TARGETS:
        return list(ROOT.glob("src/**/*.pxd"))  # the functions that native targets call are inline
    return [*(path for path in ROOT.glob("src/**/*") if path.is_file()), *_modules_run_by(target)]


def _modules_run_by(target: str) -> set[Path]:
    """The files of `python` with a function that the first inputs of a target call. Kernels are not seen."""
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
    paths = (Path(name) for name in code)
    return {
        ROOT / "python/kafkafmt" / path.relative_to(installed)
        for path in paths
        if path.is_relative_to(installed)
    }


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
