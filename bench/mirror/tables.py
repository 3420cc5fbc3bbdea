"""The tables of `make bench-mirror`, and the targets: each a ratio of processor seconds within one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.mirror.contenders import ADAPTIVE, DEEP, EXACTLY_ONCE, FLOOR, NAMES, OWN, RAW, present
from bench.mirror.copying import Row
from bench.mirror.works import KIB
from bench.peers.names import CONFLUENT
from bench.results import Table, figure
from bench.segments import MIB
from kafkafmt import Codec
from kafkafmt.mirror.options import MirrorOptions

# Of batches of so many bytes on the wire the mirror may take three times the floor.
_LARGE_WIRE_BYTES, _TIMES_FLOOR = 64 * KIB, 3
_TIMES_BETTER = 1.1
_OF_CONFLUENT, _OF_CONFLUENT_SMALL = 0.15, 0.5
_RAW_OF_DEEP, _RAW_OF_CONFLUENT = 0.1, 0.25


@dataclass(frozen=True)
class Ratio:
    """What a contender takes in parts of another, or of the better of others. most: the target, if there is one."""

    name: str
    value: float | None
    most: float | None

    @property
    def verdict(self) -> str:
        """Nothing without a target."""
        if self.most is None:
            return ""
        if self.value is None:
            return "not measured"
        return "hit" if self.value <= self.most else "MISSED"

    @property
    def cell(self) -> str:
        value = "-" if self.value is None else f"{self.value:.3g}"
        return value if self.most is None else f"{value} (<= {self.most:g}: {self.verdict})"


def ratios(row: Row) -> Iterator[Ratio]:
    work = row.work
    of_floor = _TIMES_FLOOR if work.batch_wire_bytes >= _LARGE_WIRE_BYTES else None
    of_confluent = _OF_CONFLUENT if work.is_of_large_batches else _OF_CONFLUENT_SMALL
    for name in (ADAPTIVE, RAW):
        yield Ratio(f"{name}/floor", row.ratio(name, FLOOR), of_floor)
    yield Ratio("exactly once/adaptive", row.ratio(EXACTLY_ONCE, ADAPTIVE), None)
    yield Ratio("adaptive/better of raw, deep", row.ratio(ADAPTIVE, RAW, DEEP), _TIMES_BETTER)
    yield Ratio(
        "adaptive/confluent",
        row.ratio(ADAPTIVE, CONFLUENT),
        None if work.is_of_single_records else of_confluent,
    )
    is_shrunk = work.segment.codec != Codec.NONE and not work.is_of_single_records
    yield Ratio("raw/deep", row.ratio(RAW, DEEP), _RAW_OF_DEEP if is_shrunk else None)
    yield Ratio("raw/confluent", row.ratio(RAW, CONFLUENT), _RAW_OF_CONFLUENT)


def processors_table(rows: Sequence[Row]) -> Table:
    lines: list[tuple[str, ...]] = [("processor seconds", "MB", "of wire", *NAMES, "verdict")]
    lines += (
        (
            f"{row.work.label}, a GB",
            f"{row.work.gigabytes * 1e3:.0f}",
            f"{row.work.wire_gigabytes * 1e3:.0f}",
            *(
                figure(row.processor_seconds(name), ".2f", "s/GB") if name in row.runs else "-"
                for name in NAMES
            ),
            _verdict(row),
        )
        for row in rows
    )
    starts = rows[0].starts
    seconds = (f"{starts[name].processor_seconds:.2f}" if name in starts else "-" for name in NAMES)
    lines.append(("start and end, a run", "0", "0", *seconds, ""))
    title = "Processor seconds of the mirroring process, for each GB of batches before compression"
    return Table("processors", title, lines, left=(0, len(lines[0]) - 1))


def _verdict(row: Row) -> str:
    verdicts = [ratio.verdict for ratio in ratios(row) if ratio.most is not None]
    if missed := verdicts.count("MISSED"):
        return f"MISSED {missed} of {len(verdicts)}"
    return "hit" if "not measured" not in verdicts else "not measured"


def ratios_table(rows: Sequence[Row]) -> Table:
    names = [ratio.name for ratio in ratios(rows[0])]
    lines: list[tuple[str, ...]] = [("ratios of processor seconds", "a batch on the wire", *names)]
    lines += (
        (
            row.work.label,
            f"{row.work.batch_wire_bytes / KIB:.1f} KiB",
            *(ratio.cell for ratio in ratios(row)),
        )
        for row in rows
    )
    return Table("ratios", "Ratios of processor seconds, and the targets", lines)


def rates_table(rows: Sequence[Row]) -> Table:
    most = MirrorOptions.memory_bytes / MIB
    columns = [f"{what}{name}" for what in ("MB/s: ", "peak MiB: ") for name in NAMES]
    lines: list[tuple[str, ...]] = [("throughput and memory", *columns, f"--memory {most:.0f}m", "verdict")]
    for row in rows:
        rates = (figure(row.rate(name), ".0f", "MB/s") if name in row.runs else "-" for name in NAMES)
        peaks = (f"{row.runs[name].peak_mib:.0f}" if name in row.runs else "-" for name in NAMES)
        above = max(row.peak_mib(name) for name in OWN if name in row.runs)
        verdict = "hit" if above <= most else "MISSED"
        lines.append((row.work.label, *rates, *peaks, f"{above:.0f} above the start", verdict))
    starts = rows[0].starts
    peaks = (f"{starts[name].peak_mib:.0f}" if name in starts else "-" for name in NAMES)
    lines.append(("no record", *[""] * len(NAMES), *peaks, "", ""))
    title = "MB/s before compression, and the most memory that was resident"
    return Table("rates", title, lines, left=(0, len(lines[0]) - 1))


def tables(rows: Sequence[Row]) -> list[Table]:
    """None without rows."""
    return [processors_table(rows), ratios_table(rows), rates_table(rows)] if rows else []


def notes() -> list[str]:
    return [] if ADAPTIVE in present() else ["adaptive: not measured: the mirror of this version is raw"]
