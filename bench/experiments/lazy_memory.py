"""Memory does not follow the input: a 2 GiB segment is converted lazily below 40 MiB above the bare interpreter.

Prints the peak of resident memory for segments of several sizes and codecs, each in a process of its own, and
exits with status 1 where one passes the bound.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.process_memory import MIB, bare_interpreter_mib, peak_mib

from bench import BUILD, ROOT
from bench.results import Figure, Table, report
from bench.segments import Segment, repeated, stored
from kafkafmt import Codec, ConversionStats, FileRecords, LazyDownConvertRecords

MOST_MIB = 40
# MiB, uncompressed and compressed alike.
SIZES = {Codec.NONE: (64, 2048), Codec.LZ4: (64, 512), Codec.GZIP: (64, 256), Codec.ZSTD: (64, 256)}


def convert(path: str, zstd_fallback: Codec = Codec.LZ4) -> None:
    """In a process of its own: convert, then print the records and the peak."""
    stats = ConversionStats()
    with FileRecords(path) as records:
        # Not a send: it ends at its committed size, and small messages grow in v1.
        for _ in LazyDownConvertRecords(records, 1, zstd_fallback=zstd_fallback).chunks(
            stats, reuse_memory=True
        ):
            pass
    print(stats.records_converted, peak_mib())


def measure(codec: Codec, size_mib: int, folder: Path) -> tuple[int, int, float]:
    """Bytes, records, and the peak above a bare interpreter in MiB."""
    segment = stored(Segment(codec, 1024))
    path = folder / "segment.log"
    copies = -(-size_mib * MIB // segment.size_in_bytes)
    size = repeated(segment, copies, path)
    command = [sys.executable, "-m", "bench.experiments.lazy_memory", str(path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    records, peak = done.stdout.split()
    if int(records) != segment.records * copies:
        raise AssertionError(f"{records} records of {segment.records * copies} were converted")
    return size, int(records), float(peak) - bare_interpreter_mib()


def main() -> int:
    headings = ("codec", "segment", "records", "peak above a bare interpreter", "verdict")
    rows: list[tuple[str, ...]] = [headings]
    too_much = False
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        for codec, sizes in SIZES.items():
            for size_mib in sizes:
                size, records, peak = measure(codec, size_mib, Path(folder))
                too_much |= peak >= MOST_MIB
                verdict = "too much" if peak >= MOST_MIB else f"below {MOST_MIB} MiB"
                shown = Figure(peak, f"{peak:.1f} MiB", "MiB")
                rows.append((codec.name.lower(), f"{size / MIB:.0f} MiB", str(records), shown, verdict))
    title = "Lazy conversion of a file, v2 to v1, 1 KiB values, in chunks of the default size"
    report(
        "lazy_memory", [Table("lazy_memory", title, rows)], command="python -m bench.experiments.lazy_memory"
    )
    return int(too_much)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        convert(sys.argv[1])
    else:
        sys.exit(main())
