"""What was fuzzed: `python -m fuzz.results` adds the runs in `build/fuzz/runs` to the table of `RESULTS.md`.

A run is a line: the target, the digest of its sources, seconds of CPU, and the inputs. A row is of one state of the
sources: if they have changed, it begins anew. With a target, the digest is printed, and nothing is added.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

from fuzz.native_checks import NATIVE_TARGETS

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "build" / "fuzz" / "runs"
RESULTS = Path(__file__).parent / "RESULTS.md"
DIGEST_LENGTH = 12

_PAGE = """# Fuzzing results

The table adds up the runs of `make fuzz`, under ASan and UBSan. Each row is of one state of the sources, of whose
SHA-256 it has the first digits: the `.pxd` files of `src` for targets `kernel_*`, whose functions are there, and `src`
and `python` for the others. Each input of a target `kernel_*` reaches a few functions. Each input of another target
reaches whole layers.

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


def sources_digest(target: str, root: Path = ROOT) -> str:
    """Return the first digits of the SHA-256 of what a target fuzzes."""
    digest = hashlib.sha256()
    # The functions that native targets call are inline, in `.pxd` files.
    patterns = ("src/**/*.pxd",) if target in NATIVE_TARGETS else ("src/**/*.*", "python/**/*.*")
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        if path.is_file() and path.suffix != ".pyc":
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
        print(sources_digest(sys.argv[1]))
        return
    before = totals_of(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(page_of(added(before, RUNS.read_text())))
    RUNS.unlink()


if __name__ == "__main__":
    main()
