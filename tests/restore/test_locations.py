"""What a restore reads, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.stored import StoredBackup, log_of, write_key_ring
from kafkafmt.log import LogDirectory
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.restore.locations import find_source
from kafkafmt.restore.options import RestoreOptions

TARGET = parse_address("kafka://new:9092")


@pytest.mark.parametrize("name", ["new!", "we!rd", "really?", "50%25", "a#b"])
def test_source_when_the_folder_of_a_backup_has_signs_of_a_uri_then_is_read(
    tmp_path: Path, name: str
) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / name, tmp_path, ring)
    manifest = backup.grow()
    found = find_source(RestoreOptions(str(tmp_path / name), TARGET, key_ring=ring))  # type: ignore[arg-type]
    assert (found.generation, found.groups) == (manifest.name, manifest.groups)
    assert log_of(LogDirectory(found.path)) == backup.logs[0]
