"""Export topics into tables: the public functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafkafmt.export.errors import ExportError
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.running import TableReport, run_export
from kafkafmt.export.tables import Destination
from kafkafmt.scanning.arguments import Path
from kafkafmt.scanning.scan import Scan, scan


def export_topics(
    source: Scan | Path | Iterable[Path],
    destination: str | Destination,
    options: ExportOptions | None = None,
    *,
    format: str = "parquet",  # noqa: A002
    **scanned: Any,
) -> list[TableReport]:
    """Export topics into tables on this machine, as `kafkafmt export` does, and return a report of each table.

    A table continues where it ends: each record is in it once, also after an export was killed.

    Args:
        source: a scan; or what `kafkafmt.scan` takes as its source.
        destination: a folder or URI, in which each topic gets a table of its name; or a `Destination`, which can have a
            catalog, options of the format, and one table for all topics.
        options: None for the defaults.
        format: parquet, delta or iceberg, if `destination` is text.
        scanned: arguments of `kafkafmt.scan`, such as `topics` and `decode`, if `source` is no scan. `isolation` is
            read_committed by default.

    A table that fails leaves the others unaffected, and its report has the error. Raises ExportError and ScanError for
    invalid arguments, and what `Scan.ranges` raises.
    """
    found = destination_of(destination, format)
    return list(run_export(source_scan(source, scanned), found, options or ExportOptions()))


def destination_of(destination: str | Destination, kind: str) -> Destination:
    """Return a destination, or that of a folder or URI. Raises ExportError for an unknown format."""
    if isinstance(destination, Destination):
        if kind not in ("parquet", destination.format):
            raise ExportError(f"format: expected {destination.format} as in the destination, found {kind!r}")
        return destination
    return Destination(destination, kind)


def source_scan(source: Scan | Path | Iterable[Path], scanned: dict[str, Any]) -> Scan:
    """Return a scan, or the scan of a source with these arguments, by default of its committed records.

    Raises ExportError for arguments beside a scan.
    """
    if not isinstance(source, Scan):
        return scan(source, **{"isolation": "read_committed", **scanned})
    if scanned:
        raise ExportError(f"{min(scanned)}: expected no arguments of a scan beside a scan")
    return source
