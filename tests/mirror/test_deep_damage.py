"""Batches that are sound on the outside, mirrored by way of their records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import reference as ref
from endpoints.endpoint_process import EndpointProcess
from log.samples import put_segment
from mirror.folders import NOW, batches, mirror, records, stopped
from mirror.running import address
from reference import Row

pytestmark = [pytest.mark.clients, pytest.mark.slow]

WAYS = {
    "columns": ("cluster", ()),
    "objects": ("cluster", ("--repartition",)),
    "recompressed": ("folder", ("--codec", "lz4")),
    "handled": ("folder", ("--handler", "mirror.handlers:as_it_is")),
}


@contextmanager
def target_of(kind: str, folder: Path) -> Iterator[str | Path]:
    """A cluster whose logs are in a folder, or that folder."""
    if kind == "folder":
        yield folder
        return
    folder.mkdir()
    with EndpointProcess(folder, "--allow-produce", log=folder.with_suffix(".log")) as running:
        yield address(running.address)


@pytest.fixture
def east(tmp_path: Path) -> Path:
    """Offsets 0 to 99, a wrapper of 100 to 109 around a message with a wrong CRC, and a sound partition."""
    rows = [Row(offset, NOW, b"key", b"value") for offset in range(100, 110)]
    inner = b"".join(
        ref.message(
            1, row.offset - 100, row.timestamp, row.key, row.value, crc=1 if row.offset == 107 else None
        )
        for row in rows
    )
    damaged = ref.wrapper(1, ref.GZIP, rows, inner=inner)
    put_segment(tmp_path / "east" / "t-0", 0, [*batches(0, 100), damaged, *batches(110, 150)])
    put_segment(tmp_path / "east" / "u-0", 0, batches(0, 50))
    return tmp_path / "east"


@pytest.mark.parametrize("way", WAYS)
def test_deep_when_a_message_in_a_wrapper_has_a_wrong_crc_then_its_partition_stops_and_nothing_is_lost_before(
    way: str, east: Path, tmp_path: Path
) -> None:
    kind, options = WAYS[way]
    arrived = tmp_path / "west"
    with target_of(kind, arrived) as target:
        ended = mirror(east, target, "--deep", *options)
    (one,) = ended.summary["stopped"]
    assert "CRC mismatch of an inner message" in one["message"]
    assert (ended.status, stopped(ended.summary)) == (1, {"t-0": len(records(arrived))})
    assert [read[2:] for read in records(arrived, ("u", 0))] == [read[2:] for read in records(east, ("u", 0))]
