"""The map of a source's offsets to a target's, held against a table that has each record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_map import MappedRange, OffsetMap, PartitionMap
from kafkafmt.mirror.offset_stores import FileOffsetMapStore
from kafkafmt.types import TopicPartition

PARTITION = TopicPartition("t", 0)

# Each a step in the target's offsets and in the source's, and how many records follow one another from there.
STRETCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), max_size=40)


def mirrored(
    stretches: list[tuple[int, int, int]], source: int = 0, target: int = 0
) -> list[tuple[int, int, int]]:
    """Where stretches of records are on both sides, and how long they are."""
    found = []
    for source_gap, target_gap, length in stretches:
        source, target = source + source_gap, target + target_gap
        found.append((source, target, length))
        source, target = source + length, target + length
    return found


def added(offsets: PartitionMap, pieces: list[tuple[int, int, int]]) -> None:
    sources, targets, lengths = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    offsets.add(sources, targets, lengths)


def table(pieces: list[tuple[int, int, int]]) -> dict[int, int]:
    """Each record's offsets."""
    return {source + i: target + i for source, target, length in pieces for i in range(length)}


@settings(deadline=None)
@given(STRETCHES.filter(bool), st.integers(1, 10))
def test_look_up_misses_no_record_and_reads_none_again_that_it_need_not(
    stretches: list[tuple[int, int, int]], calls: int
) -> None:
    pieces = mirrored(stretches)
    offsets = PartitionMap()
    for first in range(0, len(pieces), calls):
        added(offsets, pieces[first : first + calls])
    records = table(pieces)
    for source in range(max(records) + 3):
        found = offsets.look_up(source)
        behind = [target for other, target in records.items() if other >= source]
        before = [target for other, target in records.items() if other < source]
        assert found is not None
        assert all(target >= found for target in behind)
        assert all(target < found for target in before)


@settings(deadline=None)
@given(STRETCHES.filter(bool), st.integers(2, 6))
def test_map_that_is_thinned_out_misses_no_record(stretches: list[tuple[int, int, int]], most: int) -> None:
    pieces = mirrored(stretches)
    offsets = PartitionMap(max_ranges=most)
    for piece in pieces:
        added(offsets, [piece])
    assert len(offsets) <= max(most, 3)
    records = table(pieces)
    assert offsets.end == max(records) + 1
    for source in range(max(records) + 3):
        found = offsets.look_up(source)
        assert found is not None
        assert all(target >= found for other, target in records.items() if other >= source)


@settings(deadline=None)
@given(STRETCHES.filter(bool), st.integers(0, 60), STRETCHES.filter(bool), st.integers(0, 9))
def test_map_goes_on_where_the_mirror_has_begun_again(
    before: list[tuple[int, int, int]], back: int, after: list[tuple[int, int, int]], doubled: int
) -> None:
    first = mirrored(before)
    offsets = PartitionMap()
    added(offsets, first)
    end, target_end = first[-1][0] + first[-1][2], first[-1][1] + first[-1][2] + doubled
    position = min(back, end)
    offsets.rewind(position)
    assert offsets.end is None or offsets.end <= position
    offsets.anchor(position, target_end)
    second = mirrored(after, position, target_end)
    added(offsets, second)
    kept = {source: target for source, target in table(first).items() if source < position}
    for source in range(max(table(second)) + 2):
        found = offsets.look_up(source)
        records = {**kept, **table(second)}
        assert found is not None
        assert all(target >= found for other, target in records.items() if other >= source)
        if source >= position:
            assert found >= target_end


@given(STRETCHES.filter(bool), st.integers(0, 100), st.integers(0, 60))
def test_map_of_a_target_that_lost_its_end_goes_on_with_the_first_record_that_is_lost(
    stretches: list[tuple[int, int, int]], first_target: int, lost: int
) -> None:
    pieces = mirrored(stretches, target=first_target)
    offsets = PartitionMap()
    added(offsets, pieces)
    records = table(pieces)
    assert offsets.target_end is not None
    target_end = max(offsets.target_end - lost, 0)
    offsets.truncate(target_end)
    kept = {source: target for source, target in records.items() if target < target_end}
    gone = [source for source in records if source not in kept]
    assert offsets.end is not None
    assert offsets.target_end <= target_end
    assert max(kept, default=-1) < offsets.end <= min(gone, default=max(records) + 1)
    for source in range(max(records) + 3):
        found = offsets.look_up(source)
        assert found is not None
        assert all(target >= found for other, target in kept.items() if other >= source)


def test_map_when_its_target_offsets_descend_then_truncating_leaves_the_records_before_the_first_loss() -> (
    None
):
    """Version 0.1 wrote such maps, if the target's topic was created again while the mirror ran."""
    offsets = PartitionMap([MappedRange(0, 0, 200), MappedRange(200, 0, 100)])
    offsets.truncate(0)
    assert (offsets.end, offsets.target_end, len(offsets)) == (0, 0, 1)
    assert offsets.take_changes() == {0: MappedRange(0, 0, 0), 200: None}


def test_map_when_target_offsets_go_back_then_returns_the_first_one_and_takes_none() -> None:
    offsets = PartitionMap([MappedRange(0, 0, 200)])
    sources, counts = np.array([200, 210, 220]), np.array([10, 10, 10])
    assert offsets.add(sources, np.array([200, 3, 13]), counts) == 3
    assert offsets.add(sources, np.array([150, 160, 170]), counts) == 150
    assert offsets.add(sources, np.array([200, -1, 215]), counts) == 215
    assert offsets.take_changes() == {}
    assert offsets.add(sources, np.array([200, 215, 225]), counts) is None


def test_map_when_target_offsets_are_not_known_then_has_its_end_and_sends_readers_before_them() -> None:
    offsets = PartitionMap([MappedRange(0, 0, 100)])
    assert offsets.add(np.array([100, 110, 120]), np.array([100, -1, 125]), np.array([10, 10, 10])) is None
    assert [offsets.look_up(at) for at in (105, 115, 120, 125)] == [105, 110, 125, 130]
    offsets.close()
    assert offsets.is_closed
    offsets.take_changes()
    assert offsets.add(np.array([130]), np.array([-1]), np.array([5])) is None
    assert (offsets.end, offsets.target_end, offsets.look_up(132)) == (135, 140, 135)
    offsets.close()  # other records may be before the last one
    assert not offsets.is_closed
    assert offsets.take_changes() == {135: MappedRange(135, 140, 0)}


def test_pieces_of_sides_that_count_alike_are_one() -> None:
    offsets = PartitionMap()
    for first in range(0, 100, 10):
        added(offsets, [(first, 500 + first, 10)])
    assert len(offsets) == 1
    assert offsets.take_changes() == {0: MappedRange(0, 500, 100)}
    assert offsets.take_changes() == {}


def test_map_of_records_that_are_spread_goes_on_behind_them_and_sends_readers_to_the_start() -> None:
    offsets = PartitionMap([MappedRange(0, 7, 10)])
    for source_offset in (10, 25):
        offsets.begin_at(source_offset)
        assert (offsets.end, offsets.look_up(3), offsets.look_up(99)) == (source_offset, 0, 0)
    offsets.truncate(0)
    assert (offsets.end, len(offsets)) == (25, 1)


def test_empty_map_knows_nothing() -> None:
    offsets = PartitionMap()
    assert offsets.look_up(7) is None
    assert offsets.end is None


@settings(deadline=None)
@given(STRETCHES.filter(bool), STRETCHES.filter(bool), st.integers(0, 60))
def test_file_has_what_the_map_has(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[int, int, int]],
    after: list[tuple[int, int, int]],
    back: int,
) -> None:
    path = tmp_path_factory.mktemp("map") / "offsets.sqlite"
    offsets = OffsetMap(FileOffsetMapStore(path, "here"))
    first = mirrored(before)
    added(offsets.partition(PARTITION), first)
    offsets.save()
    position = min(back, first[-1][0] + first[-1][2])
    offsets.partition(PARTITION).rewind(position)
    added(offsets.partition(PARTITION), mirrored(after, position, first[-1][1] + first[-1][2]))
    offsets.save()
    again = OffsetMap(FileOffsetMapStore(path, "here")).partition(PARTITION)
    other = OffsetMap(FileOffsetMapStore(path, "elsewhere")).partition(PARTITION)
    known = offsets.partition(PARTITION)
    assert [again.look_up(source) for source in range(100)] == [
        known.look_up(source) for source in range(100)
    ]
    assert again.end == known.end
    assert other.end is None


def test_changes_that_could_not_be_saved_are_saved_the_next_time(tmp_path: Path) -> None:
    class FullStore(FileOffsetMapStore):
        is_full = True

        def save(self, changes: object) -> None:
            if self.is_full:
                raise MirrorError("full")
            super().save(changes)  # type: ignore[arg-type]

    store = FullStore(tmp_path / "offsets.sqlite", "here")
    offsets = OffsetMap(store)
    added(offsets.partition(PARTITION), [(0, 0, 10)])
    with pytest.raises(MirrorError):
        offsets.save()
    added(offsets.partition(PARTITION), [(10, 10, 10)])
    store.is_full = False
    offsets.save()
    assert store.load(PARTITION) == [MappedRange(0, 0, 20)]


def saved_map(folder: Path) -> tuple[FileOffsetMapStore, OffsetMap]:
    """A map whose partition has 30 records, which are durable, and its store."""
    store = FileOffsetMapStore(folder / "offsets.sqlite", "here")
    offsets = OffsetMap(store)
    added(offsets.partition(PARTITION), [(0, 0, 30)])
    offsets.save()
    offsets.confirm()
    return store, offsets


def test_map_when_it_was_truncated_and_is_forgotten_before_that_is_confirmed_then_is_truncated_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    store, offsets = saved_map(tmp_path)
    saved = store.load(PARTITION)
    offsets.truncate(PARTITION, 10)
    offsets.save()
    store.save({PARTITION: {mapped.source_offset: mapped for mapped in saved}})  # the transaction was aborted
    offsets.forget([PARTITION])
    assert offsets.peek(PARTITION).end == 30
    assert offsets.partition(PARTITION).end == 10
    offsets.save()
    offsets.confirm()
    added(offsets.partition(PARTITION), [(10, 10, 10)])
    offsets.save()
    offsets.forget([PARTITION])
    assert offsets.partition(PARTITION).end == 20


def test_map_when_the_transaction_with_its_truncation_was_aborted_then_a_later_confirmation_is_not_of_it(
    tmp_path: Path,
) -> None:
    store, offsets = saved_map(tmp_path)
    (saved,) = store.load(PARTITION)
    offsets.truncate(PARTITION, 10)
    offsets.save()
    store.save({PARTITION: {0: saved}})  # aborted
    offsets.forget_all()
    offsets.save()
    offsets.confirm()
    assert offsets.partition(PARTITION).end == 10


def test_map_when_another_mirror_has_moved_its_partition_on_then_is_not_truncated(tmp_path: Path) -> None:
    store, here = saved_map(tmp_path)
    there = OffsetMap(store)
    here.truncate(PARTITION, 10)
    here.forget([PARTITION])
    added(there.partition(PARTITION), [(30, 30, 10)])
    there.save()
    for _ in range(2):
        assert here.partition(PARTITION).end == 40
        here.forget([PARTITION])


def test_file_that_is_none_is_one_line_and_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, " * 100)
    with pytest.raises(MirrorError, match=f"^{path}: ") as caught:
        FileOffsetMapStore(path, "here")
    descriptors = Path("/proc/self/fd").iterdir()
    still_open = [
        one for one in descriptors if one.is_symlink() and str(one.readlink()).startswith(str(tmp_path))
    ]
    assert still_open == []
    assert caught.tb is not None, "its frames, which keep the store, are still there"


def test_look_up_when_ranges_were_dropped_then_exact_offsets_stay_exact() -> None:
    exact = [3, 40, 41, 1000, 1001, 7777]
    known, thinned = PartitionMap(max_ranges=10**6), PartitionMap(max_ranges=16, exact=exact)
    for number in range(3000):
        added = np.array([3 * number]), np.array([4 * number]), np.array([2])
        for one in (known, thinned):
            one.add(*added)
    assert len(thinned) < 32
    for offset in exact:
        assert thinned.look_up(offset) == known.look_up(offset)
    assert any(thinned.look_up(offset) != known.look_up(offset) for offset in range(9000))
