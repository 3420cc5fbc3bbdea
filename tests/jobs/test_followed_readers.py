from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from kafkafmt import CorruptRecordError, TopicPartition
from kafkafmt.jobs.followed_readers import FollowedReaders
from kafkafmt.log.gaps import SourceDamage
from log.samples import batch, malformed_marker, marker, put_segment, transactional

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize("skips_damage", [False, True])
def test_read_when_a_malformed_marker_holds_a_followed_log_then_it_is_reported_once(
    tmp_path: Path, skips_damage: bool
) -> None:
    folder = tmp_path / "t-0"
    path = put_segment(folder, 0, [transactional(0, 1, 2), malformed_marker(2, 1), batch(3)])
    found: list[SourceDamage] = []
    readers = FollowedReaders(
        {PARTITION: folder},
        idle_seconds=None,
        is_committed=True,
        skips_damage=skips_damage,
        on_damage=found.append,
    )
    assert readers.ready([PARTITION], waits=False) == [PARTITION]
    refused = pytest.raises(CorruptRecordError, match=r"t-0 at offset 0: .*control record")
    with nullcontext() if skips_damage else refused:
        assert readers.read(PARTITION) is None
    assert len(found) == skips_damage
    assert not readers.ready([PARTITION], waits=False)
    with path.open("ab") as file:
        file.write(marker(4, 1, commit=True))
    deadline = time.monotonic() + 60
    while not readers.ready([PARTITION]):
        assert time.monotonic() < deadline
    for offset in (0, 3):
        run = readers.read(PARTITION)
        assert run is not None
        assert run.index["base_offset"].tolist() == [offset]
