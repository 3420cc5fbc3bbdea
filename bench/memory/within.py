"""The first table: one topic replayed and tabled within one budget, top-down and bottom-up, and what came out of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.broker.broker import KAFKA_4

from bench.broker import broker_of
from bench.memory import limited
from bench.memory.brute_force import Change, expected_of, parquet_tables, replayed, timestamps_checksum
from bench.memory.limited import AMPLE_BYTES, Run
from bench.memory.planned import REPLAYED, TABLED
from bench.memory.topic import ROOT, Topic
from bench.results import Figure, Table

MIB = 1024 * 1024
TOP_DOWN, BOTTOM_UP, THREADS, LIVE = "plan", "per-partition", "threads", "live"


@dataclass(frozen=True)
class Work:
    """is_limited: whether it has the budget, or as much as it takes. completes: what is expected of it."""

    program: str
    way: str
    label: str
    is_limited: bool = True
    completes: bool = True


WORKS = (
    Work("replaying", TOP_DOWN, "replay, a plan of the budget"),
    Work("replaying", THREADS, "replay, a plan of the budget, two threads"),
    Work("replaying", LIVE, "replay of a cluster, a plan of the budget, two threads"),
    Work("replaying", BOTTOM_UP, "replay, 1000 records a partition", completes=False),
    Work("replaying", BOTTOM_UP, "replay, 1000 records a partition, no limit", is_limited=False),
    Work("tabling", TOP_DOWN, "table, a plan of the budget"),
    Work("tabling", LIVE, "table of a cluster, a plan of the budget"),
    Work("tabling", BOTTOM_UP, "table, 98 MiB a store", completes=False),
    Work("tabling", BOTTOM_UP, "table, 98 MiB a store, no limit", is_limited=False),
)


@dataclass(frozen=True)
class Outcome:
    """is_equal: to what brute force computes; None where there is no result."""

    work: Work
    run: Run
    memory_bytes: int
    is_equal: bool | None

    @property
    def is_within(self) -> bool:
        return max(self.run.virtual_peak_bytes, self.run.resident_peak_bytes) <= self.memory_bytes

    @property
    def is_as_expected(self) -> bool:
        if not self.work.completes:
            return self.run.result is None
        return self.is_equal is True and (not self.work.is_limited or self.is_within)

    @property
    def text(self) -> str:
        """How it ended."""
        if self.run.result is not None:
            return "completes"
        last = self.run.told[-1] if self.run.told else {"assigned": 0, "taken": 0}
        return f"{self.run.error.split(':')[0]} with {last['assigned']} partitions"


def measured(
    topic: Topic, memory_bytes: int, text: str, progress: Callable[[str], None]
) -> Iterator[Outcome]:
    """The rows whose name has `text`."""
    for work in WORKS:
        if text in work.label:
            progress(work.label)
            with _broker_of(topic) if work.way == LIVE else nullcontext([]) as broker:
                yield _measure(work, topic, memory_bytes, broker)


@contextmanager
def _broker_of(topic: Topic) -> Iterator[list[str]]:
    """The address of a broker that has the topic."""
    folders = [topic.folder(number) for number in range(topic.partitions)]
    with broker_of({topic.name: folders}, ROOT / "brokers", kafka=KAFKA_4) as broker:
        yield [broker.bootstrap]


def _measure(work: Work, topic: Topic, memory_bytes: int, broker: Sequence[str]) -> Outcome:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        bound = memory_bytes if work.is_limited else AMPLE_BYTES
        log = ROOT / f"{work.program}-{work.way}.log"
        arguments = [work.way, f"{topic.gigabytes:g}", str(bound), folder, *broker]
        run = limited.run(f"bench.memory.{work.program}", arguments, log)
        check = _is_replay_right if work.program == "replaying" else _is_table_right
        is_equal = None if run.result is None else check(topic, run, run.result, Path(folder))
    return Outcome(work, run, memory_bytes, is_equal)


def _is_replay_right(topic: Topic, run: Run, result: Mapping[str, Any], folder: Path) -> bool:
    """Partitions and offsets in their order, all records of each partition, and the log that was written, if any."""
    changes = [Change(told["taken"], told["gone"], told["come"]) for told in run.told]
    expected = replayed(topic, changes)
    written = folder / REPLAYED / f"{topic.name}-0"
    return (
        (result["records"], result["sequence"]) == (expected.records, expected.sequence)
        and result["contents"] == expected_of(topic).contents
        and (not written.exists() or timestamps_checksum(written) == expected.timestamps)
    )


def _is_table_right(topic: Topic, run: Run, result: Mapping[str, Any], folder: Path) -> bool:
    """The rows of the Parquet file, or those that the program read back."""
    written = folder / TABLED
    if written.exists():
        tables, rows = parquet_tables(written, topic.partitions)
    else:
        tables, rows = result["tables"], result["rows"]
    expected = expected_of(topic)
    return (tables, rows) == (expected.tables, expected.rows)


HEADINGS = ("work", "outcome", "seconds", "changes", "address space", "resident", "results", "verdict")


def as_table(outcomes: Sequence[Outcome], topic: Topic) -> Table:
    rows: list[tuple[str, ...]] = [HEADINGS]
    for outcome in outcomes:
        run = outcome.run
        rows.append(
            (
                outcome.work.label,
                outcome.text,
                f"{run.seconds:.0f}",
                str(len(run.told)),
                *(
                    Figure(peak / MIB, f"{peak / MIB:.0f} MiB", "MiB")
                    for peak in (run.virtual_peak_bytes, run.resident_peak_bytes)
                ),
                {True: "equal", False: "DIFFERENT", None: "none"}[outcome.is_equal],
                "" if not outcome.work.is_limited and outcome.is_as_expected else _verdict(outcome),
            )
        )
    title = f"{topic.text}; {outcomes[0].memory_bytes // MIB} MiB above the start"
    return Table("within", title, rows, left=(0, 1, len(HEADINGS) - 1))


def _verdict(outcome: Outcome) -> str:
    wanted = "completes within" if outcome.work.completes else "fails"
    return f"{wanted} {outcome.memory_bytes // MIB} MiB: {'hit' if outcome.is_as_expected else 'MISSED'}"
