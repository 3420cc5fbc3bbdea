"""The document's second open question, by `kafkafmt table`: `python -m bench.memory.stores KIND WORKLOAD FOLDER`.

The same logs are tabled with each kind of store, within the same memory, and committed as often. The checksum is of all
rows in their order. What is written is what the process hands to the system, for the state only: no table is written.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from bench.memory import limited
from bench.memory.caching import written_bytes
from bench.memory.topic import ROOT
from bench.results import Figure, Table
from kafkafmt import BinaryColumn, Codec, RecordBatchBuilder
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.jobs.table import Table as KeyTable
from kafkafmt.jobs.table import TableState
from kafkafmt.log import PartitionLogWriter
from kafkafmt.memory import StoreKind

MIB = 1024 * 1024
MEMORY_BYTES = 128 * MIB
RECORDS = 400_000
PARTITIONS = 4
COMMITTED_RECORDS = 100_000

_BATCH_RECORDS = 2_000
_VALUE_BYTES = 200
_GENERATION = 2


@dataclass(frozen=True)
class Workload:
    """keys: how many there are. Each record has any of them, as likely as another one."""

    label: str
    keys: int


WORKLOADS = {
    "hot": Workload("2,000 hot keys", 2_000),
    "many": Workload("80,000 keys", 80_000),
    "more": Workload("400,000 keys, more than memory", 400_000),
}
KINDS = {
    "cached": (StoreKind.CACHED, "RocksDB and a cache"),
    "uncached": (StoreKind.UNCACHED, "RocksDB alone"),
    "dirty": (StoreKind.DIRTY_MAP, "RocksDB and a dirty map"),
    "memory": (StoreKind.IN_MEMORY, "memory"),
}
BASE = "cached"


@dataclass(frozen=True)
class Kept:
    """A table. moved: whether a store in memory moved into RocksDB."""

    label: str
    kind: str
    workload: str
    processor_seconds: float
    rows_seconds: float
    written_bytes: int
    counted_bytes: int
    resident_peak_bytes: int
    records: int
    rows: int
    checksum: int
    moved: bool


def measured(text: str, progress: Callable[[str], None]) -> Iterator[Kept]:
    """The rows whose name has `text`. Raises AssertionError if a kind has other rows."""
    for workload, made in WORKLOADS.items():
        results = set()
        for kind, (_, kind_label) in KINDS.items():
            label = f"store: {made.label}, {kind_label}"
            if text not in label:
                continue
            progress(label)
            logs_of(workload)
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                run = limited.run("bench.memory.stores", [kind, workload, folder], ROOT / "stores.log")
            if run.result is None:
                raise RuntimeError(f"{label}: {run.error}; see {ROOT / 'stores.log'}")
            result = {name: value for name, value in run.result.items() if name in Kept.__dataclass_fields__}
            found = Kept(label, kind, workload, resident_peak_bytes=run.resident_peak_bytes, **result)
            results.add((found.rows, found.checksum))
            if len(results) > 1:
                raise AssertionError(f"{label}: expected the rows of the other kinds")
            yield found


def as_table(found: Sequence[Kept]) -> Table:
    lines: list[tuple[str, ...]] = [
        ("store", "k records/s", "of RocksDB and a cache", "rows", "written", "resident", "counted", "moved")
    ]
    base = {row.workload: row.processor_seconds for row in found if row.kind == BASE}
    for row in found:
        rate = row.records / row.processor_seconds / 1e3
        ratio = base[row.workload] / row.processor_seconds if row.workload in base else None
        sizes = (row.written_bytes, row.resident_peak_bytes, row.counted_bytes)
        lines.append(
            (
                row.label,
                Figure(rate, f"{rate:.0f}", "k/s"),
                "" if ratio is None else Figure(ratio, f"{ratio:.2f}x", "x"),
                Figure(row.rows_seconds, f"{row.rows_seconds:.1f} s", "s"),
                *(Figure(size / MIB, f"{size / MIB:.0f} MiB", "MiB") for size in sizes),
                "yes" if row.moved else "",
            )
        )
    title = (
        f"Stores of a table: {RECORDS:,} records, --memory {MEMORY_BYTES // MIB}m; rates by processor time"
    )
    return Table("stores", title, lines)


def logs_of(workload: str) -> Path:
    """The logs, made first if they are absent."""
    folder = ROOT / f"stores-{_GENERATION}-{workload}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=ROOT) as making:
            for partition in range(PARTITIONS):
                _write(Path(making) / "logs" / f"users-{partition}", partition, WORKLOADS[workload].keys)
            (Path(making) / "logs").rename(folder)
    return folder


def _write(folder: Path, partition: int, keys: int) -> None:
    chosen = np.random.default_rng(partition)
    count = _BATCH_RECORDS
    with PartitionLogWriter(folder) as writer:
        for first in range(0, RECORDS // PARTITIONS, count):
            builder = RecordBatchBuilder(codec=Codec.LZ4, base_offset=first)
            numbers = chosen.integers(0, keys // PARTITIONS, count)
            key_data = np.char.encode(np.char.zfill(numbers.astype(str), 16)).view(np.uint8)
            values = np.tile(np.frombuffer(b"express;" * (_VALUE_BYTES // 8), np.uint8), (count, 1))
            values[:, :40] = chosen.integers(97, 123, (count, 40), dtype=np.uint8)
            timestamps = np.arange(first, first + count) + 1_700_000_000_000
            builder.append_columns(
                timestamps, _column(key_data, 16), _column(values.reshape(-1), _VALUE_BYTES)
            )
            writer.append(builder.build())


def _column(data: np.ndarray, size: int) -> BinaryColumn:
    offsets = np.arange(0, len(data) + 1, size, dtype=np.int64)
    return BinaryColumn(offsets, data, np.ones(len(data) // size, bool))


def keep(kind: str, logs: Path, folder: Path) -> dict[str, Any]:
    plan = plan_for(MEMORY_BYTES, 1, 1, store_kind=KINDS[kind][0])
    state = TableState(folder / "state", logs, topics=None, isolation="read_committed")
    moves: list[str] = []
    before, began = written_bytes(), time.process_time()
    with KeyTable(PartitionReaders(select_logs(logs)), state, plan, on_move=moves.append) as table:
        table.assign(select_logs(logs))
        committed = 0
        while table.step() is not None:
            if table.records - committed >= COMMITTED_RECORDS:
                table.commit()
                committed = table.records
        table.commit()
        seconds, written = time.process_time() - began, written_bytes() - before
        began, rows, checksum = time.process_time(), 0, 0
        for row in table.rows():
            rows += 1
            checksum = crc32(row.value, crc32(row.key, checksum))
        return {
            "processor_seconds": seconds,
            "rows_seconds": time.process_time() - began,
            "written_bytes": written,
            "counted_bytes": table.budget.peak_bytes,
            "records": table.records,
            "rows": rows,
            "checksum": checksum,
            "moved": bool(moves),
        }


def main(kind: str, workload: str, folder: str) -> None:
    logs = logs_of(workload)
    limited.begin(limited.AMPLE_BYTES)
    result = keep(kind, logs, Path(folder))
    limited.tell({"result": result, "end": limited.status_bytes()})


if __name__ == "__main__":
    main(*sys.argv[1:])
