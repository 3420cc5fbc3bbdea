"""Segments that several leaders copied, against a model of a partition: each offset is served once."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.lineage import CHECKPOINT_SUFFIX, current_lineage, cuts
from kafkafmt.storage.tiered.objects import StoredObjects, ensure_none_missing
from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut
from kafkafmt.storage.tiered.view import partition_files
from kafkafmt.storage.views import BytesFile

Epochs = tuple[tuple[int, int], ...]


def segment(base_offset: int, end_offset: int, epochs: Epochs, checkpoint: Epochs = ()) -> RemoteSegment:
    """A segment without records. Without `checkpoint`, it has none."""
    files = {".log": BytesFile(b"")}
    if checkpoint:
        lines = "".join(f"{epoch} {offset}\n" for epoch, offset in checkpoint)
        files[CHECKPOINT_SUFFIX] = BytesFile(f"0\n{len(checkpoint)}\n{lines}".encode())
    return RemoteSegment("orders", "", 0, f"{base_offset}-{epochs}", base_offset, end_offset, epochs, files)


def resolved(segments: list[RemoteSegment]) -> list[SegmentCut]:
    return cuts(segments, current_lineage(segments))


@dataclass
class Partition:
    """A partition whose leaders append, copy, and are replaced. A record is (its leader's epoch, a number)."""

    has_checkpoints: bool
    epoch: int = 0
    start: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)
    copied_to: int = 0
    count: int = 0
    copies: list[tuple[RemoteSegment, list[tuple[int, int]]]] = field(default_factory=list)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.log.append((self.epoch, self.count))

    def elect(self, truncate: int, again: int) -> None:
        """Replace the leader by one that lacks the last records, and that has not seen the last copies.

        Without checkpoints, records are not lost: not all stale leaders could be found.
        """
        if not self.has_checkpoints:
            truncate = 0
        del self.log[max(len(self.log) - truncate, self.start) :]
        self.epoch += 1
        self.copied_to = max(min(self.copied_to, len(self.log)) - again, self.start)

    def copy(self, hold: int = 0) -> None:
        """Copy records as a segment, but for the last `hold`."""
        end = len(self.log) - hold
        if end > self.copied_to:
            found = self.log[self.copied_to : end]
            checkpoint = self.epochs(self.start, end) if self.has_checkpoints else ()
            epochs = self.epochs(self.copied_to, end)
            self.copies.append((segment(self.copied_to, end - 1, epochs, checkpoint), found))
            self.copied_to = end

    def retain(self, count: int) -> None:
        if self.has_checkpoints:
            self.start = max(self.start, len(self.log) - count)
            self.copied_to = max(self.copied_to, self.start)

    def epochs(self, first: int, end: int) -> Epochs:
        found: dict[int, int] = {}
        for offset in range(first, end):
            found.setdefault(self.log[offset][0], offset)
        return tuple(found.items())


SMALL = st.integers(0, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SMALL),
        st.tuples(st.just("copy"), SMALL),
        st.tuples(st.just("elect"), SMALL, SMALL),
        st.tuples(st.just("retain"), st.integers(5, 30)),
    ),
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, has_checkpoints=st.booleans(), seed=st.randoms(use_true_random=False))
def test_segments_of_several_leaders_when_resolved_then_serve_each_record_of_the_log_once(
    steps: list[tuple[str, ...]], has_checkpoints: bool, seed: object
) -> None:
    partition = Partition(has_checkpoints)
    for step, *arguments in steps:
        getattr(partition, step)(*arguments)
    partition.append(1)
    partition.copy()
    seed.shuffle(partition.copies)  # type: ignore[attr-defined]
    copies = sorted(partition.copies, key=lambda copy: copy[0].base_offset)
    records = {id(one): found for one, found in copies}

    served: list[tuple[int, tuple[int, int]]] = []
    for cut in resolved([one for one, _ in copies]):
        end = cut.segment.end_offset + 1 if cut.next_offset is None else cut.next_offset
        base = cut.segment.base_offset
        served += [
            (offset, records[id(cut.segment)][offset - base]) for offset in range(cut.first_offset, end)
        ]
    copied = {
        offset
        for one, found in copies
        for offset, record in enumerate(found, one.base_offset)
        if partition.start <= offset < len(partition.log) and partition.log[offset] == record
    }
    assert served == [(offset, partition.log[offset]) for offset in sorted(copied)]


def test_segment_of_a_stale_leader_when_resolved_then_is_cut_where_the_next_epoch_begins() -> None:
    stale = segment(0, 99, ((0, 0),), ((0, 0),))
    newer = segment(80, 120, ((1, 80),), ((0, 0), (1, 80)))
    found = resolved([stale, newer])
    assert [(one.segment, one.first_offset, one.next_offset) for one in found] == [
        (stale, 0, 80),
        (newer, 80, None),
    ]


def test_segment_only_of_truncated_records_when_resolved_then_is_unused() -> None:
    first = segment(0, 9, ((0, 0),), ((0, 0),))
    truncated = segment(10, 19, ((1, 10),), ((0, 0), (1, 10)))
    newest = segment(15, 29, ((3, 15),), ((0, 0), (2, 10), (3, 15)))
    found = resolved([first, truncated, newest])
    assert [(one.segment, one.is_whole) for one in found] == [(first, True), (newest, True)]


def test_segments_without_metadata_when_resolved_then_all_are_served_whole() -> None:
    plain = [segment(0, -1, ()), segment(10, -1, ())]
    assert [(one.segment, one.is_whole) for one in resolved(plain)] == [(plain[0], True), (plain[1], True)]


def test_checkpoint_of_the_view_when_no_segment_has_one_then_is_without_the_epochs_of_a_stale_leader() -> (
    None
):
    stale = segment(0, 19, ((0, 0), (1, 10)))
    newest = segment(10, 29, ((2, 10),))
    (checkpoint,) = (
        file for name, file in partition_files([stale, newest]).by_name.items() if name.startswith("leader-")
    )
    assert bytes(checkpoint.read_at(0, checkpoint.size)) == b"0\n2\n0 0\n2 10\n"


def test_segment_whose_last_offset_is_too_high_when_resolved_then_hides_no_later_segment() -> None:
    wrong, *others = [segment(0, 10**6, ((0, 0),)), segment(10, 19, ((0, 10),)), segment(20, 29, ((0, 20),))]
    found = resolved([wrong, *others])
    assert [(one.segment, one.first_offset, one.next_offset) for one in found] == [
        (wrong, 0, 10),
        (others[0], 10, None),
        (others[1], 20, None),
        (wrong, 30, None),  # it may have them
    ]


@pytest.mark.parametrize("text", ["1\n1\n0 0\n", "0\n2\n1 5\n0 7\n", "0\n1\n"])
def test_damaged_checkpoint_when_read_then_the_error_names_segment_and_reason(text: str) -> None:
    damaged = segment(0, 9, ((0, 0),))
    damaged.files[CHECKPOINT_SUFFIX] = BytesFile(text.encode())  # type: ignore[index]
    with pytest.raises(
        StoredObjectError,
        match=r"orders-0: segment 0-.*leader-epoch checkpoint cannot be read: .*expected .*, found",
    ):
        current_lineage([damaged])


@pytest.mark.parametrize(
    ("ends", "is_missing"),
    [
        ({0: 49, 50: 99, 100: 149}, False),
        ({0: 60, 61: 99, 100: 149}, False),
        ({0: 99, 100: 149}, False),
        ({0: 49, 50: -1, 100: 149}, False),
        ({50: 149}, False),
        ({60: 99, 100: 149}, False),
        ({0: 49}, False),
        ({0: 60, 100: 149}, True),
        ({0: 49, 50: 60, 100: 149}, True),
        ({0: -1, 100: 149}, True),
    ],
)
def test_segment_at_offset_50_when_incomplete_then_is_an_error_if_the_others_lack_offsets_up_to_the_next(
    tmp_path: Path, ends: dict[int, int], is_missing: bool
) -> None:
    path = tmp_path / "50-id.log"
    path.touch()
    incomplete = {"50-id": StoredObjects(50, "id", {"log": (path, path.stat())})}
    with pytest.raises(StoredObjectError) if is_missing else nullcontext():
        ensure_none_missing(
            incomplete, [segment(base, end, ()) for base, end in ends.items()], "rsm-manifest", "missing"
        )
