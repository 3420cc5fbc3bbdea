"""What was fuzzed: `python -m fuzz.results` adds the runs in `build/fuzz/runs` to the table of `RESULTS.md`.

A run is a line: the SHA-256 of the sources, the target, seconds of CPU, and the inputs. The table is of one state of
the sources: if they have changed, it begins anew. With `--sources` the SHA-256 is printed, and nothing is added.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from fuzz.seeds import TARGETS

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "build" / "fuzz" / "runs"
RESULTS = Path(__file__).parent / "RESULTS.md"
Totals = Mapping[str, tuple[float, int]]  # by target: seconds of CPU, and inputs

_PAGE = """# Fuzzing results

The table adds up the runs of `make fuzz`, under ASan and UBSan, on one state of `src` and `python`, whose SHA-256 is
`{sources}`.
Each input of a target `kernel_*` reaches a few functions. Each input of another target reaches whole layers.

| target | minutes of CPU | inputs |
|---|---|---|
{rows}
| all | {minutes} | {inputs} |
"""
_ROW = re.compile(r"^\| (\w+) \| ([\d.,]+) \| ([\d,]+) \|$", re.MULTILINE)


def sources_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 of the sources that are fuzzed."""
    digest = hashlib.sha256()
    for path in sorted(path for name in ("src", "python") for path in (root / name).rglob("*.*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def totals_of(page: str, sources: str) -> dict[str, tuple[float, int]]:
    """Return the totals of a page; none if it is of other sources."""
    if sources not in page:
        return {}
    rows = {target: (minutes, inputs) for target, minutes, inputs in _ROW.findall(page) if target != "all"}
    return {
        target: (60 * float(minutes.replace(",", "")), int(inputs.replace(",", "")))
        for target, (minutes, inputs) in rows.items()
    }


def added(totals: Totals, runs: str, sources: str) -> dict[str, tuple[float, int]]:
    """Return totals with the runs of these sources, one a line."""
    found = dict(totals)
    for line in runs.splitlines():
        of_sources, target, seconds, inputs = line.split()
        if of_sources != sources:
            continue
        before_seconds, before_inputs = found.get(target, (0.0, 0))
        found[target] = before_seconds + float(seconds), before_inputs + int(inputs)
    return found


def page_of(totals: Totals, sources: str) -> str:
    """Return the page with these totals."""
    rows = [
        f"| {target} | {totals[target][0] / 60:,.1f} | {totals[target][1]:,} |"
        for target in TARGETS
        if target in totals
    ]
    seconds, inputs = (sum(one[place] for one in totals.values()) for place in (0, 1))
    return _PAGE.format(
        sources=sources, rows="\n".join(rows), minutes=f"{seconds / 60:,.1f}", inputs=f"{inputs:,}"
    )


def main() -> None:
    sources = sources_digest()
    if "--sources" in sys.argv:
        print(sources)
        return
    before = totals_of(RESULTS.read_text(), sources) if RESULTS.exists() else {}
    RESULTS.write_text(page_of(added(before, RUNS.read_text(), sources), sources))
    RUNS.unlink()


if __name__ == "__main__":
    main()
