"""The data of a report, beside what batches and records say one after another; and the page that is made of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from _kafkafmt.wire.layout import CRC_OFFSET
from cli.logs import flip, segments, write_log
from jobs.logs import make_logs
from kafkafmt import FileRecords, MemoryRecords, RecordBatch, crc32c
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.report import (
    GroupPosition,
    PageHead,
    PartitionReport,
    Totals,
    gather_partitions,
    page_chunks,
)
from kafkafmt.jobs.report.bins import CODECS, STATES, BinBuilder, Bins
from kafkafmt.jobs.report.gather import TOTAL_BINS, Problem, SegmentReport, bins_for
from kafkafmt.jobs.report.page import (
    MAX_PARTITIONS,
    MAX_POSITIONS,
    partition_row,
)
from kafkafmt.jobs.report.transactions import TransactionEnds
from kafkafmt.jobs.verify import check_file
from kafkafmt.types import Codec, ControlRecordType
from log.samples import marker, transactional

HOSTILE = "</script><script>document.title='owned'</script><!--\u202e\u2028&\ud800"
MIB = 1024 * 1024


def gather(*paths: object, deep: bool = False) -> list[PartitionReport]:
    sources = find_sources([str(path) for path in paths], includes_internal=True)
    return list(gather_partitions(sources, deep=deep))


def states_of(batches: Sequence[RecordBatch]) -> list[str]:
    """The state of each batch, by the next marker of its producer."""
    found, waiting = [""] * len(batches), defaultdict(list)
    for number, batch in enumerate(batches):
        if batch.is_control:
            found[number] = "control"
            (record,) = batch
            assert record.control is not None
            state = "committed" if record.control.type == ControlRecordType.COMMIT else "aborted"
            for waits in waiting.pop(batch.producer_id, ()):
                found[waits] = state
        elif batch.is_transactional:
            found[number] = "open"
            waiting[batch.producer_id].append(number)
        else:
            found[number] = "none"
    return found


def groups(values: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    return (values[first : first + width] for first in range(0, len(values), width))


@pytest.mark.parametrize("deep", [False, True])
def test_bins_when_logs_are_read_then_are_what_their_batches_say(tmp_path: Path, deep: bool) -> None:
    make_logs(tmp_path, partitions=3, batches=60)
    for report in gather(tmp_path, deep=deep):
        batches = [b for path in segments(tmp_path / report.name) for b in FileRecords(path).batches()]
        bins, states = report.bins, states_of(batches)
        assert bins.sizes.tolist() == [batch.size_in_bytes for batch in batches]
        assert bins.last_offset.tolist() == [batch.last_offset for batch in batches]
        is_wrapper = [batch.magic < 2 and batch.codec != Codec.NONE for batch in batches]
        for number, batch in enumerate(batches):
            if deep or not is_wrapper[number]:
                assert (bins.first_offset[number], bins.records[number]) == (batch.base_offset, batch.count)
            else:
                assert bins.first_offset[number] == (batches[number - 1].next_offset if number else 0)
                assert bins.uncounted[number]
            assert bins.formats[number, batch.magic] == batch.size_in_bytes
            assert CODECS[bins.codecs[number].argmax()] == batch.codec.name.lower()
            assert STATES[bins.states[number].argmax()] == states[number]
            times = [time for time in (batch.max_timestamp,) if time >= 0]
            assert [time for time in (bins.last_timestamp[number],) if time >= 0] == times
            assert bins.first_producer[number] == bins.last_producer[number] == batch.producer_id
        if deep:
            plain = sum(len(record.value or b"") + len(record.key or b"") for b in batches for record in b)
            assert report.uncompressed_bytes is not None
            assert sum(report.uncompressed_bytes.values()) > plain
            assert report.uncompressed_bytes[0] == sum(b.size_in_bytes for b in batches if not b.codec)


@pytest.mark.parametrize("most", [2, 16, 64])
@pytest.mark.parametrize("in_run", [1, 7, 1000])
def test_bins_when_there_are_more_batches_then_neighbours_share_one(most: int, in_run: int) -> None:
    rng, data = np.random.default_rng(most), []
    for offset in range(300):
        producer = int(rng.integers(4))
        kind = rng.integers(5)
        data.append(
            transactional(offset, producer) if kind < 3 else marker(offset, producer, commit=kind == 3)
        )
    batches = list(MemoryRecords(b"".join(data)).batches())
    builder, ends = BinBuilder(most), TransactionEnds()
    for some in groups(data, in_run):
        for run in MemoryRecords(b"".join(some)).runs():
            rows = run.index
            builder.add(rows, rows["base_offset"], rows["count"].astype(np.int64))
            number = builder.batches - len(run)
            builder.end(ends.add(run, 0, len(run), number, builder.shift))
    bins, width = builder.take(), 1 << builder.shift
    assert len(bins.sizes) <= most
    assert bins.batches.tolist() == [len(group) for group in groups(batches, width)]
    assert bins.first_offset.tolist() == list(range(0, 300, width))
    expected = []
    for group in groups(list(zip(batches, states_of(batches), strict=True)), width):
        sizes = dict.fromkeys(STATES, 0)
        for batch, state in group:
            sizes[state] += batch.size_in_bytes
        expected.append(list(sizes.values()))
    assert bins.states.tolist() == expected


def test_transactions_when_many_batches_wait_then_those_of_a_bin_are_kept_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkafmt.jobs.report.transactions._MOST_WAITING", 8)
    builder, ends = BinBuilder(4), TransactionEnds()
    data = [transactional(offset, offset % 2) for offset in range(100)] + [marker(100, 1, commit=False)]
    for number, one in enumerate(data):
        (run,) = MemoryRecords(one).runs()
        builder.add(run.index, run.index["base_offset"], run.index["count"].astype(np.int64))
        builder.end(ends.add(run, 0, 1, number, builder.shift))
        assert len(ends._numbers) <= 32
    states = dict(zip(STATES, builder.take().states.sum(0).tolist(), strict=True))
    assert states == {
        "none": 0,
        "committed": 0,
        "aborted": sum(map(len, data[1:100:2])),
        "open": sum(map(len, data[0:100:2])),
        "control": len(data[100]),
    }


def test_damage_when_a_batch_is_damaged_then_is_what_verify_finds(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    damaged = segments(log)[1]
    flip(damaged, 700)
    (report,) = gather(tmp_path)
    (source,) = find_sources([str(damaged)])
    (found,) = check_file(source).damage
    (problem,) = report.problems
    assert (problem.severity, problem.kind, problem.file) == ("damage", found["kind"], damaged.name)
    assert (problem.position, problem.end_position) == (found["position"], found["end_position"])
    assert (problem.first_offset, problem.last_offset) == (found["expected_offset"], found["next_offset"] - 1)
    assert [segment.problems for segment in report.segments][:3] == [0, 1, 0]
    assert report.is_damaged


@pytest.mark.full
def test_report_when_any_byte_of_a_batch_is_another_and_its_crc_is_right_then_is_made(tmp_path: Path) -> None:
    path = tmp_path / "orders-0" / f"{0:020}.log"
    path.parent.mkdir()
    for batch in (marker(5, 7, commit=False), transactional(5, 7)):
        for at in range(CRC_OFFSET + 4, len(batch)):
            for mask in (0x01, 0x80, 0xFF):
                data = bytearray(batch)
                data[at] ^= mask
                data[CRC_OFFSET : CRC_OFFSET + 4] = crc32c(data[CRC_OFFSET + 4 :]).to_bytes(4, "big")
                path.write_bytes(transactional(0, 7) + data + marker(10, 7, commit=True))
                (report,) = gather(path.parent)
                text, _ = page_of([report])
                assert json.loads(Elements(text).scripts[0])["partitions"][0]["name"] == "orders-0"


def test_segments_when_one_is_missing_and_another_was_deleted_then_are_a_note_and_gone(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "orders-0")
    segments(log)[1].unlink()
    sources = find_sources([str(tmp_path)])
    segments(log)[-1].unlink()
    (report,) = gather_partitions(sources)
    assert [problem.severity for problem in report.problems] == ["note", "gone"]
    assert not report.is_damaged


def test_log_start_when_there_is_a_checkpoint_then_is_in_the_report(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 33\n")
    (report,) = gather(tmp_path)
    assert (report.log_start_offset, report.end_offset, report.bins.first_offset[0]) == (33, 120, 0)


class Elements(HTMLParser):
    """The elements of a page, and the text in each `<script>`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._texts: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._texts = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._texts is not None:
            self._texts.append("")

    def handle_data(self, data: str) -> None:
        if self._texts is not None:
            self._texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._texts = None


def empty_bins() -> Bins:
    return BinBuilder(2).take()


def page_of(
    partitions: Sequence[PartitionReport], positions: Sequence[GroupPosition] = (), source: str = "/logs"
) -> tuple[str, Totals]:
    totals = Totals()
    head = PageHead(source, 1_700_000_000_000, "1.0", len(partitions), False)
    return b"".join(page_chunks(head, partitions, positions, totals)).decode(), totals


def test_page_when_names_are_hostile_then_they_are_data_and_nothing_else() -> None:
    problem = Problem("damage", HOSTILE, "corrupt", HOSTILE)
    report = PartitionReport(HOSTILE, HOSTILE, 0, empty_bins(), 0, [SegmentReport(HOSTILE, None)], [problem])
    page = Elements(page_of([report], [GroupPosition(HOSTILE, HOSTILE, 0, 5)], HOSTILE)[0])
    clean = Elements(page_of([PartitionReport("a-0", "a", 0, empty_bins())])[0])
    assert page.tags == clean.tags
    data = json.loads(page.scripts[0])
    assert data["partitions"][0]["name"] == HOSTILE
    assert data["positions"] == [[HOSTILE, HOSTILE, 0, 5]]


def test_page_then_allows_only_its_own_style_and_script_and_loads_nothing() -> None:
    text, _ = page_of([])
    page = Elements(text)
    (policy,) = (value for _, value in page.attributes if value is not None and "default-src" in value)
    hashes = {
        name: base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for name, part in (("style", page.styles[0]), ("script", page.scripts[1]))
    }
    assert policy.startswith("default-src 'none'; ")
    for name, value in hashes.items():
        assert f"{name}-src 'sha256-{value}';" in policy
    assert {"src", "onload", "onclick", "style"}.isdisjoint(name for name, _ in page.attributes)
    assert re.findall(r"https?:", text) == []
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_page_when_segments_or_problems_are_too_many_then_are_merged_or_counted() -> None:
    log = [SegmentReport(f"{at:020}.log", at, at + 1, at, at, 10, 0, 1, at % 2) for at in range(1000)]
    problems = [Problem("note", "a", "gap", "x" * 1000)] + [Problem("damage", "a", "corrupt", "x")] * 99
    report = PartitionReport("a-0", "a", 0, empty_bins(), 0, log, problems)
    row = partition_row(report, 64, 20)
    columns = row["segments"]
    assert len(columns["base"]) <= 64
    assert (sum(columns["count"]), sum(columns["size"]), sum(columns["problems"])) == (1000, 10_000, 500)
    assert (columns["base"][0], columns["next"][-1], columns["last_time"][-1]) == (0, 1000, 999)
    assert {problem["severity"] for problem in row["problems"]} == {"damage"}
    assert row["problems_left_out"] == 80


def test_page_when_partitions_and_positions_are_too_many_then_counts_those_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkafmt.jobs.report.page.MAX_PARTITIONS", 3)
    monkeypatch.setattr("kafkafmt.jobs.report.page.MAX_POSITIONS", 2)
    reports = [PartitionReport(f"a-{at}", "a", at, empty_bins()) for at in range(5)]
    text, totals = page_of(reports, [GroupPosition("g", "a", at, 0) for at in range(5)])
    data = json.loads(Elements(text).scripts[0])
    assert [row["name"] for row in data["partitions"]] == ["a-0", "a-1", "a-2"]
    assert (data["totals"]["partitions"], data["totals"]["left_out"], totals.left_out) == (5, 2, 2)
    assert (len(data["positions"]), data["positions_left_out"]) == (2, 3)


def test_page_when_names_of_groups_are_long_then_their_beginnings_are_shown() -> None:
    topic = "t" * 249
    positions = [GroupPosition(group, topic, 0, 5) for group in ("g" * 200, "g" * 30_000, "<" * 30_000)]
    data = json.loads(Elements(page_of([], positions)[0]).scripts[0])
    whole, cut, escaped = (group for group, *_ in data["positions"])
    assert (whole, {found for _, found, *_ in data["positions"]}) == ("g" * 200, {topic})
    assert re.fullmatch("g{200,255}…", cut)
    assert re.fullmatch("<{30,}…", escaped)


@pytest.mark.full
def test_page_when_everything_is_at_its_limit_then_is_below_30_mib() -> None:
    count = 4096  # with 16 bins each, these are the most bins
    most = bins_for(count)
    assert count * most == TOTAL_BINS
    assert count < MAX_PARTITIONS
    large = np.arange(most, dtype=np.int64) + 10**12
    mixed = np.full((most, 6), 10**8, np.int64)
    bins = Bins(*[large] * 10, mixed[:, :2], mixed[:, :2], mixed[:, :2])
    log = [SegmentReport(f"{0:020}.log", 10**12, 10**12, 10**12, 10**12, 10**9, 0, 10**5)] * 9
    name = "n" * 249
    reports = [
        PartitionReport(
            name, name, 10**5, bins, 10**12, log, [Problem("note", "f" * 24, "gap", "<" * 1000)] * 2
        )
        for _ in range(count)
    ]
    positions = [GroupPosition("\N{GRINNING FACE}" * 1000, "<" * 1000, 10**5, 10**12)] * MAX_POSITIONS
    text, _ = page_of(reports, positions)
    assert len(text) < 30 * MIB
