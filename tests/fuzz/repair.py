"""Target: repair of a partition's folder with one segment or two and their indexes, beside a new folder and in place.

Input: as that of `log`: the number of batches in the first of two segments, the offset in its name, what to check, and
the sizes of three indexes; the indexes of the first segment; the log. Whatever the bytes are:

- a repair raises nothing, and does not change its source;
- each batch of the result is in the source, byte by byte, and the result verifies without a finding;
- a second repair finds nothing to do;
- a dry run reports what the repair in place then does, which keeps the batches that the repair beside it keeps;
- an intact batch is kept unless the offsets of others contradict it. A log of sound batches that ascend keeps them all.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import reference as ref
from fuzz.log import OPTIONS_LENGTH as OPTIONS_LENGTH
from fuzz.log import SUFFIXES, Input
from fuzz.oracle import batches_before_damage, trusting_codecs
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.repair import LostRange, PartitionReport, repair, repair_in_place
from kafkafmt.jobs.verify import check_file
from kafkafmt.log import Segment

MAX_SPAN = 2**31 - 1  # of the offsets in a segment
CONTRADICTED = {"out of order", "duplicate", "overlap"}


class Files(Input):
    """The segments of an input, by base offset. is_deep: whether records are checked, too."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.is_deep = bool(self.run_bytes & 1)
        self.base_offset = self.offset if self.run_bytes & 2 else 0

    def segments(self) -> list[tuple[int, bytes]]:
        batches, _ = batches_before_damage(self.log)
        if 0 < self.cut < len(batches):
            second = batches[self.cut]
            base_offset = second.fields.get("base_offset", second.last_offset)
            if base_offset >= 0 and base_offset != self.base_offset:
                position = sum(len(batch.data) for batch in batches[: self.cut])
                return [(self.base_offset, self.log[:position]), (base_offset, self.log[position:])]
        return [(self.base_offset, self.log)]

    def write(self, folder: Path) -> None:
        folder.mkdir()
        for base_offset, log in self.segments():
            (folder / f"{base_offset:020d}.log").write_bytes(log)
        for suffix, index in zip(SUFFIXES, self.indexes, strict=True):
            if index:
                (folder / f"{self.base_offset:020d}{suffix}").write_bytes(index)


def check(data: bytes) -> None:
    given = Files(data)
    with tempfile.TemporaryDirectory() as temporary, trusting_codecs():
        source, target, in_place = (Path(temporary, name, "t-0") for name in ("source", "target", "in_place"))
        for folder in (source, in_place):
            folder.parent.mkdir()
            given.write(folder)
        before = _files(source)
        dry = repair(source, None, deep=given.is_deep).partitions[0]
        beside = repair(source, target, deep=given.is_deep).partitions[0]
        assert _files(source) == before
        report = repair_in_place(in_place, deep=given.is_deep).partitions[0]
        assert _comparable(report) == _comparable(dry)
        assert _comparable(report)["lost"] == _comparable(beside)["lost"]
        kept = _check_result(target, given)
        assert kept == _check_result(in_place, given)
        _check_kept(given, kept, beside)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _comparable(report: PartitionReport) -> dict[str, Any]:
    """A report without the folder of its files."""
    found = asdict(report) | {"path": ""}
    folder = f"{report.path}/"
    for lost in found["lost"]:
        lost["path"] = lost["path"].removeprefix(folder)
    return found


def _check_result(folder: Path, given: Files) -> list[bytes]:
    """Check a repaired folder; return its batches."""
    again = repair(folder, None, deep=given.is_deep).partitions[0]
    assert not again.lost, again
    assert not again.mended, again
    assert not again.is_changed, again
    for source in find_sources([str(folder)]):
        assert isinstance(source.path, Path)
        checked = check_file(source, indexed=Segment(source.path, is_active=False), deep=given.is_deep)
        assert checked.status == "ok", checked
    logs = [path.read_bytes() for path in sorted(folder.glob("*.log"))]
    batches = [batch.data for log in logs for batch in ref.read(log)]
    assert b"".join(batches) == b"".join(logs)
    assert all(batch in given.log for batch in batches)
    shutil.rmtree(folder)
    return batches


def _check_kept(given: Files, kept: list[bytes], report: PartitionReport) -> None:
    """Check that each intact batch before the damage of a segment is kept, or reported as contradicted by others."""
    ascends = _ascends(given)
    for base_offset, log in given.segments():
        position = 0
        for batch in batches_before_damage(log)[0]:
            if is_intact(batch) and batch.data not in kept:
                one = _covering(report.lost, f"{base_offset:020d}.log", position)
                assert one is not None, f"neither kept nor lost: {base_offset}, {position}: {report.lost}"
                assert one.kind in CONTRADICTED, f"intact: {one}"
                assert not ascends, f"nothing contradicts it: {one}"
            position += len(batch.data)


def _covering(lost: Iterable[LostRange], name: str, position: int) -> LostRange | None:
    return next(
        (one for one in lost if Path(one.path).name == name and one.position <= position < one.end_position),
        None,
    )


def is_intact(batch: ref.Batch) -> bool:
    """Return whether all records can be read, at offsets that the header allows. False for markers."""
    try:
        offsets = [row.offset for row in batch.rows(strict=True)]
    except ref.Damaged:
        return False
    first = batch.fields.get("base_offset", 0)
    return (
        batch.crc_holds
        and not batch.is_control
        and 0 <= first <= batch.last_offset
        and all(first <= offset <= batch.last_offset for offset in offsets)
        and all(before < after for before, after in pairwise(offsets))
    )


def _ascends(given: Files) -> bool:
    """Return whether all bytes are sound batches, whose offsets ascend and are within those of their segment."""
    reached = -1
    for base_offset, log in given.segments():
        batches, is_damaged = batches_before_damage(log)
        spans = [(_first_offset(one), one.last_offset) for one in batches]
        is_sound = all(one.crc_holds for one in batches) and sum(len(one.data) for one in batches) == len(log)
        if is_damaged or not is_sound or base_offset <= reached:
            return False
        reached = base_offset - 1
        for first, last in spans:
            if not reached < first <= last <= base_offset + MAX_SPAN:
                return False
            reached = last
    return True


def _first_offset(batch: ref.Batch) -> int:
    """Return the first offset of a batch. Only its records have that of a v0/v1 wrapper: its last one if damaged."""
    if "base_offset" in batch.fields:
        return batch.fields["base_offset"]
    try:
        return min((row.offset for row in batch.rows(strict=True)), default=batch.last_offset)
    except ref.Damaged:
        return batch.last_offset
